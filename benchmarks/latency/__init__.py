"""Latency of measured ops: nets of plain PyTorch that are measured, and how well the times of whole nets are predicted.

`python -m benchmarks.latency` judges by `table.jsonl.gz`, which `gpumem measure` has written.
"""

# The nets of `held.py`: chosen before anything was measured, and never learned from.
HELD = ("resnet50", "mobilenet_v2", "densenet", "unet", "vit", "gpt", "lstm_lm", "dlrm")
