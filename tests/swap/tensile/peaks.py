"""TENSILE's algorithm 2 as printed, from nothing each time: an oracle of what the rounds follow copy by copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.facts.times import Times
from gpumem.swap.plan.decisions import Swap
from gpumem.swap.plan.gaps import around
from gpumem.swap.tensile.peak import NO_COPY, counts_from, ops_between
from gpumem.trace import I64, Trace

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
        leaves, release, prefetch = map(int, ops_between(times.start, times.end, (after, before), (at, ns, into[0])))
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
        return s.release, int(counts_from(times.start, s.before, s.prefetch, self.in_at + in_ns, accounting == "exact"))


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

    `accounting`: `exact`, what comes in counts from the op during which its copy starts; `paper`, from its end, as
    printed, which underestimates the peak.
    """
    b, n = trace.buffers, trace.n
    swapped = np.array([t.swap.buffer for t in tasks], np.int64)
    in_ns = machine.into.copy_ns(b.size[swapped])
    spans = [t.absent(times, int(x), accounting) for t, x in zip(tasks, in_ns)]
    first, stop = (np.array(column, np.int64) for column in (zip(*spans) if spans else ([], [])))
    load = trace.live_bytes() - around(first, stop, b.size[swapped], n)
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
