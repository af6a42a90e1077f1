"""TENSILE's peak analysis: what a job holds over its tensor access sequence with swap tasks, and when it is most.

Time goes to the right; the bytes of a swapped tensor are there (#) or not::

    op          [ out ]        [release]              [prefetch]         [before]
    copies             |-- out --|                        |--- in ---|
    exact      ##################|                      ##########################
    paper      ##################|                                   #############   a swap-in counts at its end

What a job holds changes between ops only: what leaves during an op counts through it, what comes in during an op
counts from its beginning. So `exact` is the load of the rewritten trace, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.base.jit import jit
from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.times import Times
from gpumem.swap.plan.decisions import Swap
from gpumem.swap.plan.gaps import around
from gpumem.trace import I64, Trace

ACCOUNTING = ("exact", "paper")
NO_COPY = -1
Trigger = tuple[int, int]  # the last op that has ended, and the ns since its end


@dataclass(frozen=True, slots=True)
class SwapTask:
    """A swap with the times of its copies, in ns from the beginning of the iteration in which op `after` runs.

    `out_at` is None where the host has the value, so that nothing is copied out.
    """

    swap: Swap
    out_at: int | None
    in_at: int

    @classmethod
    def at(
        cls, times: Times, gap: tuple[int, int, int], out: tuple[int, int] | None, into: tuple[int, int]
    ) -> SwapTask | None:
        """Return the task whose copies run at `out` and `into`, both (start, ns); None where they leave no op between.

        `gap`: buffer, `after`, `before`. Copies lie between the two accesses.
        """
        buffer, after, before = gap
        at, ns = out or (NO_COPY, 0)
        leaves, release, prefetch = map(int, ops_between(times.start, times.end, after, before, at, ns, into[0]))
        if prefetch < 0:
            return None
        return cls(Swap(buffer, after, before, release, prefetch, leaves), None if out is None else at, into[0])

    def triggers(self, times: Times) -> tuple[Trigger, Trigger]:
        """Return what starts the copy-out and the copy-in: the last op that ends before it, and the ns since then."""
        s = self.swap
        out = 0 if self.out_at is None else max(self.out_at - int(times.end[s.out]), 0)
        return (s.out, out), (s.prefetch - 1, max(self.in_at - int(times.end[s.prefetch - 1]), 0))

    def absent(self, times: Times, in_ns: int, accounting: str = "exact") -> tuple[int, int]:
        """Return the ops `[first, stop)` that need not hold the buffer, by one of `ACCOUNTING`."""
        s = self.swap
        return s.release, int(away(times.start, s.before, s.prefetch, self.in_at + in_ns, accounting == "exact"))


@jit
def ops_between(
    start: I64, end: I64, after: int, before: int, out_at: int, out_ns: int, in_at: int
) -> tuple[int, int, int]:
    """Return `out`, `release` and `prefetch` of a swap with copies at these times; no `prefetch`, -1, if no op fits."""
    leaves, release = after, after + 1
    if out_at != NO_COPY:
        release = min(max(int(np.searchsorted(start, out_at + out_ns)), after + 1), before)
        leaves = min(max(int(np.searchsorted(end, out_at, side="right")) - 1, after), release - 1)
    prefetch = min(int(np.searchsorted(end, in_at, side="right")), before)
    return leaves, release, prefetch if release < prefetch else -1


@jit
def away(start: I64, before: int, prefetch: int, ends: int, exact: bool) -> int:
    """Return the op from which on a buffer counts again whose copy-in `ends` at a time, by one of `ACCOUNTING`."""
    return prefetch if exact else min(max(int(np.searchsorted(start, ends)), prefetch), before)


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """What algorithm 2 returns.

    `bytes`; `op` and `time`: the first op that holds so much, and when it starts; `tensors`: the buffers that it
    holds, the largest first; `last_access`: the last op before it that reads anything, -1 if none does; `triggers`:
    of each swap task, that of the copy-out and that of the copy-in.
    """

    bytes: int
    op: int
    time: int
    tensors: I64
    last_access: int
    triggers: tuple[tuple[Trigger, Trigger], ...]


def analyse(
    trace: Trace, machine: Machine, times: Times, tasks: Sequence[SwapTask] = (), *, accounting: str = "exact"
) -> Peak:
    """Find the peak of a job that runs with some swap tasks, in the steady state (algorithm 2).

    Parameters
    ----------
    trace, machine
    times : Times
        When its ops run: the tensor access sequence.
    tasks : sequence of SwapTask
        No two for one gap.
    accounting : str
        `exact`: what comes in counts from the op during which its copy starts. `paper`: from its end, as printed,
        which underestimates the peak.

    Raises
    ------
    ValueError
        An unknown accounting.

    Notes
    -----
    O(n + buffers + tasks): one pass. `LiveBytes` follows the peak while tasks are added, in O(log n) each.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("rtx2080ti")
    >>> peak = analyse(trace, machine, Times.in_a_row(machine.durations(trace)))
    >>> (peak.op, peak.bytes) == trace.peak
    True

    References
    ----------
    Zhang et al., TENSILE, section 4.2, algorithm 2.
    """
    one_of("accounting", accounting, ACCOUNTING)
    b, n = trace.buffers, trace.n
    swapped = np.array([t.swap.buffer for t in tasks], np.int64)
    in_ns = machine.into.copy_ns(b.size[swapped])
    spans = [t.absent(times, int(x), accounting) for t, x in zip(tasks, in_ns)]
    first, stop = (np.array(column, np.int64) for column in (zip(*spans) if spans else ([], [])))
    load = trace.load() - around(first, stop, b.size[swapped], n)
    op = int(np.argmax(load))
    held = ~b.host & ((op - b.start) % n < b.end - b.start)
    held[swapped[(op - first) % n < stop - first]] = False
    tensors = np.flatnonzero(held)
    reads = np.flatnonzero(np.diff(trace.ops.reads.ptr[: op + 1]))
    return Peak(
        int(load[op]),
        op,
        int(times.start[op]),
        tensors[np.argsort(-b.size[tensors], kind="stable")],
        int(reads[-1]) if len(reads) else -1,
        tuple(t.triggers(times) for t in tasks),
    )
