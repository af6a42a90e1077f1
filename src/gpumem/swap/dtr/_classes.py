"""Classes of evicted neighbours: a union-find whose roots know what their members take to make again.

An eviction joins the classes of all evicted neighbours (section 4.1 of the paper, and its appendix C.2). A class is
never split: when a member comes back its time is taken off, and the others stay together although nothing may join
them any more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.facts.union_find import root
from gpumem.trace import I64

NOBODY = -1


class Classes(NamedTuple):
    """Nodes of a forest, and the node of each storage; nodes are never used twice."""

    node: I64  # of each storage, or `NOBODY`
    above: I64  # of each node: the one above it; itself where it is a root
    worth: I64  # of each root: ns of its members
    seen: I64  # of each root: the last question in which it was counted
    used: I64  # 2: how many nodes there are, and how many questions were asked


@inner
def classes(storages: int, nodes: int) -> Classes:
    """Return a forest without nodes, with room for some."""
    rows = np.zeros((3, nodes), np.int64)
    return Classes(np.full(storages, NOBODY), rows[0], rows[1], rows[2], np.zeros(2, np.int64))


@inner
def alone(c: Classes, storage: int, worth: int) -> None:
    """Give a storage a class of its own."""
    k = c.used[0]
    c.node[storage], c.above[k], c.worth[k] = k, k, worth
    c.used[0] += 1


@inner
def leave(c: Classes, storage: int, worth: int) -> None:
    """A storage is back: its class is worth less, and it has none."""
    c.worth[root(c.above, c.node[storage])] -= worth
    c.node[storage] = NOBODY


@inner
def count_once(c: Classes, storage: int) -> int:
    """What the class of a storage is worth, 0 if it was counted since the last `c.used[1] += 1`."""
    k = root(c.above, c.node[storage])
    if c.seen[k] == c.used[1]:
        return 0
    c.seen[k] = c.used[1]
    worth: int = c.worth[k]
    return worth
