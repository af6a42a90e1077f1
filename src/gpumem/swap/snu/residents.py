"""Swapping on demand, followed op by op: what is on the device, in which order it was used, what the host has.

The hooks around an op (section 5.3 of the thesis): before it, make its operands resident, and evict for them; after it,
what it wrote is newer on the device (DIRTY). A run knows no future, so it keeps a value on the host until it is written
or dies, in case it is evicted once more. What the resulting plan holds there, `facts.pinned` says. How device memory is
counted is left to subclasses: in bytes (`on_demand`), or in pieces of a pool (`by_address`).
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

# A buffer that an op accesses on the device, whether it writes it, and the gap that begins there, -1 if of no bytes.
Operand = tuple[int, bool, int]


@dataclass(slots=True)
class Tally:
    """What one iteration did, and where."""

    copies_in: int = 0
    copies_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    copies_ns: int = 0  # one after the other
    dropped: int = 0  # evictions of CLEAN buffers
    short: int = 0  # ops that exceed the limit whatever was evicted
    runs: int = 0  # evictions of neighbours, where no single resident was large enough
    scattered: int = 0  # buffers for which some were evicted although enough bytes were free, but not in one piece
    most_scattered: int = 0  # the most bytes that were free at such a moment
    final: dict[int, int] = field(default_factory=dict)  # gap -> the op for which its buffer was evicted
    placed: dict[tuple[int, int], int] = field(default_factory=dict)  # buffer and op -> its offset from then on

    @property
    def copies(self) -> int:
        """Copies in both directions."""
        return self.copies_in + self.copies_out

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.bytes_in + self.bytes_out

    def evicted(self, spans: Gaps, n: int) -> I64:
        """Return for which op the buffer of each gap was evicted, as in `Swap.release`; -1 where it stayed."""
        rows, op = (np.array([*column], np.int64) for column in (self.final, self.final.values()))
        evicted = np.full(len(spans), -1)
        evicted[rows] = spans.after[rows] + 1 + (op - spans.after[rows] - 1) % n
        return evicted


def swaps(spans: Gaps, evicted: I64) -> list[Swap]:
    """Return the evictions as decisions, in their order of time."""
    rows = np.flatnonzero(evicted >= 0)
    rows = rows[np.lexsort((spans.buffer[rows], spans.after[rows], evicted[rows]))]
    chosen, release = spans.where(rows), evicted[rows]
    return Swap.each(chosen, release, chosen.before, release - 1)


class Residents(ABC):
    """The buffers on the device and on the host, iteration after iteration.

    What crosses the boundary is brought in first, in the order of last use. `ascending`: whether an op has its operands
    in that order, else as they are recorded.
    """

    def __init__(self, trace: Trace, machine: Machine, *, ascending: bool = False) -> None:
        buffers, n, self.gaps = trace.buffers, trace.n, gaps(trace)
        self.size, self.host_free = buffers.size.tolist(), machine.pinned
        self.out_ns = machine.out.copy_ns(buffers.size).tolist()
        self.in_ns = machine.into.copy_ns(buffers.size).tolist()
        mortal = np.flatnonzero(~buffers.host & ~trace.eternal)
        lifetimes = buffers.start, (buffers.end - 1) % n
        self.starts, self.ends = (Csr.grouped(op[mortal], mortal, n).tolist() for op in lifetimes)
        self.operands = _operands(trace, self.gaps, ascending)
        self.lru: dict[int, None] = {}  # what can be evicted, the least recently used first
        self.off_device: dict[int, int] = {}  # buffer -> the op for which it was evicted
        self.on_host = set[int]()  # CLEAN buffers: the host has their value
        self.tally = Tally()
        wraps = np.flatnonzero(self.gaps.before >= n)
        wraps = wraps[np.argsort(self.gaps.after[wraps], kind="stable")]
        self.last_gap = dict(zip(self.gaps.buffer[wraps].tolist(), wraps.tolist()))  # buffer -> the gap it is in
        crossing = np.flatnonzero(trace.crossing & ~buffers.host).tolist()
        self.begin([buffer for buffer in crossing if buffer not in self.last_gap])

    @abstractmethod
    def begin(self, staying: Iterable[int]) -> None:
        """Bring in what crosses the boundary: those that have no gap there, then those of `last_gap`."""

    @abstractmethod
    def allocate(self, buffer: int, op: int) -> None:
        """Give a buffer its bytes for `op`, and evict what that takes."""

    @abstractmethod
    def free(self, buffer: int) -> None:
        """Free the bytes of a buffer on the device."""

    def key(self) -> object:
        """Return all that the next iteration depends on."""
        return tuple(self.lru), tuple(sorted(self.off_device.items())), frozenset(self.on_host)

    def advance(self) -> Tally:
        """Follow one iteration op by op."""
        self.tally = Tally()
        for op, operands in enumerate(self.operands):
            self._before(op, operands)
            self.tally.short += self.is_short()
            self._after(op, operands)
        return self.tally

    def _before(self, op: int, operands: list[Operand]) -> None:
        """Make the operands of an op resident."""
        lru, off_device, tally = self.lru, self.off_device, self.tally
        for buffer, _, _ in operands:  # no operand of this op is a victim
            lru.pop(buffer, None)
        for buffer in self.starts[op]:
            self.allocate(buffer, op)
        for buffer in [buffer for buffer, _, _ in operands if buffer in off_device] if off_device else ():
            self.allocate(buffer, op)
            tally.copies_in += 1
            tally.bytes_in += self.size[buffer]
            tally.copies_ns += self.in_ns[buffer]
            tally.final[self.last_gap[buffer]] = off_device.pop(buffer)

    def _after(self, op: int, operands: list[Operand]) -> None:
        """Note what an op wrote and used, and free what dies after it."""
        for buffer, is_written, gap in operands:
            if is_written and buffer in self.on_host:
                self.forget(buffer)
            if gap >= 0:
                self.last_gap[buffer], self.lru[buffer] = gap, None
        for buffer in self.ends[op]:
            if buffer in self.on_host:
                self.forget(buffer)
            self.free(buffer)

    def is_short(self) -> bool:
        """Return whether what is on the device exceeds the limit."""
        return False

    def can_evict(self, buffer: int) -> bool:
        """Return whether the host has the value, or free bytes for it."""
        return buffer in self.on_host or self.size[buffer] <= self.host_free

    def evict(self, buffer: int, op: int) -> None:
        """Take a buffer off the device for `op`; a DIRTY one is copied out first, a CLEAN one dropped."""
        del self.lru[buffer]
        self.off_device[buffer] = op
        self.free(buffer)
        if buffer in self.on_host:
            self.tally.dropped += 1
            return
        self.tally.copies_out += 1
        self.tally.bytes_out += self.size[buffer]
        self.tally.copies_ns += self.out_ns[buffer]
        self.host_free -= self.size[buffer]
        self.on_host.add(buffer)

    def forget(self, buffer: int) -> None:
        """Free what the host keeps of a buffer: the value is overwritten or dead."""
        self.on_host.remove(buffer)
        self.host_free += self.size[buffer]


def _operands(trace: Trace, spans: Gaps, ascending: bool) -> list[list[Operand]]:
    ops, stride = trace.ops, len(trace.buffers)
    reads, writes = (rows.rows() * stride + rows.idx for rows in (ops.reads, ops.writes))
    keys, first = np.unique(np.concatenate([reads, writes]), return_index=True)
    op, buffer = np.divmod(keys, max(stride, 1))
    gap = np.full(len(keys), -1)
    solid = np.flatnonzero(spans.size > 0)
    gap[np.searchsorted(keys, (spans.after * stride + spans.buffer)[solid])] = solid
    order = np.lexsort((keys if ascending else first, op))
    order = order[~trace.buffers.host[buffer[order]]]
    columns = (column[order].tolist() for column in (buffer, np.isin(keys, writes), gap))
    ptr = np.searchsorted(op[order], np.arange(trace.n + 1)).tolist()
    rows = list(zip(*columns))
    return [rows[start:stop] for start, stop in pairwise(ptr)]
