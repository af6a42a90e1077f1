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
    """Boxes by number, each a size and an arc of the circle; those that became part of another one are removed."""

    def __init__(self, size: I64, first: I64, last: I64, sections: int) -> None:
        self.rows = dict(enumerate(zip(size.tolist(), first.tolist(), last.tolist())))
        self.parts = {box: [(box, 0)] for box in self.rows}  # buffers and their offsets
        self.sections = sections

    def stack(self) -> None:
        """Put those of one lifetime on top of each other."""
        for alike in _grouped(((first, last), box) for box, (_, first, last) in self.rows.items()).values():
            bottom = alike[0]
            below = self.rows[bottom][0]
            for box in alike[1:]:
                size, first, last = self.rows.pop(box)
                self.parts[bottom] += [(buffer, offset + below) for buffer, offset in self.parts.pop(box)]
                below += size
                self.rows[bottom] = (below, first, last)

    def chain(self) -> None:
        """Let one of the same size that begins when a box ends follow in its place, if no other one could."""
        begins = _grouped(((size, first), box) for box, (size, first, _) in self.rows.items())
        for box in sorted(self.rows, key=lambda box: self.rows[box][1]):
            while box in self.rows:
                size, first, last = self.rows[box]
                at_its_end = begins.get((size, last % self.sections), [])
                followers = [other for other in at_its_end if other in self.rows and other != box]
                if len(followers) != 1:  # of several, any choice might be the wrong one
                    break
                _, begin, end = self.rows[followers[0]]
                if last + end - begin - first > self.sections:  # more than once around the circle
                    break
                del self.rows[followers[0]]
                self.parts[box] += self.parts.pop(followers[0])
                self.rows[box] = (size, first, last + end - begin)


def glue(size: I64, first: I64, last: I64, sections: int) -> Boxes:
    """Return the boxes that buffers make up, and boxes, until there are no more. O(B log B) a round, of a few rounds.

    The buffers are arcs `[first, last)` of a circle of sections.

    >>> boxes = glue(np.array([2, 2, 3]), np.array([0, 1, 0]), np.array([1, 3, 3]), 4)
    >>> boxes.trace.buffers.size, boxes.offset(np.array([4]))
    (array([5]), array([4, 4, 6]))
    """
    gluing, before = _Gluing(size, first, last, sections), -1
    while len(gluing.rows) != before:
        before = len(gluing.rows)
        gluing.stack()
        gluing.chain()
    box_of, offset_in = np.zeros((2, len(size)), np.int64)
    for number, box in enumerate(gluing.rows):
        ids, offsets = np.array(gluing.parts[box], np.int64).T
        box_of[ids], offset_in[ids] = number, offsets
    rows = np.array([*gluing.rows.values()], np.int64).reshape(-1, 3).T
    return Boxes(Trace.from_lifetimes(*rows, n=sections), box_of, offset_in)


def _grouped(rows: Iterable[tuple[Key, int]]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = {}
    for key, box in rows:
        groups.setdefault(key, []).append(box)
    return groups
