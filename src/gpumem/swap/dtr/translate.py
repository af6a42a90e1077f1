"""When storages were on the device, as simulated, becomes decisions of a plan.

A storage that was evicted after access `a` and was back before the next one, `b`, is a `Recompute` at the place where
its last interval before `b` begins; where recomputations read it in between, before its eviction or while it was there
for them alone, it is held for them::

    access          a                                      b
    simulated       ========|       |=====|      |=====|===========|
    recomputations         x           y             (none)
    the plan        =======|        |=|                |===========|
                    Hold(after=a)   Hold(at=)          Recompute(at=)

An interval in which nothing read it is dropped from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gpumem.swap.dtr._device import ResidencyIntervals
from gpumem.swap.plan import Decision, Hold, Recompute
from gpumem.trace import Trace


class ResidencyInterval(NamedTuple):
    """A time on the device: from the place before op `first` until op `until`; `read`: by the last recomputation."""

    first: int
    until: int
    read: int


def decisions(trace: Trace, residency: ResidencyIntervals) -> list[Decision]:
    """Return the decisions that give storages these residency intervals. O(accesses of the storages evicted)."""
    touched, buffers, end = trace.accesses().op, trace.buffers, trace.buffers.end.tolist()
    all_through = (buffers.end - buffers.start == trace.n).tolist()  # a plan has no word for the tail of that
    plan: list[Decision] = []
    for storage, intervals in _by_storage(residency):
        first, last = intervals[0], end[storage]
        if len(intervals) > 1 or first.until < last or first.read >= last:
            accesses = touched[storage].tolist()
            plan += _decisions(storage, intervals, accesses, last, tail=not all_through[storage])
    return plan


def _by_storage(residency: ResidencyIntervals) -> Iterator[tuple[int, list[ResidencyInterval]]]:
    """The intervals of each storage in the order of time, without empty rows."""
    rows = np.lexsort((residency.first, residency.storage))
    rows = rows[residency.storage[rows] >= 0]
    storage = residency.storage[rows]
    intervals = [ResidencyInterval(*row) for row in zip(*(column[rows].tolist() for column in residency[1:]))]
    begin = np.flatnonzero(np.diff(storage, prepend=-1)).tolist()
    for start, stop in zip(begin, [*begin[1:], len(intervals)]):
        yield int(storage[start]), intervals[start:stop]


def _decisions(
    storage: int, intervals: Iterable[ResidencyInterval], accesses: list[int], end: int, *, tail: bool
) -> Iterator[Decision]:
    """The decisions of one storage; `done` of its accesses lie in earlier intervals."""
    done = 0
    for interval in intervals:
        new = sum(1 for op in accesses[done:] if op < interval.until)
        if done and new:
            yield Recompute(storage, accesses[done - 1], accesses[done], interval.first)
        done += new
        last, is_final = accesses[done - 1], done == len(accesses)
        if not new:  # it was there for recomputations alone
            if interval.read > interval.first:
                yield Hold(storage, interval.read, after=last, at=interval.first)
        # What is freed before op `end` cannot be read by the recomputations right before it, unless it is held.
        elif is_final and tail and (interval.read == end or max(interval.read, last + 1) != end):
            yield Hold(storage, max(interval.read, last + 1))
        elif not is_final and interval.read > last:
            yield Hold(storage, interval.read, after=last)
