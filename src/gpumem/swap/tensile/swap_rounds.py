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
from dataclasses import dataclass

import numpy as np

from gpumem.columns import I64
from gpumem.machine import Machine
from gpumem.swap.accounts.link import LinkTimes
from gpumem.swap.accounts.pinned import Pinned
from gpumem.swap.accounts.times import Times
from gpumem.swap.tensile._stabs import Stabs
from gpumem.swap.tensile.peak import LoadProfile, SwapTask
from gpumem.swap.windows import Windows, windows
from gpumem.trace import Trace


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
        self.trace, self.machine, self.most, self.hosts = trace, machine, most, hosts
        self.accounting, self.rest = accounting, rest
        self.times = Times.serial(trace, machine, duration)
        self.footprint = LoadProfile(trace)
        found = windows(trace, machine)
        least = [int(ns[ns > 0].min(initial=2**62)) for ns in (found.out_ns, found.in_ns)]
        self.outs = LinkTimes(self.times.period, least[0] if machine.duplex else min(least))
        self.ins = LinkTimes(self.times.period, least[1]) if machine.duplex else self.outs
        self.rows = _Rows.of(found, self.times)
        self.host = Pinned(trace, found, machine.pinned)
        hosts.append(self.host)
        order = np.lexsort((found.after - found.before, -found.size))
        self.order = order.tolist()
        self.place = np.argsort(order).tolist()  # of each row in that order
        self.stabs = Stabs(found.after[order] + 1, found.before[order], trace.n)
        self.tasks: dict[int, SwapTask] = {}
        self.on_host: dict[int, int] = {}  # values that were copied out: the first row that is absent
        self.buffers: set[int] = set()
        self._next = -1

    @property
    def peak(self) -> int:
        """The bytes at the peak."""
        return self.footprint.bytes

    def biggest(self) -> int:
        """Return the row of the biggest tensor at the peak that is worth a try, -1 if there is none left."""
        if self._next < 0:
            found = self.stabs.biggest(self.footprint.op)
            self._next = self.order[found] if found >= 0 else -1
        return self._next

    def size(self, row: int) -> int:
        """Return the bytes of a row; no row has fewer than none."""
        return self.rows.size[row] if row >= 0 else -1

    def swap(self, row: int) -> list[tuple[bool, int, int]] | None:
        """Try to swap the tensor of `row` so that the peak gets lower; return the copies made: (in?, start, ns).

        None where that fails; the row is not tried at this op again.
        """
        self._next = -1
        made = self._tasks(row)
        if made is None or not self._hold(made, row):
            return None
        r, copies = self.rows, []
        for k, task in made.items():
            self.tasks[k] = task
            self._kill(k)
            size = r.size[k]
            self.footprint.leave(*task.absent(self.times, r.in_ns[k], self.accounting), size)
            if task.out_at is not None:
                copies.append((False, task.out_at, r.out_ns[k]))
            copies.append((True, task.in_at, r.in_ns[k]))
        value = r.value[row]
        if value not in self.on_host:
            self.on_host[value] = min(made)
        self.buffers.add(r.buffer[row])
        if r.out_ns[row]:  # before its first absence a value would need a copy-out of its own
            for k in range(r.first[row], self.on_host[value]):
                self._kill(k)
        self.take(copies)
        return copies

    def take(self, copies: list[tuple[bool, int, int]]) -> None:
        """Take the link for copies, be they of this job or of another."""
        for into, at, ns in copies:
            (self.ins if into else self.outs).take(at, ns)

    def _kill(self, row: int) -> None:
        self.stabs.dead[self.place[row]] = True

    def _tasks(self, row: int) -> dict[int, SwapTask] | None:
        """Return the swap tasks, by row, that make the tensor of `row` absent at the peak."""
        r = self.rows
        new = r.value[row] not in self.on_host
        if new and r.buffer[row] not in self.buffers and len(self.buffers) >= self.most:
            self._kill(row)
            return None
        if not new or not r.out_ns[row]:
            task = self._into(row, row)
            return {row: task} if task is not None else None
        for first in range(r.first[row], row + 1):
            made = self._from(first, row)
            if row in made:
                return made
        return None

    def keep(self, states: Mapping[int, int]) -> bool:
        """Let the host keep the states of generators, if it has room for them; see `Pinned.keep`."""
        self._share_budget()
        return self.host.keep(states)

    def _share_budget(self) -> None:
        """What the other jobs leave."""
        self.host.budget = self.machine.pinned - sum(host.peak for host in self.hosts if host is not self.host)

    def _hold(self, made: dict[int, SwapTask], row: int) -> bool:
        """Let the host hold what is swapped through the gap of `row`; later gaps are left out where it has no room."""
        self._share_budget()
        fits = [k for k in sorted(made) if self.host.take(k, made[k].swap.out, made[k].swap.prefetch)]
        if all(k in fits for k in made if k <= row):
            for k in made.keys() - set(fits):
                del made[k]
            return True
        for k in fits:
            self.host.drop(k)
        self._kill(row)
        return False

    def _from(self, first: int, row: int) -> dict[int, SwapTask]:
        """Copy the tensor out in gap `first`, and in again there and before the later accesses where it fits."""
        r = self.rows
        stop = min(r.closes[first], int(self.times.start[self._peak_after(row)]))  # out before that op starts
        out = self.outs.earliest(r.opens[first], stop, r.out_ns[first])
        task = self._into(first, row, out) if out >= 0 else None
        if task is None:
            return {}
        made = {first: task}
        for k in range(first + 1, (r.last[row] if self.rest else row) + 1):
            later = self._into(k, row)
            if later is not None:
                made[k] = later
        return made

    def _into(self, k: int, row: int, out: int = -1) -> SwapTask | None:
        """Drop the tensor of `row` in gap `k`, copied out at `out` unless the host has it, and copy it in again."""
        r, start = self.rows, self.rows.opens[k] if out < 0 else out + self.rows.out_ns[k]
        if k == row:
            start = max(start, self._back_from(row))
        into = self.ins.latest(start, r.closes[k], r.in_ns[k])
        if into < 0:
            return None
        copied = (out, r.out_ns[k]) if out >= 0 else None
        return SwapTask.at(self.times, (r.buffer[k], r.after[k], r.before[k]), copied, (into, r.in_ns[k]))

    def _peak_after(self, row: int) -> int:
        """The op of the peak, as it follows the access before the gap of `row`."""
        after = self.rows.after[row]
        return after + (self.footprint.op - after) % self.trace.n

    def _back_from(self, row: int) -> int:
        """When the tensor may start to come in: the op of the peak has ended; by the paper's accounting, sooner."""
        peak = self._peak_after(row)
        if self.accounting == "exact":
            return int(self.times.end[peak])
        return int(self.times.start[peak]) - self.rows.in_ns[row] + 1


@dataclass(slots=True)
class _Rows:
    """The windows of a trace as lists, when their accesses end and start, first and last row of each one's value."""

    buffer: list[int]
    size: list[int]
    after: list[int]
    before: list[int]
    value: list[int]
    out_ns: list[int]
    in_ns: list[int]
    opens: list[int]
    closes: list[int]
    first: list[int]
    last: list[int]

    @classmethod
    def of(cls, w: Windows, times: Times) -> _Rows:
        columns = (w.buffer, w.size, w.after, w.before, w.value, w.out_ns, w.in_ns)
        times_ns = (times.end[w.after], times.start[w.before])
        first = np.searchsorted(w.value, w.value)
        last = np.searchsorted(w.value, w.value, side="right") - 1
        return cls(*(c.tolist() for c in (*columns, *times_ns, first, last)))
