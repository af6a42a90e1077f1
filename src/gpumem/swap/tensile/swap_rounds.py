"""One job in TENSILE's swap rounds (algorithm 1): the tensors of its peak, their feasible regions, its links.

A tensor is a value: what one write leaves in a buffer. Its accesses in the order of time, and what a success makes::

    access     write      read 1        read 2           read 3
    device     =====|......      |======      |==========|......|===      . absent
    out              |---|                                                earliest slot after the write
    in                       |---|       none fits      |---|             latest slot before each read

Where no swap-in fits before read 1, the copy-out is tried again from the end of read 1 on (line 21, mended).
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
    """What the swap rounds know of one job.

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
        found = windows(trace, machine)
        least = [int(ns[ns > 0].min(initial=2**62)) for ns in (found.out_ns, found.in_ns)]
        self.outs = LinkTimes(self.times.period, least[0] if machine.duplex else min(least))
        self.ins = LinkTimes(self.times.period, least[1]) if machine.duplex else self.outs
        self.host = Pinned(trace, found, machine.pinned)
        hosts.append(self.host)
        order = np.lexsort((found.after - found.before, -found.size))
        rows = _rows(found, self.times)
        self.copies = int((rows.last - rows.first).max(initial=0)) + 2  # of a try, at most
        self.job = _rounds.Board(
            rows,
            _rounds.Made(*np.full((6, len(found)), -1, np.int64)),
            self.times.start,
            self.times.end,
            self.outs.columns,
            self.ins.columns,
            self.host.columns,
            Biggest.of(found.after[order] + 1, found.before[order], trace.n),
            order,
            np.argsort(order),
            self.footprint.top,
            self.footprint.add,
            np.full(int(found.value.max(initial=-1)) + 1, -1),
            np.zeros(len(trace.buffers), np.bool_),
            np.array([-1, 0, 0]),
            trace.n,
            most,
            accounting == "exact",
            rest,
        )

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.footprint.peak

    @property
    def done(self) -> I64:
        """The rows that are swapped, in the order in which they were."""
        return self.job.made.done[: self.job.now[_rounds.DONE]]

    @property
    def buffers(self) -> I64:
        """The buffers that are swapped."""
        return np.flatnonzero(self.job.swapped)

    def biggest(self) -> int:
        """Return the bytes of the biggest tensor at the peak that is worth a try, -1 if there is none left."""
        row = int(_rounds.following(self.job))
        return int(self.job.rows.size[row]) if row >= 0 else -1

    def swap(self, goal: int, tries: int) -> I64:
        """Try to swap `biggest`, so often or until the peak is at most `goal`; return the rows that were swapped."""
        self._share_budget()
        before = len(self.done)
        while tries:
            tries = int(_rounds.swap(self.job, goal, self.host.budget, tries))
            if tries:
                self._reserve(self.copies)
        return self.done[before:]

    def take(self, other: SwapRounds, rows: I64) -> None:
        """Take the links for the copies of another job."""
        self._reserve(2 * len(rows))
        _rounds.take(self.job, other.job.rows, other.job.made, rows)

    def _reserve(self, copies: int) -> None:
        for link in (self.outs, self.ins):
            link.reserve(copies)
        self.job = self.job._replace(outs=self.outs.columns, ins=self.ins.columns)

    def swaps(self) -> tuple[list[Swap], list[tuple[int, int]]]:
        """Return the swaps, in the order of their copies in, and of each the delays of its copies: see `Scheduled`."""
        r, m, n, end = self.job.rows, self.job.made, self.trace.n, self.times.end
        k = self.done[np.argsort(m.in_at[self.done] % max(self.times.period, 1), kind="stable")]
        steps = np.stack([r.after[k], r.before[k], m.release[k], m.prefetch[k], m.out[k]])
        steps -= r.after[k] // n * n
        found = [Swap(*row) for row in zip(r.buffer[k].tolist(), *steps.tolist())]
        out = np.where(m.out_at[k] == NO_COPY, 0, np.maximum(m.out_at[k] - end[m.out[k]], 0))
        into = np.maximum(m.in_at[k] - end[m.prefetch[k] - 1], 0)
        return found, list(zip(out.tolist(), into.tolist()))

    def _share_budget(self) -> None:
        """What the other jobs leave."""
        self.host.budget = self.machine.pinned - sum(host.peak for host in self.hosts if host is not self.host)

    def keep(self, states: Mapping[int, int]) -> bool:
        """Let the host keep the states of generators, if it has room for them; see `Pinned.keep`."""
        self._share_budget()
        return self.host.keep(states)


def _rows(w: Windows, times: Times) -> _rounds.Tensors:
    first, last = np.searchsorted(w.value, w.value), np.searchsorted(w.value, w.value, side="right") - 1
    columns = (w.buffer, w.size, w.after, w.before, w.value, w.out_ns, w.in_ns)
    return _rounds.Tensors(*columns, times.end[w.after], times.start[w.before], first, last)
