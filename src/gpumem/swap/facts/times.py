"""When the ops of an iteration run if nothing is swapped, counted on over iterations, and which op runs at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import hosted, simulate
from gpumem.simulator.timeline import Timeline
from gpumem.trace import F64, I64, Trace

# Turns that are unrolled: accesses of a value that crosses the boundary lie up to three turns on.
TURNS = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Times(Shown):
    """When each op runs, for `TURNS` turns of the iteration, so that a gap that wraps needs no case of its own.

    Place `k` is op `k % n` of turn `k // n`, as `Gaps.before` counts; each time may be an int or an int64 array.

    Parameters
    ----------
    start, end : int64[TURNS * n]
        Nanoseconds from the beginning of the first turn, ascending: with several compute streams, when all ops up to
        this one have started and ended.
    period : int
        Nanoseconds of a turn.

    Examples
    --------
    >>> times = Times.in_a_row(np.array([10, 20, 30]))
    >>> int(times.start[4]), int(times.begins(41)), times.ended(np.array([9, 40, 60]))
    (70, 3, array([-1,  1,  2]))
    """

    start: I64
    end: I64
    period: int

    @classmethod
    @strict
    def of(cls, line: Timeline) -> Times:
        """Unroll a time line."""
        return cls.unroll(line.start, line.end, line.makespan)

    @classmethod
    def in_a_row(cls, duration: I64) -> Times:
        """Let ops that take `duration`, int64[n] ns, follow one another without a wait."""
        end = np.cumsum(duration)
        return cls.unroll(end - duration, end, int(duration.sum()))

    @classmethod
    def serial(cls, trace: Trace, machine: Machine, duration: I64) -> Times:
        """Let ops that take `duration` run one at a time, whatever their streams, as the host launches them."""
        if not hosted(trace, machine):
            return cls.in_a_row(duration)
        one = replace(trace.ops, stream=np.zeros(trace.n, np.int64), streams=("compute",), duration=duration)
        return cls.of(simulate(replace(trace, ops=one), machine))

    @classmethod
    def unroll(cls, start: I64, end: I64, period: int) -> Times:
        """Repeat one turn, int64[n] each, every `period` ns."""
        shift = period * np.arange(TURNS)[:, None]
        start, end = (np.maximum.accumulate((shift + column).ravel()) for column in (start, end))
        return cls(start, end, period)

    def begins(self, time: int | I64) -> I64:
        """Return the first op that starts at `time` or later; beyond the last one where none does."""
        return np.searchsorted(self.start, time)

    def started(self, time: int | I64 | F64) -> I64:
        """Return the last op that has started by `time`, -1 if none has."""
        return np.searchsorted(self.start, time, side="right") - 1

    def ended(self, time: int | I64) -> I64:
        """Return the last op that has ended by `time`, -1 if none has."""
        return np.searchsorted(self.end, time, side="right") - 1


def queued(ready: I64, ns: I64) -> I64:
    """Return when copies end of which each goes once it is `ready` and those before it have ended.

    >>> queued(np.array([0, 1, 9]), np.array([3, 3, 3]))
    array([ 3,  6, 12])
    """
    busy = np.cumsum(ns)
    ends: I64 = busy + np.maximum.accumulate(ready - busy + ns)
    return ends
