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
        return {gap: row for row, gap in enumerate(zip(self.buffer.tolist(), (self.after % n).tolist()))}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Gaps(Spans):
    """Columns over the gaps of a trace, by buffer, then in the order of its lifetime.

    `buffer`; `after`, `before` (ops of the two accesses, `before >= n` where the gap wraps); `size` in bytes; `value`
    (gaps between which nothing writes keep the same value, numbered over all buffers; in a buffer that lives for ever
    the last value goes on into the next iteration, up to the first write there); `since` (`after`, counted on from the
    iteration in which the value was made, so that the gaps of a value ascend); `constant` (nothing ever writes the
    buffer, which lives for ever, so that the host always holds its value).
    """

    size: I64
    value: I64
    since: I64
    constant: Bool


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
    >>> found.after, found.before, found.value
    (array([0, 1, 2]), array([1, 2, 3]), array([0, 0, 1]))
    """
    n, table, touched = trace.n, trace.buffers, trace.accesses()
    buffer, op = touched.op.rows(), touched.op.idx
    life = (op - table.start[buffer]) % n
    order = np.lexsort((life, buffer))
    buffer, op, life, write = buffer[order], op[order], life[order], touched.writes[order].astype(np.int64)
    total = np.bincount(buffer, write, len(table)).astype(np.int64)
    epoch = np.cumsum(write) - np.concatenate([[0], np.cumsum(total)])[buffer]  # writes of this lifetime so far

    final = np.diff(buffer, append=-1) != 0
    following = np.where(final, np.searchsorted(buffer, buffer), np.arange(1, len(buffer) + 1))
    forever, writes = trace.eternal[buffer], total[buffer]
    is_gap = ~table.host[buffer] & (~final | forever)
    goes_on = forever & (writes > 0) & (epoch == 0)  # what was written last in the iteration before
    key = buffer * (total.max(initial=0) + 1) + np.where(goes_on, writes, epoch)
    value = np.zeros(len(key), np.int64)
    value[is_gap] = np.unique(key[is_gap], return_inverse=True)[1]
    return Gaps(
        buffer=buffer,
        after=op,
        before=op + life[following] - life + n * final,
        size=table.size[buffer],
        value=value,
        since=table.start[buffer] + life + n * goes_on,
        constant=forever & (writes == 0),
    ).where(is_gap)


def needs_copy_out(chosen: Gaps) -> Bool:
    """Return for each swapped gap whether the host does not hold its value yet.

    The gaps come in the order of `gaps`. Of the gaps of one value the first is dirty, unless nothing ever writes it.
    """
    dirty, order = np.zeros(len(chosen), np.bool_), np.lexsort((chosen.since, chosen.value))
    dirty[order] = np.diff(chosen.value[order], prepend=-1) > 0
    return dirty & ~chosen.constant


def lasts(gaps_: Gaps, line: Timeline) -> I64:
    """Return the nanoseconds between the two accesses of each gap."""
    n = len(line)
    arrive: I64 = line.start[gaps_.before % n] + np.where(gaps_.before >= n, line.makespan, 0)
    return arrive - line.end[gaps_.after]


def straddle(gaps_: Gaps, ops: Bool) -> Bool:
    """Return which gaps have one of `ops`, bool[n], between their accesses."""
    seen = np.cumsum(np.concatenate([ops, ops]))
    inside: Bool = seen[gaps_.before - 1] > seen[gaps_.after]
    return inside


def without(load: I64, gaps_: Gaps) -> I64:
    """Return the live bytes with the buffer of each gap absent over the whole of it."""
    return load - around(gaps_.after + 1, gaps_.before, gaps_.size, len(load))


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
class Windows(Gaps):
    """Columns over gaps, ascending by value, then by `after`.

    As `Gaps`, but that `after` and `before` are in ops since the iteration in which the value was made, so that `since`
    is `after`. Gaps of one value share its host copy, which can be made from the end of op `opens` on; `out_ns`,
    `in_ns`: the copies in ns, `out_ns` 0 of a constant.
    """

    opens: I64
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
    every = gaps(trace)
    opens = np.full(len(every), np.iinfo(np.int64).max)
    np.minimum.at(opens, every.value, every.since)
    out_ns, in_ns = np.where(every.constant, 0, machine.out.copy_ns(every.size)), machine.into.copy_ns(every.size)
    before, same = every.since + every.before - every.after, (every.size, every.value, every.since, every.constant)
    candidates = Windows(every.buffer, every.since, before, *same, opens[every.value], out_ns, in_ns)
    candidates = candidates.where((every.size > 0) & (every.before > every.after + 1))
    return candidates.where(np.lexsort((candidates.after, candidates.value)))
