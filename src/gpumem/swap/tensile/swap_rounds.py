"""One job in TENSILE's swap rounds (algorithm 1): the tensors at its peak, their feasible regions, its links.

A tensor is a value: what one write leaves in a buffer. Its accesses in the order of time, and what a success makes::

    access     write      read 1        read 2           read 3
    device     =====|......      |======      |==========|......|===      . off the device
    out              |---|                                                earliest slot after the write
    in                       |---|       none fits      |---|             latest slot before each read

Where no swap-in fits before read 1, the copy-out is tried once more from the end of read 1 on (line 21, mended).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.facts.biggest import Biggest
from gpumem.swap.facts.link import LinkTimes
from gpumem.swap.facts.load import LiveBytes
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.times import Times
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Windows, windows
from gpumem.swap.tensile import _rounds
from gpumem.swap.tensile.peak import NO_COPY
from gpumem.trace import I64, Trace


class SwapRounds:
    """One job in the swap rounds: what does not change (`job`), and what has been decided (`progress`).

    Parameters
    ----------
    trace, machine
    duration : int64[n]
        Nanoseconds of each op.
    most : int
        How many buffers may be swapped.
    hosts : list of Pinned
        Of the jobs that share the pinned budget of the machine; this one joins them.
    accounting, rest
        As in `schedule`.
    """

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        duration: I64,
        *,
        most: int,
        hosts: list[Pinned],
        accounting: str = "exact",
        rest: bool = True,
    ) -> None:
        self.trace, self.machine, self.hosts = trace, machine, hosts
        self.times = Times.serial(trace, machine, duration)
        self.footprint = LiveBytes.of(trace)
        gaps = windows(trace, machine)
        # No copy is shorter than the shortest of its link, so shorter holes need not be kept; 2**62: there is no copy.
        least_out, least_in = (int(ns[ns > 0].min(initial=2**62)) for ns in (gaps.out_ns, gaps.in_ns))
        self.outs = LinkTimes(self.times.period, least_out if machine.duplex else min(least_out, least_in))
        self.ins = LinkTimes(self.times.period, least_in) if machine.duplex else self.outs
        self.host = Pinned(trace, gaps, machine.pinned)
        hosts.append(self.host)
        order = np.lexsort((gaps.after - gaps.before, -gaps.size))  # of equal tensors the longer gap first
        columns = _columns(gaps, self.times)
        self.copies = int((columns.last - columns.first).max(initial=0)) + 2  # of a try, at most
        self.job = _rounds.SwapJob(
            gaps=columns,
            start=self.times.start,
            end=self.times.end,
            order=order,
            place=np.argsort(order),
            n=trace.n,
            most=most,
            exact=accounting == "exact",
            rest=rest,
        )
        counts = np.zeros(_rounds.COUNTS, np.int64)
        counts[_rounds.NEXT] = -1
        self.progress = _rounds.SwapProgress(
            tasks=_rounds.SwapTasks(*np.full((6, len(gaps)), -1, np.int64)),
            outs=self.outs.columns,
            ins=self.ins.columns,
            host=self.host.columns,
            by_size=Biggest.of(gaps.after[order] + 1, gaps.before[order], trace.n),
            top=self.footprint.top,
            add=self.footprint.add,
            on_host=np.full(int(gaps.value.max(initial=-1)) + 1, -1),
            swapped=np.zeros(len(trace.buffers), np.bool_),
            counts=counts,
        )

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.footprint.peak

    @property
    def done(self) -> I64:
        """The gaps that are swapped, in the order in which that was decided."""
        return self.progress.tasks.done[: self.progress.counts[_rounds.DONE]]

    @property
    def buffers(self) -> I64:
        """The buffers that are swapped."""
        return np.flatnonzero(self.progress.swapped)

    def biggest(self) -> int:
        """Return the bytes of the biggest tensor at the peak that is worth a try, -1 if there is none left."""
        gap = int(_rounds.next_gap(self.job, self.progress))
        return int(self.job.gaps.size[gap]) if gap >= 0 else -1

    def swap(self, goal: int, tries: int) -> I64:
        """Try to swap `biggest`, so often or until the peak is at most `goal`; return the gaps that were swapped."""
        self._share_budget()
        before = len(self.done)
        while tries:
            tries = int(_rounds.swap(self.job, self.progress, goal, budget=self.host.budget, tries=tries))
            if tries:
                self._reserve(self.copies)
        return self.done[before:]

    def take_links(self, other: SwapRounds, done: I64) -> None:
        """Take the link times for copies of another job: of `done`, gaps of that."""
        self._reserve(2 * len(done))
        _rounds.take_links(self.progress, other.job.gaps, other.progress.tasks, done)

    def _reserve(self, copies: int) -> None:
        """Lengthen the links' columns, which compiled loops cannot do, for so many copies more."""
        for link in (self.outs, self.ins):
            link.reserve(copies)
        self.progress = self.progress._replace(outs=self.outs.columns, ins=self.ins.columns)

    def swaps(self) -> tuple[list[Swap], list[tuple[int, int]]]:
        """Return the swaps, in the order of their copies in, and of each the delays of its copies: see `Scheduled`."""
        gaps, tasks, n, end = self.job.gaps, self.progress.tasks, self.trace.n, self.times.end
        rows = self.done[np.argsort(tasks.in_at[self.done] % max(self.times.period, 1), kind="stable")]
        ops = np.stack([column[rows] for column in (gaps.after, gaps.before, tasks.release, tasks.prefetch, tasks.out)])
        ops -= gaps.after[rows] // n * n  # ops of the iteration in which the access before the gap is
        swaps = [Swap(*row) for row in zip(gaps.buffer[rows].tolist(), *ops.tolist())]
        out_at, in_at = tasks.out_at[rows], tasks.in_at[rows]
        out = np.where(out_at == NO_COPY, 0, np.maximum(out_at - end[tasks.out[rows]], 0))
        into = np.maximum(in_at - end[tasks.prefetch[rows] - 1], 0)
        return swaps, list(zip(out.tolist(), into.tolist()))

    def _share_budget(self) -> None:
        """Let this job have the pinned bytes that the other jobs leave."""
        self.host.budget = self.machine.pinned - sum(host.peak for host in self.hosts if host is not self.host)

    def keep(self, states: Mapping[int, int]) -> bool:
        """Let the host keep the states of generators, if the budget allows; see `Pinned.keep`."""
        self._share_budget()
        return self.host.keep(states)


def _columns(gaps: Windows, times: Times) -> _rounds.TensorGaps:
    first, last = np.searchsorted(gaps.value, gaps.value), np.searchsorted(gaps.value, gaps.value, side="right") - 1
    return _rounds.TensorGaps(
        buffer=gaps.buffer,
        size=gaps.size,
        after=gaps.after,
        before=gaps.before,
        value=gaps.value,
        out_ns=gaps.out_ns,
        in_ns=gaps.in_ns,
        opens=times.end[gaps.after],
        closes=times.start[gaps.before],
        first=first,
        last=last,
    )
