"""How fast, how large, how far from the best: one file a question."""
