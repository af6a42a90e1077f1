"""Which is the biggest of the gaps over an op? A tree over the ops; each gap is noted at O(log n) of its nodes.

Rows come biggest first, so the first row at a node is the biggest there, and the nodes over an op are those on its
way to the root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import jit
from gpumem.trace import I64, Bool


class Noted(NamedTuple):
    """Columns over nodes and rows."""

    ptr: I64  # nodes + 1: where the rows of each node begin
    rows: I64
    head: I64  # nodes: from where on a row may be left for any op
    dead: Bool  # rows
    tried: I64  # rows: at which op each was found last
    since: I64  # nodes: from where on rows may be left for the op that was asked for last
    asked: I64  # nodes: which op that is


class Stabs:
    """Rows of gaps, the biggest first; a row that is `dead` is never found again.

    Parameters
    ----------
    first, stop : int64[m]
        The ops `[first, stop)` of the circle of `n` that each row is over, `stop - first <= n`.
    n : int

    Examples
    --------
    >>> rows = Stabs(np.array([2, 7]), np.array([4, 11]), 8)
    >>> rows.biggest(2), rows.biggest(2), rows.biggest(2), rows.biggest(4)
    (0, 1, -1, -1)
    >>> rows.dead[0] = True
    >>> rows.biggest(3), rows.biggest(1)
    (-1, 1)
    """

    def __init__(self, first: I64, stop: I64, n: int) -> None:
        self.half = 1 << max(n - 1, 0).bit_length()
        low = first % n
        wraps = np.flatnonzero(low + stop - first > n)
        row = np.concatenate([np.arange(len(first)), wraps])
        begin = np.concatenate([low, np.zeros(len(wraps), np.int64)])
        end = np.concatenate([np.minimum(low + stop - first, n), (low + stop - first)[wraps] - n])
        order = np.argsort(row, kind="stable")
        parts = (row[order], begin[order], end[order])
        self.ptr = np.zeros(2 * self.half + 1, np.int64)
        _note(*parts, self.half, self.ptr, np.zeros(0, np.int64))
        self.ptr = np.concatenate([[0], np.cumsum(self.ptr[:-1])]).astype(np.int64)
        self.rows = np.zeros(int(self.ptr[-1]), np.int64)
        _note(*parts, self.half, self.ptr[:-1].copy(), self.rows)
        self.head = self.ptr[:-1].copy()
        self.dead = np.zeros(len(first), np.bool_)
        self.tried = np.full(len(first), -1, np.int64)
        self.since, self.asked = self.head.copy(), np.full(2 * self.half, -1, np.int64)

    @property
    def columns(self) -> Noted:
        """What compiled loops read and write."""
        return Noted(self.ptr, self.rows, self.head, self.dead, self.tried, self.since, self.asked)

    def biggest(self, op: int) -> int:
        """Return the biggest row over `op` that was not found at it last time, -1 if there is none."""
        return int(biggest(self.columns, op))


@jit
def _note(row: I64, begin: I64, end: I64, half: int, place: I64, rows: I64) -> None:
    """Go to the nodes that make up each range, and count them in `place`, or write rows there."""
    for k in range(len(row)):
        s, t = begin[k] + half, end[k] + half
        while s < t:
            if s % 2 == 1:
                if len(rows):
                    rows[place[s]] = row[k]
                place[s] += 1
                s += 1
            if t % 2 == 1:
                t -= 1
                if len(rows):
                    rows[place[t]] = row[k]
                place[t] += 1
            s, t = s // 2, t // 2


@jit
def biggest(v: Noted, op: int) -> int:
    """As `Stabs.biggest`, for compiled loops."""
    best, node = len(v.dead), len(v.head) // 2 + op
    while node >= 1:
        k = v.head[node]
        while k < v.ptr[node + 1] and v.dead[v.rows[k]]:
            k += 1
        v.head[node] = k
        if v.asked[node] == op:
            k = v.since[node]
        while k < v.ptr[node + 1] and (v.dead[v.rows[k]] or v.tried[v.rows[k]] == op):
            k += 1
        v.asked[node], v.since[node] = op, k
        if k < v.ptr[node + 1]:
            best = min(best, v.rows[k])
        node //= 2
    if best == len(v.dead):
        return -1
    v.tried[best] = op
    return int(best)
