"""Swapping on demand, followed op by op: who is on the device, in which order they were used, what the host has.

A run knows no future, so it keeps a value on the host until it is written or dies, in case it is evicted again. What
the plan that comes out of it holds there, `facts.pinned` says. What room is, those say who follow it: bytes
(`on_demand`), or pieces of a pool (`by_address`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Swap
from gpumem.swap.plan.gaps import Gaps, gaps
from gpumem.trace import I64, Csr, Trace


@dataclass(slots=True)
class Tally:
    """What one iteration did, and where."""

    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    copies_ns: int = 0  # one after the other
    dropped: int = 0  # evictions of CLEAN buffers
    short: int = 0  # ops for which there was no room whatever was evicted
    runs: int = 0  # evictions of neighbours, where no single resident was large enough
    scattered: int = 0  # buffers for which somebody had to go although there were bytes enough, not in one piece
    most_scattered: int = 0  # the most bytes that were free at such a moment
    final: dict[int, int] = field(default_factory=dict)  # gap -> the op for which its buffer was evicted
    placed: dict[tuple[int, int], int] = field(default_factory=dict)  # buffer and op -> its offset from then on

    @property
    def copies(self) -> int:
        """Both ways."""
        return self.copies_in + self.copies_out

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_in + self.bytes_out

    def evicted(self, found: Gaps, n: int) -> I64:
        """Return for which op the buffer of each gap was evicted, as in `Swap.release`; -1 where it stayed."""
        rows, op = (np.array([*column], np.int64) for column in (self.final, self.final.values()))
        evicted = np.full(len(found), -1)
        evicted[rows] = found.after[rows] + 1 + (op - found.after[rows] - 1) % n
        return evicted


def swaps(found: Gaps, evicted: I64) -> list[Swap]:
    """Return the evictions as decisions, in the order in which they come about."""
    taken = np.flatnonzero(evicted >= 0)
    taken = taken[np.lexsort((found.buffer[taken], found.after[taken], evicted[taken]))]
    chosen, release = found.where(taken), evicted[taken]
    return Swap.each(chosen, release, chosen.before, release - 1)


class Residents(ABC):
    """Who is where; all that crosses the boundary is brought in first, those last that can leave then.

    `ascending`: whether an op has its operands in that order, else as they are recorded.
    """

    def __init__(self, trace: Trace, machine: Machine, *, ascending: bool = False) -> None:
        b, n, self.gaps = trace.buffers, trace.n, gaps(trace)
        self.size, self.room = b.size.tolist(), machine.pinned
        self.out_ns, self.in_ns = machine.out.copy_ns(b.size).tolist(), machine.into.copy_ns(b.size).tolist()
        mortal = np.flatnonzero(~b.host & ~trace.eternal)
        self.starts, self.ends = (Csr.grouped(op[mortal], mortal, n).tolist() for op in (b.start, (b.end - 1) % n))
        self.touched = _touched(trace, self.gaps, ascending)
        self.used: dict[int, None] = {}  # who can go, the least recently used first
        self.away: dict[int, int] = {}  # buffer -> the op for which it was evicted
        self.on_host = set[int]()
        self.turn = Tally()
        wraps = np.flatnonzero(self.gaps.before >= n)
        wraps = wraps[np.argsort(self.gaps.after[wraps], kind="stable")]
        self.gap = dict(zip(self.gaps.buffer[wraps].tolist(), wraps.tolist()))  # buffer -> the last gap that it was in
        inside = np.flatnonzero(trace.crossing & ~b.host).tolist()
        self.begin([x for x in inside if x not in self.gap])

    @abstractmethod
    def begin(self, staying: Iterable[int]) -> None:
        """Bring in what crosses the boundary: those that have no gap there, then those of `gap`."""

    @abstractmethod
    def place(self, b: int, op: int) -> None:
        """Give `b` its bytes for `op`, and evict whom that takes."""

    @abstractmethod
    def give_back(self, b: int) -> None:
        """Take its bytes from `b`."""

    def key(self) -> object:
        """Return all that the next iteration depends on."""
        return tuple(self.used), tuple(sorted(self.away.items())), frozenset(self.on_host)

    def advance(self) -> Tally:
        """Follow one iteration op by op."""
        turn = self.turn = Tally()
        used, away, gap, on_host = self.used, self.away, self.gap, self.on_host
        for i, (operands, made, dead) in enumerate(zip(self.touched, self.starts, self.ends)):
            for b, _, _ in operands:  # no operand of this op is a victim
                used.pop(b, None)
            for b in made:
                self.place(b, i)
            for b in [b for b, _, _ in operands if b in away] if away else ():
                self.place(b, i)
                turn.copies_in += 1
                turn.bytes_in += self.size[b]
                turn.copies_ns += self.in_ns[b]
                turn.final[gap[b]] = away.pop(b)
            turn.short += self.is_short()
            for b, written, begun in operands:
                if written and b in on_host:
                    self.forget(b)
                if begun >= 0:
                    gap[b], used[b] = begun, None
            for b in dead:
                if b in on_host:
                    self.forget(b)
                self.give_back(b)
        return turn

    def is_short(self) -> bool:
        """Whether there is no room for what is on the device."""
        return False

    def may_go(self, b: int) -> bool:
        """Whether the host has the value, or room for it."""
        return b in self.on_host or self.size[b] <= self.room

    def evict(self, b: int, op: int) -> None:
        """Take `b` off the device for `op`; a DIRTY buffer is copied out first, a CLEAN one dropped."""
        del self.used[b]
        self.away[b] = op
        self.give_back(b)
        if b in self.on_host:
            self.turn.dropped += 1
            return
        self.turn.copies_out += 1
        self.turn.bytes_out += self.size[b]
        self.turn.copies_ns += self.out_ns[b]
        self.room -= self.size[b]
        self.on_host.add(b)

    def forget(self, b: int) -> None:
        """Give back what the host keeps of `b`: the value is gone."""
        self.on_host.remove(b)
        self.room += self.size[b]


def _touched(trace: Trace, found: Gaps, ascending: bool) -> list[list[tuple[int, bool, int]]]:
    """Of each op its operands on the device, whether it writes them, and the gap of some bytes that begins there."""
    ops, stride = trace.ops, len(trace.buffers)
    reads, writes = (rows.rows() * stride + rows.idx for rows in (ops.reads, ops.writes))
    keys, first = np.unique(np.concatenate([reads, writes]), return_index=True)
    op, buffer = np.divmod(keys, max(stride, 1))
    begun = np.full(len(keys), -1)
    solid = np.flatnonzero(found.size > 0)
    begun[np.searchsorted(keys, (found.after * stride + found.buffer)[solid])] = solid
    order = np.lexsort((keys if ascending else first, op))
    order = order[~trace.buffers.host[buffer[order]]]
    columns = (column[order].tolist() for column in (buffer, np.isin(keys, writes), begun))
    ptr = np.searchsorted(op[order], np.arange(trace.n + 1)).tolist()
    rows = list(zip(*columns))
    return [rows[a:b] for a, b in pairwise(ptr)]
