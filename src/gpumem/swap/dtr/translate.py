"""When storages were on the device, as simulated, becomes decisions of a plan.

A storage that went after access `a` and was back before the next one, `b`, is a `Recompute` at the place where it came
for good; where reruns read it in between, before it went or while it was there for them alone, it is held for them::

    access        a                                      b
    simulated     ========|       |=====|      |=====|===========|
    reruns               x           y             (none)
    the plan      =======|        |=|                |===========|
                  Hold(after=a)   Hold(at=)          Recompute(at=)

What was there while nobody read it is dropped at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpumem.swap.dtr._device import ResidencyIntervals
from gpumem.swap.plan import Decision, Hold, Recompute
from gpumem.trace import Trace


class Stay(NamedTuple):
    """A time on the device: from the place before op `first` until op `until`; `read`: by the last rerun there."""

    first: int
    until: int
    read: int


def decisions(trace: Trace, stays: ResidencyIntervals) -> list[Decision]:
    """Return what the stays of an iteration ask of a plan. O(accesses of the storages that went)."""
    touched, b, end = trace.accesses().op, trace.buffers, trace.buffers.end.tolist()
    all_through = (b.end - b.start == trace.n).tolist()  # a plan has no word for the tail of that
    found: list[Decision] = []
    for storage, mine in _by_storage(stays):
        accesses = touched[storage].tolist()
        if len(mine) > 1 or mine[0].until < end[storage] or mine[0].read >= end[storage]:
            found += _of(storage, mine, accesses, end[storage], tail=not all_through[storage])
    return found


def _by_storage(stays: ResidencyIntervals) -> Iterator[tuple[int, list[Stay]]]:
    """The stays of each storage in order, those that count."""
    rows = np.lexsort((stays.first, stays.storage))
    rows = rows[stays.storage[rows] >= 0]
    storage = stays.storage[rows]
    mine = [Stay(*row) for row in zip(*(column[rows].tolist() for column in stays[1:]))]
    begin = np.flatnonzero(np.diff(storage, prepend=-1)).tolist()
    for lo, hi in zip(begin, [*begin[1:], len(mine)]):
        yield int(storage[lo]), mine[lo:hi]


def _of(storage: int, stays: Iterable[Stay], accesses: list[int], end: int, *, tail: bool) -> Iterator[Decision]:
    """The decisions of one storage; `done` of its accesses have been seen."""
    done = 0
    for stay in stays:
        new = sum(1 for op in accesses[done:] if op < stay.until)
        if done and new:
            yield Recompute(storage, accesses[done - 1], accesses[done], stay.first)
        done += new
        last, final = accesses[done - 1], done == len(accesses)
        if not new:
            if stay.read > stay.first:
                yield Hold(storage, stay.read, after=last, at=stay.first)
        elif final and tail and max(stay.read, last + 1) != end:
            yield Hold(storage, max(stay.read, last + 1))
        elif not final and stay.read > last:
            yield Hold(storage, stay.read, after=last)
