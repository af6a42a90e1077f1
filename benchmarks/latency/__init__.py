"""Latency of measured ops: nets of plain PyTorch that are measured, and how well the times of whole nets are predicted.

`python -m benchmarks.latency` judges by the tables that lie here, which `gpumem measure` has written.
"""

# The nets of `first_held.py`, chosen before anything was measured. When they had been judged by, they became nets to
# learn from, for those of `second_held.py`.
HELD = ("resnet50", "mobilenet_v2", "densenet", "unet", "vit", "gpt", "lstm_lm", "dlrm")
