"""Swapping relaxed to fluid copies: windows of time for each gap, and the live bytes that no swap takes away.

An iteration of n ops has 2 n instants: `2 i` is the start of op i, `2 i + 1` its end. Where nothing stalls, the
end of an op is the start of the next one, and only even instants are breakpoints. Instants count on from the
iteration in which a value was made, so nothing wraps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.display import Shown
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.times import Times
from gpumem.swap.plan.gaps import Windows, around, windows
from gpumem.swap.plan.values import FINE, Origins
from gpumem.trace import COMPUTE, F64, I64, Bool, Trace


def least_recompute_ns(trace: Trace, duration: I64, gaps: Windows) -> F64:
    """Return the nanoseconds that each gap of `gaps` costs at least if it is dropped; infinite where it cannot be.

    `duration`, int64[n]: ns of each op. Inputs cost nothing, whether they are there or not. O(ops of all chains).
    """
    origins, ops = Origins.of(trace), trace.n
    key = np.repeat(np.arange(len(trace.buffers)), np.diff(origins.access_ptr)) * ops + origins.access
    row = np.searchsorted(key, gaps.buffer * ops + gaps.after % ops)
    can = (origins.left.why[row] == FINE) & (gaps.after % ops + gaps.before - gaps.after < ops)
    first, count = origins.left.first[row], np.where(can, origins.left.stop[row] - origins.left.first[row], 0)
    gap = np.repeat(np.arange(len(gaps)), count)
    op = origins.writer[np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(gap))]
    one = np.unique(op * len(trace.buffers) + gaps.buffer[gap])  # every buffer that an op can recompute, once
    whole = np.bincount(one // len(trace.buffers), trace.buffers.size[one % len(trace.buffers)], ops)
    share = duration[op] * gaps.size[gap] / whole[op]
    cost: F64 = np.where(can, np.bincount(gap, share, len(gaps)), np.inf)
    return cost


# Gaps that add up to less than this part of the peak live bytes at every op leave for nothing, which can only
# lower the bound. Not tuned: most gaps of a net are small, and each costs a column a breakpoint.
TINY = 5e-4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fluid(Shown):
    """What the program is made from.

    `time`: when op i starts, and the iteration ends; `held`: bytes at each op with the buffers of `w` present and
    the tiny ones away; instants of each gap of `w`: `opens` (its value may be copied out from then on),
    `first` and `last` (the buffer may be off the device then), `closes` (it is back); `recompute_ns`: what it takes at
    least to recompute its value, infinite where that is not asked, or not possible.
    """

    n: int
    time: I64
    held: I64
    w: Windows
    opens: I64
    first: I64
    last: I64
    closes: I64
    recompute_ns: F64
    duplex: bool
    stalls: bool

    def where(self, chosen: Bool | I64) -> Fluid:
        """Keep some of the gaps."""
        columns = (
            self.opens[chosen],
            self.first[chosen],
            self.last[chosen],
            self.closes[chosen],
            self.recompute_ns[chosen],
        )
        return Fluid(self.n, self.time, self.held, self.w.where(chosen), *columns, self.duplex, self.stalls)

    def at(self, instant: I64) -> I64:
        """When an instant comes, in ns, if nothing stalls."""
        turn, within = np.divmod(instant, 2 * self.n)
        when: I64 = turn * self.time[-1] + self.time[(within + 1) // 2]
        return when


@strict
def in_a_row(trace: Trace, machine: Machine) -> bool:
    """Whether unswapped ops follow one another without a wait, be it for another stream or for the host.

    The fluid bounds nothing where they do not.
    """
    alone = len(np.unique(trace.ops.stream)) == 1 and bool((trace.ops.role == COMPUTE).all())
    return alone and not machine.host_ns


@strict
def relax(trace: Trace, machine: Machine, *, stalls: bool, recompute: bool = False, tiny: float = TINY) -> Fluid:
    """Return the relaxation of swapping in `trace`; with `stalls` ops may wait, with `recompute` values be recomputed.

    The smallest gaps, as far as they add up to `tiny` of the peak live bytes at every op, leave for nothing.

    Notes
    -----
    A copy is whole: without stalls a buffer is off the device from the end of its copy-out to the start of its copy-in,
    at the widest. A gap too short for its copies takes no part then.
    """
    ops, gaps = trace.n, windows(trace, machine)
    duration = machine.durations(trace)
    times = Times.in_a_row(duration)
    time, held = times.start[: ops + 1], _held(trace)
    if not stalls:
        gaps = gaps.where(times.start[gaps.before] - times.end[gaps.after] >= gaps.in_ns)
    free = _tiny(gaps, ops, tiny * trace.peak_live_bytes)
    held, gaps = held - _covered(gaps.where(free), ops), gaps.where(~free)
    instants = (2 * gaps.opens + 1, 2 * gaps.after + 2, 2 * gaps.before - 1, 2 * gaps.before)
    recompute_ns = least_recompute_ns(trace, duration, gaps) if recompute else np.full(len(gaps), np.inf)
    fluid = Fluid(ops, time, held, gaps, *instants, recompute_ns, machine.duplex, stalls)
    return fluid if stalls else _whole_copies(fluid, times)


def _whole_copies(fluid: Fluid, times: Times) -> Fluid:
    """Narrow the windows where nothing stalls: a buffer is off the device only between whole copies."""
    gaps = fluid.w
    ends, starts = times.end[gaps.after], times.start[gaps.before]
    opens = np.full(int(gaps.value.max(initial=-1)) + 1, 2**61)  # of a value: the first gap that can hold both copies
    alone = starts - ends >= gaps.in_ns + gaps.out_ns
    np.minimum.at(opens, gaps.value[alone], gaps.after[alone] + 1)
    can = opens[gaps.value] < 2**61
    first_op, fluid, gaps, ends, starts = (
        opens[gaps.value[can]],
        fluid.where(can),
        gaps.where(can),
        ends[can],
        starts[can],
    )
    first = np.maximum(times.begins(np.maximum(ends, times.start[first_op] + gaps.out_ns)), gaps.after + 1)
    last = np.minimum(times.started(starts - gaps.in_ns), gaps.before)
    return replace(fluid, opens=2 * first_op, first=2 * first, last=2 * last).where(first <= last)


def _held(trace: Trace) -> I64:
    """Bytes held at each op, from a buffer's allocation through its last access: what comes after may be reused."""
    ops, table, last = trace.n, trace.buffers, trace.last_touch()
    last[trace.eternal] = ops - 1
    counted = np.flatnonzero(~table.host & (last >= 0))
    return around(table.start[counted], table.start[counted] + last[counted] + 1, table.size[counted], ops)


def _covered(gaps: Windows, ops: int) -> I64:
    """Bytes at each op that lie in gaps."""
    return around(gaps.after + 1, gaps.before, gaps.size, ops)


def _tiny(gaps: Windows, ops: int, most: float) -> Bool:
    """The smallest gaps, as many as cover at most `most` bytes at every op."""
    order = np.argsort(gaps.size, kind="stable")
    counts = range(1, len(gaps) + 1)
    count = bisect_right(counts, most, key=lambda some: float(_covered(gaps.where(order[:some]), ops).max()))
    tiny = np.zeros(len(gaps), np.bool_)
    tiny[order[:count]] = True
    return tiny
