"""How the two copy engines would run if memory delayed nothing, and how many bytes would then be live.

The evaluator of `search`: copies out run as soon as they can, copies in as late as they can, each engine in its own
order. The live bytes are followed through op starts, ends of copies out and starts of copies in::

    op starts       |--------|----|------------|-----|      live bytes rise to what the op holds
    out engine        [ x ][ y ]                            and fall where a copy ends
    in engine                        [ y ]  [ x ]           and rise where a copy starts

Positions: `2 i` is the place before op `i`, where copies are issued and values are recomputed, `2 i + 1` is op `i`.
The schedule repeats with a period, so times lie on a circle: a gap may begin in one iteration and end in the next.
Points are those positions at which the live bytes can exceed the limit; the evaluator looks at no others.

What a swapped gap is good for, from the copy-out that its value needs and the copy-in that ends it::

    access            [ copy out ]      [ copy in ] access     COPIED: off the device between the two copies
    access .................            [ copy in ] access     CLEAN: the host has the value, off from the access on
    access     [ copy out of another gap ]  [ copy in ] access     LATE: that copy ends after the access
    access    [ copy in ] [ copy out ]                         USELESS: back before it has left
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.search._recompute_state import POINTS, RecomputeState
from gpumem.trace import I64, Bool

FAR = 2**60  # ns or bytes: beyond all times and sizes, and twice it is still an int64
# Of a second of engine time in each second of an iteration, in units of cost: it breaks ties in favour of the plan that
# copies less. Not tuned.
ENGINE_COST = 1e-3
OUT, IN = range(2)  # the engines, in `SwapState.lengths`
COPIED, CLEAN, LATE, USELESS = range(4)  # what a swapped gap is good for


class SwapProblem(NamedTuple):
    """What a search does not change. m gaps, n ops; `after` and `before` as an op and the iteration that it is of."""

    begin: I64  # n: ns, when each op starts without a plan, all by their fastest variants
    end: I64  # n
    after: I64  # m
    after_iteration: I64
    before: I64
    before_iteration: I64
    size: I64
    out_ns: I64
    in_ns: I64
    value: I64
    first: I64  # of each value: its gaps are `first` up to `last`
    last: I64
    period: int  # ns of an iteration
    duplex: bool
    constant: Bool  # m: the host always holds it
    hosted: I64  # 2 n: bytes on the host without swapping, at the place before each op and at the op
    pinned: int  # bytes, or -1 where all gaps together fit
    placed: bool  # a copy-in needs its address from the start of the op in which it starts, not only bytes


class SwapState(NamedTuple):
    """Which gaps are swapped, in which order each engine copies, and how long each op is made to wait."""

    selected: Bool  # m
    copied_by: I64  # m: the gap that copies the value out, -1 where none has to
    outs: I64  # m: gaps in the order of their copies out, `lengths[OUT]` of them
    ins: I64  # m: gaps in the order of their copies in, `lengths[IN]` of them
    lengths: I64  # 2: of both orders
    stall: I64  # n: ns

    @classmethod
    def of(cls, problem: SwapProblem) -> SwapState:
        """Swap nothing."""
        gaps, ops = len(problem.size), len(problem.begin)
        outs, ins = np.zeros((2, gaps + 1), np.int64)
        return cls(
            selected=np.zeros(gaps, np.bool_),
            copied_by=np.full(gaps, -1),
            outs=outs,
            ins=ins,
            lengths=np.zeros(2, np.int64),
            stall=np.zeros(ops, np.int64),
        )

    def copy(self) -> SwapState:
        """Return a copy that shares nothing."""
        return SwapState._make(column.copy() for column in self)


class Evaluation(NamedTuple):
    """What follows from a state: times in ns since the iteration in which a value was made."""

    begin: I64  # 2 n: when each position begins, with stalls and recomputations
    end: I64  # n: when each op ends
    period: I64  # 1: length of the iteration
    opens: I64  # m: when the access before the gap ends
    closes: I64  # m: when the access after it starts
    out_end: I64  # m: when the copy-out has ended
    in_start: I64  # m: when the copy-in starts
    kind: I64  # m: COPIED, CLEAN, LATE or USELESS
    freed: I64  # 2 n + 1: bytes that leave at each point without a copy of their own
    freed_early: I64  # 2 n + 1: bytes that leave before the op of a point waits
    out_time: I64  # m: ends of copies out round the circle, ascending
    out_size: I64
    in_time: I64  # m: starts of copies in, ascending
    in_size: I64
    host_change: I64  # 2 n + 1: changes of the bytes on the host, from each place and op to the next
    worst: I64  # 1: the point at which the live bytes exceed the limit by most

    @classmethod
    def of(cls, problem: SwapProblem) -> Evaluation:
        """Allocate all columns."""
        ops, gaps = len(problem.begin), len(problem.size)
        points = 2 * ops + 1
        columns = (2 * ops, ops, 1, gaps, gaps, gaps, gaps, gaps, points, points, gaps, gaps, gaps, gaps, points, 1)
        return cls(*(np.zeros(length, np.int64) for length in columns))


class State(NamedTuple):
    """One state of a search with what the evaluator found of it; steps change `drops` and `swaps` in place."""

    problem: SwapProblem
    drops: RecomputeState
    swaps: SwapState
    times: Evaluation


@inner
def _on_circle(time: int, period: int) -> int:
    """`time % period`, for times a few periods away: much quicker than to divide."""
    while time < 0:
        time += period
    while time >= period:
        time -= period
    return time


@jit
def retime(state: State) -> None:
    """Set the times of ops and accesses: a stall, a recomputation and a slower variant delay all that follows."""
    problem, drops, times = state.problem, state.drops, state.times
    # Columns by name: looked up in the tuples at every use, the loops take many times as long.
    starts, ends, begin, end = problem.begin, problem.end, times.begin, times.end
    stall, added_ns, extra_ns = state.swaps.stall, drops.added_ns, drops.extra_ns
    delay = 0
    for op in range(len(starts)):
        # What the op before gave back is free while this one waits; recomputations wait too, and nothing is free
        # before them.
        begin[2 * op] = starts[op] + delay + (stall[op] if added_ns[op] else 0)
        delay += stall[op] + added_ns[op]
        begin[2 * op + 1] = starts[op] + delay
        delay += extra_ns[op]
        end[op] = ends[op] + delay
    period = problem.period + delay
    times.period[0] = period
    after, after_iteration, due, due_iteration = problem.after, problem.after_iteration, drops.due, drops.due_iteration
    opens, closes = times.opens, times.closes
    for gap in range(len(after)):
        opens[gap] = end[after[gap]] + after_iteration[gap] * period
        closes[gap] = begin[due[gap]] + due_iteration[gap] * period


@jit
def evaluate(state: State, limit: int) -> tuple[float, int]:
    """Return the cost of a state, and by how many bytes it exceeds `limit` somewhere (0: the state will do).

    The cost adds up: excess at all points, the largest excess, gaps that are back before they have left, host memory
    above the budget, and a little for the engines' time. O(points + m log points).
    """
    problem, drops, swaps, times = state.problem, state.drops, state.swaps, state.times
    # Copies in first: with half duplex, copies out take the holes between them.
    _copy_in_late(state)
    _copy_out_early(state)
    if problem.placed:
        _start_with_ops(state)
    useless, off_device = _classify(state, limit)
    total, worst = _follow_live_bytes(state, off_device, limit)
    engine_ns = 0
    for turn in range(swaps.lengths[OUT]):
        engine_ns += problem.out_ns[swaps.outs[turn]]
    for turn in range(swaps.lengths[IN]):
        engine_ns += problem.in_ns[swaps.ins[turn]]
    host = host_excess(problem, swaps, times) if problem.pinned >= 0 else 0
    # The mean over all points guides towards the limit, the largest excess finishes the last of them.
    excess = (total / max(drops.used[POINTS], 1) + worst) / limit
    cost = excess + useless + ENGINE_COST * engine_ns / times.period[0] + host / max(problem.pinned, 1)
    # A useless gap, or too much on the host, is no plan either, even where the live bytes keep to the limit.
    return cost, max(worst, 1 if useless > 0 or host > 0 else 0)


@inner
def _copy_in_late(state: State) -> None:
    """Copies in, backwards from the last, each as late as its access and the copy after it allow.

    Two rounds of the circle: the first finds when the engine is busy at the boundary, the second keeps to it.
    """
    problem, swaps, times = state.problem, state.swaps, state.times
    period, clock = times.period[0], FAR
    ins, closes, in_start, in_ns = swaps.ins, times.closes, times.in_start, problem.in_ns
    for _ in range(2):
        for turn in range(swaps.lengths[IN] - 1, -1, -1):
            gap = ins[turn]
            due = _on_circle(closes[gap] - 1, period) + 1
            clock = min(clock, due) - in_ns[gap]
            in_start[gap] = closes[gap] + clock - due
        clock += period


@inner
def _copy_out_early(state: State) -> None:
    """Copies out, one after another, each as soon as its access has ended; the second round knows the first.

    Half duplex: each in the first hole between copies in that is long enough.
    """
    problem, swaps, times = state.problem, state.swaps, state.times
    period, clock, count = times.period[0], -FAR, 0 if problem.duplex else swaps.lengths[IN]
    outs, ins, out_ns, in_ns = swaps.outs, swaps.ins, problem.out_ns, problem.in_ns
    opens, closes, out_end, in_start = times.opens, times.closes, times.out_end, times.in_start
    for _ in range(2):
        hole = -count  # copies in of the iteration before come first
        for turn in range(swaps.lengths[OUT]):
            gap = outs[turn]
            ready = _on_circle(opens[gap], period)
            clock = max(clock, ready)
            while hole < 2 * count:
                other = ins[hole % count]
                start = in_start[other] - closes[other] + _on_circle(closes[other] - 1, period) + 1
                start += (hole // count) * period
                if start >= clock + out_ns[gap]:
                    break
                clock = max(clock, start + in_ns[other])
                hole += 1
            clock += out_ns[gap]
            out_end[gap] = opens[gap] + clock - ready
        clock -= period


@inner
def _start_with_ops(state: State) -> None:
    """Count each buffer from the start of the op in which its copy-in starts."""
    swaps, times = state.swaps, state.times
    period = times.period[0]
    for turn in range(swaps.lengths[IN]):
        gap = swaps.ins[turn]
        time = _on_circle(times.in_start[gap], period)
        begun = np.searchsorted(times.begin, time, side="right")
        times.in_start[gap] -= time - (times.begin[begun - 1] if begun else 0)


@inner
def _classify(state: State, limit: int) -> tuple[float, int]:
    """Find what each gap is good for; return the penalty for useless ones, and the bytes off the device at time 0."""
    problem, drops, swaps, times = state.problem, state.drops, state.swaps, state.times
    period, useless, off_device, ops = times.period[0], 0.0, 0, len(problem.begin)
    ins, copiers, size, after, next_point = swaps.ins, swaps.copied_by, problem.size, problem.after, drops.next_point
    opens, out_end, in_start, kind = times.opens, times.out_end, times.in_start, times.kind
    freed, freed_early = times.freed, times.freed_early
    points, stall, added_ns, count = drops.points, swaps.stall, drops.added_ns, drops.used[POINTS]
    for point in range(count + 1):
        freed[point], freed_early[point] = 0, 0
    for turn in range(swaps.lengths[IN]):
        gap = ins[turn]
        copied_by = copiers[gap]
        kind[gap] = COPIED
        if copied_by != gap:
            kind[gap], out_end[gap] = CLEAN, opens[gap]
            if copied_by >= 0 and out_end[copied_by] > opens[gap]:
                kind[gap], out_end[gap] = LATE, out_end[copied_by]
        if in_start[gap] <= out_end[gap]:
            # By time and by bytes: the shorter the overlap, the nearer is a state in which the gap is of use.
            useless += (out_end[gap] - in_start[gap]) / period + size[gap] / limit
            kind[gap] = USELESS
            continue
        if kind[gap] == CLEAN:
            op = after[gap] + 1 if after[gap] + 1 < ops else 0
            point = next_point[2 * op]
            # An op that waits begins later than the op before it ended: the bytes are free in between.
            if point < count and points[point] == 2 * op + 1 and stall[op] > 0 and added_ns[op] == 0:
                freed_early[point] += size[gap]
            else:
                freed[point] += size[gap]
        elif kind[gap] == LATE:
            freed[_first_point(state, _on_circle(out_end[gap], period))] += size[gap]
        if out_end[gap] - _on_circle(out_end[gap], period) + period < in_start[gap]:
            off_device += size[gap]
    return useless, off_device


@inner
def _first_point(state: State, time: int) -> int:
    """The first point that begins at `time` or later."""
    begin, points = state.times.begin, state.drops.points
    low, high = 0, state.drops.used[POINTS]
    while low < high:
        middle = (low + high) // 2
        if begin[points[middle]] < time:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _lay_round_circle(state: State, engine: int) -> None:
    """Lay the times of an engine round the circle, ascending: its order, rotated to where time begins.

    Ends of copies out lie in `[0, period)`, starts of copies in in `[1, period + 1)`: at the boundary a copy that ends
    gives its bytes back to the iteration that begins, one that starts takes them from the iteration that ends.
    """
    swaps, times, bytes_ = state.swaps, state.times, state.problem.size
    period, kind, count = times.period[0], times.kind, swaps.lengths[engine]
    if engine == OUT:
        order, when, origin, time, size = swaps.outs, times.out_end, 0, times.out_time, times.out_size
    else:
        order, when, origin, time, size = swaps.ins, times.in_start, 1, times.in_time, times.in_size
    first, least = 0, period + origin
    for turn in range(count):
        moment = _on_circle(when[order[turn]] - origin, period) + origin
        if moment < least:
            first, least = turn, moment
    for turn in range(count):
        gap = order[turn + first - count if turn + first >= count else turn + first]
        time[turn] = _on_circle(when[gap] - origin, period) + origin
        size[turn] = 0 if kind[gap] == USELESS else bytes_[gap]


@inner
def _follow_live_bytes(state: State, off_device: int, limit: int) -> tuple[float, int]:  # noqa: C901  one merge of three sequences
    """Follow the live bytes round the circle; return the excess added up over points, and the largest.

    Merges three ascending sequences: points, ends of copies out, starts of copies in. While an op waits where nothing
    is recomputed, what the op before it gave back is free.
    """
    drops, swaps, times = state.drops, state.swaps, state.times
    period, out_count, in_count = times.period[0], swaps.lengths[OUT], swaps.lengths[IN]
    _lay_round_circle(state, OUT)
    _lay_round_circle(state, IN)
    out_time, out_size, in_time, in_size = times.out_time, times.out_size, times.in_time, times.in_size
    points, occupied, stall, added_ns = drops.points, drops.occupied, swaps.stall, drops.added_ns
    begin, freed, freed_early = times.begin, times.freed, times.freed_early
    total, worst, held, out_turn, in_turn, count = 0.0, 0, 0, 0, 0, drops.used[POINTS]
    for point in range(count + 1):
        now = begin[points[point]] if point < count else period
        op = points[point] // 2
        waits = point < count and points[point] % 2 == 1 and stall[op] > 0 and added_ns[op] == 0
        pause = begin[points[point] - 1] if waits else FAR
        while True:
            out = out_time[out_turn] if out_turn < out_count else FAR
            back = in_time[in_turn] if in_turn < in_count else FAR
            # Both copies left lie behind the pause's begin: the bytes that its op gave back are free from here on.
            if back >= pause and out > pause:
                held, pause = occupied[points[point] - 1], FAR
                off_device += freed_early[point]
            if min(out, back) > now:
                break
            # At the same time, bytes are freed before others are taken, as the allocator does.
            if out <= back:
                off_device += out_size[out_turn]
                out_turn += 1
            else:
                off_device -= in_size[in_turn]
                in_turn += 1
                excess = held - off_device - limit
                if excess > 0 and back < now:
                    total += excess
                    if excess > worst:
                        worst, times.worst[0] = excess, point if waits and pause == FAR else point - 1
        if point < count:
            off_device += freed[point]
            held = occupied[points[point]]
            excess = held - off_device - limit
            if excess > 0:
                total += excess
                if excess > worst:
                    worst, times.worst[0] = excess, point
    return total, worst


@jit
def host_excess(problem: SwapProblem, swaps: SwapState, times: Evaluation) -> int:
    """Bytes on the host above the budget, each value there from its first swapped gap through its last.

    The account of `facts.pinned`, for copies at their accesses; all values anew at each call.
    """
    ops, change = len(problem.begin), times.host_change
    change[:] = 0
    for value in range(len(problem.first)):
        opens, closes = -1, -1
        for gap in range(problem.first[value], problem.last[value]):
            if swaps.selected[gap]:
                opens = problem.after[gap] + ops * problem.after_iteration[gap] if opens < 0 else opens
                closes = problem.before[gap] + ops * problem.before_iteration[gap]
        if opens < 0:
            continue
        gap = problem.first[value]
        start, length, size = 2 * ((opens + 1) % ops), 2 * (closes - opens) - 1, problem.size[gap]
        start, stop = (0, 2 * ops) if problem.constant[gap] else (start, start + length)
        change[start] += size
        if stop > 2 * ops:
            change[0] += size
            stop -= 2 * ops
        change[stop] -= size
    most, held = 0, 0
    for position in range(2 * ops):
        held += change[position]
        most = max(most, held + problem.hosted[position])
    return max(most - problem.pinned, 0)
