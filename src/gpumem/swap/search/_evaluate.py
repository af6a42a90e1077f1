"""How the two copy engines would run if memory delayed nothing, and what the load would then be.

The evaluator of `search`: copies out run as soon as they can, copies in as late as they can, each engine in its own
order. The load is followed through op starts, ends of copies out and starts of copies in::

    op starts       |--------|----|------------|-----|      load rises to what the op holds
    out engine        [ x ][ y ]                            load falls where a copy ends
    in engine                        [ y ]  [ x ]           load rises where a copy starts

Positions: `2 i` is the place before op `i`, where copies are issued and values are made again, `2 i + 1`
is op `i`.

Everywhere `p` is the problem, `d` what is dropped, `s` a state, `x` its evaluation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.search._recompute_state import Drops
from gpumem.trace import I64, Bool

FAR = 2**60


class SwapProblem(NamedTuple):
    """What a search does not change. m gaps, n ops; `after` and `before` as op and turn of the circle."""

    begin: I64  # n: when each op starts without a plan, all by their fastest ways
    end: I64  # n
    after: I64  # m
    after_turn: I64
    before: I64
    before_turn: I64
    size: I64
    out_ns: I64
    in_ns: I64
    value: I64
    first: I64  # of each value: its gaps are `first` up to `last`
    last: I64
    turn: int  # ns of an iteration
    duplex: bool
    constant: Bool  # m: the host always holds it
    hosted: I64  # 2 n: bytes on the host without swapping, at the place before each op and at the op
    pinned: int  # bytes, or -1 where all gaps together fit
    placed: bool  # a copy-in needs its address from the start of the op in which it starts, not only bytes


class SwapState(NamedTuple):
    """Which gaps are swapped, in which order each engine copies, and how long each op is made to wait."""

    selected: Bool  # m
    payer: I64  # m: the gap that copies the value out, -1 where none has to
    outs: I64  # m: gaps in the order of their copies out; used[0] of them
    ins: I64  # m: gaps in the order of their copies in; used[1] of them
    used: I64
    stall: I64  # n: ns

    def copy(self) -> SwapState:
        """Return a copy that shares nothing."""
        return SwapState._make(column.copy() for column in self)


class Evaluation(NamedTuple):
    """What follows from a state: times in ns since the iteration in which a value was made."""

    begin: I64  # 2 n: when each position begins, with stalls and reruns
    end: I64  # n: when each op ends
    turn: I64  # 1: length of the iteration
    opens: I64  # m: when the access before the gap ends
    closes: I64  # m: when the access after it starts
    gone: I64  # m: when the copy-out has ended
    back: I64  # m: when the copy-in starts
    kind: I64  # m
    leaving: I64  # 2 n + 1: bytes that leave at each point
    early: I64  # 2 n + 1: bytes that leave before the op of a point waits
    out_time: I64  # m: ends of copies out round the circle, ascending
    out_size: I64
    in_time: I64  # m: starts of copies in, ascending
    in_size: I64
    host: I64  # 2 n + 1: changes of the bytes on the host, from each place and op to the next
    worst: I64  # 1: the point at which the load is too high by most

    @classmethod
    def of(cls, p: SwapProblem) -> Evaluation:
        """Make room."""
        n, m = len(p.begin), len(p.size)
        sizes = (2 * n, n, 1, m, m, m, m, m, 2 * n + 1, 2 * n + 1, m, m, m, m, 2 * n + 1, 1)
        return cls(*(np.zeros(size, np.int64) for size in sizes))


COPIED, CLEAN, LATE, USELESS = range(4)


@inner
def _in_turn(time: int, turn: int) -> int:
    """`time % turn`, for times a few turns away: much quicker than to divide."""
    while time < 0:
        time += turn
    while time >= turn:
        time -= turn
    return time


@jit
def retime(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation) -> None:
    """Set the times of ops and accesses: a stall, what is made again and a slower way delay all that follows."""
    # columns by name: looked up in the tuples at every use, the loops take many times as long
    starts, ends, stall, added, longer, begin, end = p.begin, p.end, s.stall, d.added, d.longer, x.begin, x.end
    late = 0
    for i in range(len(starts)):
        # What the op before gave back is free while this one waits; reruns wait too, and nothing is free before them.
        begin[2 * i] = starts[i] + late + (stall[i] if added[i] else 0)
        late += stall[i] + added[i]
        begin[2 * i + 1] = starts[i] + late
        late += longer[i]
        end[i] = ends[i] + late
    turn = p.turn + late
    x.turn[0] = turn
    after, after_turn, due, due_turn, opens, closes = p.after, p.after_turn, d.due, d.due_turn, x.opens, x.closes
    for g in range(len(after)):
        opens[g] = end[after[g]] + after_turn[g] * turn
        closes[g] = begin[due[g]] + due_turn[g] * turn


@jit
def evaluate(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, limit: int) -> tuple[float, int]:
    """Return the cost of a state, and by how many bytes the load exceeds `limit` somewhere (0: the state will do).

    The cost adds up: overload at all points, the largest overload, gaps that are back before they are gone,
    host memory above the budget, and a little for the engines' time. O(points + m log points).
    """
    _run_in(p, s, x)
    _run_out(p, s, x)
    if p.placed:
        _back_with_ops(p, s, x)
    bad, absent = _classify(p, d, s, x, limit)
    total, worst = _overload(p, d, s, x, absent, limit)
    used = 0
    for q in range(s.used[0]):
        used += p.out_ns[s.outs[q]]
    for q in range(s.used[1]):
        used += p.in_ns[s.ins[q]]
    host = host_excess(p, s, x) if p.pinned >= 0 else 0
    cost = (total / max(d.used[0], 1) + worst) / limit + bad + 1e-3 * used / x.turn[0] + host / max(p.pinned, 1)
    return cost, max(worst, 1 if bad > 0 or host > 0 else 0)


@inner
def _run_out(p: SwapProblem, s: SwapState, x: Evaluation) -> None:
    """Copies out, one after another, each as soon as its access has ended; the second turn knows the first.

    Half duplex: each in the first hole between copies in that is long enough.
    """
    turn, clock, count = x.turn[0], -FAR, 0 if p.duplex else s.used[1]
    outs, ins, out_ns, in_ns, opens, gone = s.outs, s.ins, p.out_ns, p.in_ns, x.opens, x.gone
    closes, back = x.closes, x.back
    for _ in range(2):
        q = -count  # copies in of the iteration before come first
        for k in range(s.used[0]):
            g = outs[k]
            ready = _in_turn(opens[g], turn)
            clock = max(clock, ready)
            while q < 2 * count:
                h = ins[q % count]
                start = back[h] - closes[h] + _in_turn(closes[h] - 1, turn) + 1 + (q // count) * turn
                if start >= clock + out_ns[g]:
                    break
                clock = max(clock, start + in_ns[h])
                q += 1
            clock += out_ns[g]
            gone[g] = opens[g] + clock - ready
        clock -= turn


@inner
def _run_in(p: SwapProblem, s: SwapState, x: Evaluation) -> None:
    """Copies in, backwards from the last, each as late as its access and the copy after it allow."""
    turn, clock = x.turn[0], FAR
    ins, closes, back, in_ns = s.ins, x.closes, x.back, p.in_ns
    for _ in range(2):
        for q in range(s.used[1] - 1, -1, -1):
            g = ins[q]
            due = _in_turn(closes[g] - 1, turn) + 1
            clock = min(clock, due) - in_ns[g]
            back[g] = closes[g] + clock - due
        clock += turn


@inner
def _back_with_ops(p: SwapProblem, s: SwapState, x: Evaluation) -> None:
    """Let each buffer be back from the start of the op in which its copy-in starts."""
    turn = x.turn[0]
    for q in range(s.used[1]):
        g = s.ins[q]
        time = _in_turn(x.back[g], turn)
        begun = np.searchsorted(x.begin, time, side="right")
        x.back[g] -= time - (x.begin[begun - 1] if begun else 0)


@inner
def _classify(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, limit: int) -> tuple[float, int]:
    """Find what each gap is good for; return the penalty for useless ones, and the bytes absent at time 0."""
    turn, bad, absent, n = x.turn[0], 0.0, 0, len(p.begin)
    ins, payers, size, after, next_point = s.ins, s.payer, p.size, p.after, d.next_point
    opens, gone, back, kind, leaving, early = x.opens, x.gone, x.back, x.kind, x.leaving, x.early
    points, stall, added, count = d.points, s.stall, d.added, d.used[0]
    for k in range(count + 1):
        leaving[k], early[k] = 0, 0
    for q in range(s.used[1]):
        g = ins[q]
        payer = payers[g]
        kind[g] = COPIED
        if payer != g:
            kind[g], gone[g] = CLEAN, opens[g]
            if payer >= 0 and gone[payer] > opens[g]:
                kind[g], gone[g] = LATE, gone[payer]
        if back[g] <= gone[g]:
            bad += (gone[g] - back[g]) / turn + size[g] / limit
            kind[g] = USELESS
            continue
        if kind[g] == CLEAN:
            i = after[g] + 1 if after[g] + 1 < n else 0
            k = next_point[2 * i]
            if k < count and points[k] == 2 * i + 1 and stall[i] > 0 and added[i] == 0:
                early[k] += size[g]
            else:
                leaving[k] += size[g]
        elif kind[g] == LATE:
            leaving[_point(d, x, _in_turn(gone[g], turn))] += size[g]
        if gone[g] - _in_turn(gone[g], turn) + turn < back[g]:
            absent += size[g]
    return bad, absent


@inner
def _point(d: Drops, x: Evaluation, time: int) -> int:
    """The first point that begins at `time` or later."""
    low, high = 0, d.used[0]
    while low < high:
        middle = (low + high) // 2
        if x.begin[d.points[middle]] < time:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _round(order: I64, count: int, when: I64, late: int, p: SwapProblem, x: Evaluation, time: I64, size: I64) -> None:
    """Lay the times of an engine round the circle, ascending: its order, rotated to where time begins.

    Evaluation lie in `[late, turn + late)`: what happens at the boundary is an end at 0, but a start at `turn`.
    """
    turn, kind, bytes_ = x.turn[0], x.kind, p.size
    first, least = 0, turn + late
    for q in range(count):
        t = _in_turn(when[order[q]] - late, turn) + late
        if t < least:
            first, least = q, t
    for q in range(count):
        g = order[q + first - count if q + first >= count else q + first]
        time[q], size[q] = _in_turn(when[g] - late, turn) + late, 0 if kind[g] == USELESS else bytes_[g]


@inner
def _overload(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, absent: int, limit: int) -> tuple[float, int]:
    """Follow the load round the circle; return overload added up over points, and the largest.

    While an op waits where nothing is made again, what the op before it gave back is free.
    """
    turn, outs, ins = x.turn[0], s.used[0], s.used[1]
    _round(s.outs, outs, x.gone, 0, p, x, x.out_time, x.out_size)
    _round(s.ins, ins, x.back, 1, p, x, x.in_time, x.in_size)
    out_time, out_size, in_time, in_size = x.out_time, x.out_size, x.in_time, x.in_size
    points, load, begin, leaving, early = d.points, d.held, x.begin, x.leaving, x.early
    stall, added = s.stall, d.added
    total, worst, held, o, i, count = 0.0, 0, 0, 0, 0, d.used[0]
    for k in range(count + 1):
        now = begin[points[k]] if k < count else turn
        waits = k < count and points[k] % 2 == 1 and stall[points[k] // 2] > 0 and added[points[k] // 2] == 0
        pause = begin[points[k] - 1] if waits else FAR
        while True:
            out = out_time[o] if o < outs else FAR
            back = in_time[i] if i < ins else FAR
            if back >= pause or out > pause:
                held, pause = load[points[k] - 1], FAR
                absent += early[k]
            if min(out, back) > now:
                break
            if out <= back:
                absent += out_size[o]
                o += 1
            else:
                absent -= in_size[i]
                i += 1
                over = held - absent - limit
                if over > 0 and back < now:
                    total += over
                    if over > worst:
                        worst, x.worst[0] = over, k if waits and pause == FAR else k - 1
        if k < count:
            absent += leaving[k]
            held = load[points[k]]
            over = held - absent - limit
            if over > 0:
                total += over
                if over > worst:
                    worst, x.worst[0] = over, k
    return total, worst


@jit
def host_excess(p: SwapProblem, s: SwapState, x: Evaluation) -> int:
    """Bytes on the host above the budget, each value there from its first swapped gap through its last.

    The account of `facts.pinned`, for copies at their accesses; all values anew at each call.
    """
    n = len(p.begin)
    x.host[:] = 0
    for v in range(len(p.first)):
        opens, closes = -1, -1
        for g in range(p.first[v], p.last[v]):
            if s.selected[g]:
                opens = p.after[g] + n * p.after_turn[g] if opens < 0 else opens
                closes = p.before[g] + n * p.before_turn[g]
        if opens < 0:
            continue
        start, stop, size = 2 * ((opens + 1) % n), 2 * (closes - opens) - 1, p.size[p.first[v]]
        start, stop = (0, 2 * n) if p.constant[p.first[v]] else (start, start + stop)
        x.host[start] += size
        if stop > 2 * n:
            x.host[0] += size
            stop -= 2 * n
        x.host[stop] -= size
    most, held = 0, 0
    for i in range(2 * n):
        held += x.host[i]
        most = max(most, held + p.hosted[i])
    return max(most - p.pinned, 0)
