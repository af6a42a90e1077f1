"""Sets that only grow together, whose roots know what their members come to."""

from __future__ import annotations

from gpumem.base.jit import inner
from gpumem.trace import I64


@inner
def root(above: I64, node: int) -> int:
    """Return the root above a node; the way there becomes half as long."""
    while above[node] != node:
        above[node] = above[above[node]]
        node = above[node]
    return node


@inner
def join(above: I64, worth: I64, node: int, other: int) -> None:
    """Make one set of those of two nodes, under the root of `node`; `worth` adds up."""
    first_root, other_root = root(above, node), root(above, other)
    if first_root != other_root:
        above[other_root] = first_root
        worth[first_root] += worth[other_root]
