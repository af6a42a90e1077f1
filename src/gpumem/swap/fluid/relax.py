"""Swapping relaxed to fluid copies: windows of time for each gap, and the load that no swap takes away.

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


def least_again(trace: Trace, duration: I64, w: Windows) -> F64:
    """Return the nanoseconds that each gap of `w` costs at least if it is dropped; infinite where it cannot be.

    `duration`, int64[n]: ns of each op. Inputs cost nothing, whether they are there or not. O(ops of all chains).
    """
    v, n = Origins.of(trace), trace.n
    key = np.repeat(np.arange(len(trace.buffers)), np.diff(v.access_ptr)) * n + v.access
    row = np.searchsorted(key, w.buffer * n + w.after % n)
    can = (v.left.why[row] == FINE) & (w.after % n + w.before - w.after < n)
    first, count = v.left.first[row], np.where(can, v.left.stop[row] - v.left.first[row], 0)
    gap = np.repeat(np.arange(len(w)), count)
    op = v.writer[np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(gap))]
    one = np.unique(op * len(trace.buffers) + w.buffer[gap])  # every buffer that an op can make again, once
    whole = np.bincount(one // len(trace.buffers), trace.buffers.size[one % len(trace.buffers)], n)
    share = duration[op] * w.size[gap] / whole[op]
    cost: F64 = np.where(can, np.bincount(gap, share, len(w)), np.inf)
    return cost


TINY = 5e-4  # gaps that add up to less than this part of the peak load at every op leave for nothing


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fluid(Shown):
    """What the program is made from.

    `time`: when op i starts, and the iteration ends; `held`: bytes at each op with the buffers of `w` present and
    the tiny ones away; instants of each gap of `w`: `opens` (its value may be copied out from then on),
    `first` and `last` (the buffer may be away then), `closes` (it is back); `again`: ns that it costs at least to make
    its value again, infinite where that is not asked, or not possible.
    """

    n: int
    time: I64
    held: I64
    w: Windows
    opens: I64
    first: I64
    last: I64
    closes: I64
    again: F64
    duplex: bool
    stalls: bool

    def where(self, chosen: Bool | I64) -> Fluid:
        """Keep some of the gaps."""
        columns = (self.opens[chosen], self.first[chosen], self.last[chosen], self.closes[chosen], self.again[chosen])
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
    """Return the relaxation of swapping in `trace`; with `stalls`, ops may wait, and with `recompute`, run again.

    The smallest gaps, as far as they add up to `tiny` of the peak load at every op, leave for nothing.

    Notes
    -----
    A copy is whole: without stalls a buffer is away from the end of its copy-out to the start of its copy-in, at
    the widest. A gap too short for its copies takes no part then.
    """
    n, w = trace.n, windows(trace, machine)
    duration = machine.durations(trace)
    times = Times.in_a_row(duration)
    time, held = times.start[: n + 1], _held(trace)
    if not stalls:
        w = w.where(times.start[w.before] - times.end[w.after] >= w.in_ns)
    free = _tiny(w, n, tiny * trace.peak_live_bytes)
    held, w = held - _covered(w.where(free), n), w.where(~free)
    instants = (2 * w.opens + 1, 2 * w.after + 2, 2 * w.before - 1, 2 * w.before)
    again = least_again(trace, duration, w) if recompute else np.full(len(w), np.inf)
    fluid = Fluid(n, time, held, w, *instants, again, machine.duplex, stalls)
    return fluid if stalls else _whole_copies(fluid, times)


def _whole_copies(f: Fluid, times: Times) -> Fluid:
    """Narrow the windows where nothing stalls: a buffer is away only between whole copies."""
    w = f.w
    e, s = times.end[w.after], times.start[w.before]
    opens = np.full(int(w.value.max(initial=-1)) + 1, 2**61)  # of a value: the first gap that can hold both copies
    alone = s - e >= w.in_ns + w.out_ns
    np.minimum.at(opens, w.value[alone], w.after[alone] + 1)
    can = opens[w.value] < 2**61
    f, w, e, s, first_op = f.where(can), w.where(can), e[can], s[can], opens[w.value[can]]
    first = np.maximum(times.begins(np.maximum(e, times.start[first_op] + w.out_ns)), w.after + 1)
    last = np.minimum(times.started(s - w.in_ns), w.before)
    return replace(f, opens=2 * first_op, first=2 * first, last=2 * last).where(first <= last)


def _held(trace: Trace) -> I64:
    """Bytes held at each op, from a buffer's allocation through its last access: what comes after may be reused."""
    n, b, last = trace.n, trace.buffers, trace.last_touch()
    last[trace.eternal] = n - 1
    mine = np.flatnonzero(~b.host & (last >= 0))
    return around(b.start[mine], b.start[mine] + last[mine] + 1, b.size[mine], n)


def _covered(w: Windows, n: int) -> I64:
    """Bytes at each op that lie in gaps."""
    return around(w.after + 1, w.before, w.size, n)


def _tiny(w: Windows, n: int, most: float) -> Bool:
    """The smallest gaps, as many as cover at most `most` bytes at every op."""
    order = np.argsort(w.size, kind="stable")
    count = bisect_right(range(1, len(w) + 1), most, key=lambda k: float(_covered(w.where(order[:k]), n).max()))
    tiny = np.zeros(len(w), np.bool_)
    tiny[order[:count]] = True
    return tiny
