"""Buffers that tile a rectangle are placed as one box: those of one lifetime, and those of one size that take turns.

::

    address ^   +-----+---+-----+        a, b and c are of one size, and each begins when the one before ends: a box.
            |   |  a  | b |  c  |        It lives as long as d: both make a larger box, and so on.
            |   +-----+---+-----+
            |   |       d       |
            +---+---------------+---> time

Whatever places the boxes places the buffers. The other way round nothing is promised: the lowest placement may take a
box apart. But nets repeat themselves, so most of what is hard has far fewer boxes than buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpumem.trace import I64, Trace

Key = tuple[int, int]


class Boxes(NamedTuple):
    """The boxes, as a trace with the sections as steps, and where in them the buffers lie."""

    trace: Trace
    box: I64  # of each buffer
    at: I64  # its offset in the box

    def offset(self, of_boxes: I64) -> I64:
        """Return the buffers' offsets, from those of the boxes."""
        return np.asarray(of_boxes[self.box] + self.at, np.int64)


class _Gluing:
    """Boxes by number, each a size and an arc of the circle; those that became part of another one are gone."""

    def __init__(self, size: I64, first: I64, last: I64, sections: int) -> None:
        self.rows = dict(enumerate(zip(size.tolist(), first.tolist(), last.tolist())))
        self.parts = {j: [(j, 0)] for j in self.rows}  # buffers and their offsets
        self.sections = sections

    def stack(self) -> None:
        """Put those of one lifetime on top of each other."""
        for alike in _grouped(((first, last), j) for j, (_, first, last) in self.rows.items()).values():
            below = self.rows[alike[0]][0]
            for j in alike[1:]:
                size, first, last = self.rows.pop(j)
                self.parts[alike[0]] += [(k, at + below) for k, at in self.parts.pop(j)]
                below += size
                self.rows[alike[0]] = (below, first, last)

    def chain(self) -> None:
        """Let one of the same size that begins when a box ends follow in its place, if no other one could."""
        begins = _grouped(((size, first), j) for j, (size, first, _) in self.rows.items())
        for j in sorted(self.rows, key=lambda j: self.rows[j][1]):
            while j in self.rows:
                size, first, last = self.rows[j]
                after = [k for k in begins.get((size, last % self.sections), []) if k in self.rows and k != j]
                if len(after) != 1:
                    break
                _, other, end = self.rows[after[0]]
                if last + end - other - first > self.sections:
                    break
                del self.rows[after[0]]
                self.parts[j] += self.parts.pop(after[0])
                self.rows[j] = (size, first, last + end - other)


def glue(size: I64, first: I64, last: I64, sections: int) -> Boxes:
    """Return the boxes that buffers make up, and boxes, until there are no more. O(B log B) a round, of a few rounds.

    The buffers are arcs `[first, last)` of a circle of sections.

    >>> boxes = glue(np.array([2, 2, 3]), np.array([0, 1, 0]), np.array([1, 3, 3]), 4)
    >>> boxes.trace.buffers.size, boxes.offset(np.array([4]))
    (array([5]), array([4, 4, 6]))
    """
    g, before = _Gluing(size, first, last, sections), -1
    while len(g.rows) != before:
        before = len(g.rows)
        g.stack()
        g.chain()
    box, at = np.zeros((2, len(size)), np.int64)
    for number, j in enumerate(g.rows):
        ids, offsets = np.array(g.parts[j], np.int64).T
        box[ids], at[ids] = number, offsets
    rows = np.array([*g.rows.values()], np.int64).reshape(-1, 3).T
    return Boxes(Trace.from_lifetimes(*rows, n=sections), box, at)


def _grouped(rows: Iterable[tuple[Key, int]]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for key, j in rows:
        found.setdefault(key, []).append(j)
    return found
