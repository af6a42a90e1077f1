"""Models compiled by `torch.compile`: which activations are saved, by what the split graph then holds.

Read `solver` first, which PyTorch calls. Below it, each knowing only those before: `joint` (what a node makes, its
estimated runtime, the halves of a split and their peak), `mincut` (PyTorch's cut, without networkx), `splits` (what is
saved if some ops may be recomputed), `frontier` (the search).
"""
