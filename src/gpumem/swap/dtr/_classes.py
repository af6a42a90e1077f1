"""Classes of evicted neighbours: a union-find whose roots know what their members take to be recomputed.

An eviction joins the classes of all evicted neighbours (section 4.1 of the paper, and its appendix C.2). A class is
never split, since a union-find cannot: when a member returns its time is subtracted, and the others stay together
although nothing may join them any more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner
from gpumem.swap.facts.union_find import root
from gpumem.trace import I64

NONE = -1  # no storage, node, entry or row
NODES, QUERIES, COUNTS = range(3)  # indexes of `Classes.counts`


class Classes(NamedTuple):
    """Nodes of a forest, and the node of each storage; nodes are never used twice."""

    node: I64  # of each storage, or `NONE`
    parent: I64  # of each node; itself where it is a root
    ns: I64  # of each root: the ns of its members
    counted: I64  # of each root: the last query in which it was counted
    counts: I64  # how many nodes there are, and how many queries there were


@inner
def no_classes(storages: int, nodes: int) -> Classes:
    """Return a forest without nodes, with space for some."""
    rows = np.zeros((3, nodes), np.int64)
    return Classes(np.full(storages, NONE), rows[0], rows[1], rows[2], counts=np.zeros(COUNTS, np.int64))


@inner
def add_class(classes: Classes, storage: int, ns: int) -> None:
    """Give a storage a class of its own."""
    node = classes.counts[NODES]
    classes.node[storage], classes.parent[node], classes.ns[node] = node, node, ns
    classes.counts[NODES] += 1


@inner
def leave_class(classes: Classes, storage: int, ns: int) -> None:
    """A storage is back on the device: its class takes less, and it has none."""
    classes.ns[root(classes.parent, classes.node[storage])] -= ns
    classes.node[storage] = NONE


@inner
def begin_query(classes: Classes) -> None:
    """Let `count_once` count each class once more."""
    classes.counts[QUERIES] += 1


@inner
def count_once(classes: Classes, storage: int) -> int:
    """The ns of the class of a storage, 0 if it was counted since the last `begin_query`."""
    top = root(classes.parent, classes.node[storage])
    if classes.counted[top] == classes.counts[QUERIES]:
        return 0
    classes.counted[top] = classes.counts[QUERIES]
    ns: int = classes.ns[top]
    return ns
