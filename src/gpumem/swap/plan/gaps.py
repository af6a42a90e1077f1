"""Gaps: two consecutive accesses of a buffer, between which nobody needs it on the device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.trace import I64, Bool, Trace


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Spans(Shown):
    """Columns over gaps: `buffer`, and the two accesses, `after` and `before`, as ops."""

    buffer: I64
    after: I64
    before: I64

    def __len__(self) -> int:
        return len(self.buffer)

    def where(self, chosen: Bool | I64) -> Self:
        """Return some of the gaps."""
        return replace(self, **{column.name: getattr(self, column.name)[chosen] for column in fields(self)})

    def rows(self, n: int) -> dict[tuple[int, int], int]:
        """Return the row of each gap by its buffer and by its first access in the iteration of `n` ops."""
        return {gap: k for k, gap in enumerate(zip(self.buffer.tolist(), (self.after % n).tolist()))}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gaps(Spans):
    """Columns over the gaps of a trace, by buffer, then in the order of its lifetime.

    `buffer`; `after`, `before` (ops of the two accesses, `before >= n` where the gap wraps); `epoch` (how
    many accesses of this lifetime, through `after`, write the buffer: a value on the host is still good
    while it stays the same); `writes` (how many do in all); `forever` (the buffer never dies, its gaps go round).
    """

    epoch: I64
    writes: I64
    forever: Bool

    @property
    def constant(self) -> Bool:
        """Which gaps are of a buffer that lives for ever and that nothing writes: the host always holds its value."""
        never: Bool = self.forever & (self.writes == 0)
        return never

    @property
    def value(self) -> I64:
        """Which value each gap keeps, numbered over all buffers: gaps between which nothing writes keep the same.

        In a buffer that lives for ever the last value goes on into the next iteration, up to the first write there.
        """
        stride = self.writes.max(initial=0) + 1  # above any epoch, so no two values have one key
        key = self.buffer * stride + np.where(self.goes_on, self.writes, self.epoch)
        return np.unique(key, return_inverse=True)[1].astype(np.int64)

    @property
    def goes_on(self) -> Bool:
        """Which gaps keep what was written last in the iteration before, in a buffer that lives for ever."""
        old: Bool = self.forever & (self.writes > 0) & (self.epoch == 0)
        return old

    @strict
    def unrolled(self, trace: Trace) -> I64:
        """Return `after`, counted on from the start of its value, so that the gaps of a value ascend."""
        start, n = trace.buffers.start[self.buffer], trace.n
        after: I64 = start + (self.after - start) % n + np.where(self.goes_on, n, 0)
        return after


@strict
def gaps(trace: Trace) -> Gaps:
    """Return all gaps of all device buffers.

    Notes
    -----
    O(accesses log accesses). A buffer that lives for ever has as many gaps as accesses, the last one
    going round to the first access of the next iteration; any other has one less.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], [0]])
    >>> found = gaps(Trace(Buffers.make([8], [0], [3], persistent=[True]), ops))
    >>> found.after, found.before, found.epoch
    (array([0, 1, 2]), array([1, 2, 3]), array([1, 1, 2]))
    """
    n, b, touched = trace.n, trace.buffers, trace.accesses()
    buffer, op = touched.op.rows(), touched.op.idx
    life = (op - b.start[buffer]) % n
    order = np.lexsort((life, buffer))
    buffer, op, life, write = buffer[order], op[order], life[order], touched.writes[order].astype(np.int64)
    total = np.bincount(buffer, write, len(b)).astype(np.int64)
    before_buffer = np.concatenate([[0], np.cumsum(total)])[buffer]
    epoch = np.cumsum(write) - before_buffer

    final = np.diff(buffer, append=-1) != 0
    following = np.where(final, np.searchsorted(buffer, buffer), np.arange(1, len(buffer) + 1))
    forever = trace.eternal[buffer]
    keep = ~b.host[buffer] & (~final | forever)
    length = life[following] - life + n * final
    return Gaps(buffer, op, op + length, epoch, total[buffer], forever).where(keep)


def needs_copy_out(chosen: Gaps) -> Bool:
    """Return for each swapped gap whether the host does not hold its value yet.

    The gaps come in the order of `gaps`. Of the gaps of one value the first is dirty, unless nothing ever writes it.
    """
    value, dirty = chosen.value, np.zeros(len(chosen), np.bool_)
    order = np.lexsort((chosen.goes_on, value))  # of each value, the gaps before the boundary first
    dirty[order] = np.diff(value[order], prepend=-1) > 0
    return dirty & ~chosen.constant


def lasts(found: Gaps, line: Timeline) -> I64:
    """Return the nanoseconds between the two accesses of each gap."""
    n = len(line)
    arrive: I64 = line.start[found.before % n] + np.where(found.before >= n, line.makespan, 0)
    return arrive - line.end[found.after]


def straddle(found: Gaps, ops: Bool) -> Bool:
    """Return which gaps have one of `ops`, bool[n], between their accesses."""
    seen = np.cumsum(np.concatenate([ops, ops]))
    inside: Bool = seen[found.before - 1] > seen[found.after]
    return inside


def without(load: I64, found: Gaps, size: I64) -> I64:
    """Return the load with `size` bytes absent over each whole gap."""
    return load - around(found.after + 1, found.before, size, len(load))


def around(start: I64, end: I64, size: I64, n: int) -> I64:
    """Add up `size` over the ops `[start, end)` of the circle of `n`.

    >>> around(np.array([1, 3]), np.array([3, 6]), np.array([1, 10]), 4)
    array([10, 11,  1, 10])
    """
    change = np.zeros(n, np.int64)
    np.add.at(change, start % n, size)
    np.add.at(change, end % n, -size)
    over = (size * (end // n - start // n)).sum()  # what goes on over a boundary is there at op 0
    total: I64 = np.cumsum(change) + over
    return total


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Windows(Spans):
    """Columns over gaps, ascending by value, then by `after`.

    `buffer`; `after`, `before`: the accesses, in ops since the iteration in which the value was made; `size` in
    bytes; `value`: gaps of one value share its host copy, which can be made from the end of op
    `opens` on; `constant`: nothing ever writes the buffer, which lives for ever, so that the host always holds it;
    `out_ns`, `in_ns`: the copies in ns, `out_ns` 0 of a constant.
    """

    size: I64
    value: I64
    opens: I64
    constant: Bool
    out_ns: I64
    in_ns: I64


@strict
def windows(trace: Trace, machine: Machine) -> Windows:
    """Return a window for every gap of every device buffer that holds bytes and in which some op runs.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], [], [0]], [[], [], [0], []])
    >>> found = windows(Trace(Buffers.make([8], [0], [4], persistent=[True]), ops), Machine.named("h200"))
    >>> found.after, found.before  # between ops 1 and 2, and 2 and 3, there is none
    (array([3]), array([5]))
    """
    g = gaps(trace)
    size, value, after = trace.buffers.size[g.buffer], g.value, g.unrolled(trace)
    opens = np.full(len(g), np.iinfo(np.int64).max)
    np.minimum.at(opens, value, after)
    w = Windows(
        g.buffer,
        after,
        after + g.before - g.after,
        size,
        value,
        opens[value],
        g.constant,
        np.where(g.constant, 0, machine.out.copy_ns(size)),
        machine.into.copy_ns(size),
    )
    w = w.where((size > 0) & (g.before > g.after + 1))
    return w.where(np.lexsort((w.after, w.value)))
