"""Latency of measured ops: nets of plain PyTorch that are measured, and how well the times of whole nets are predicted."""
