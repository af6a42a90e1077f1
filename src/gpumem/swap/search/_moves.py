"""Steps of the search: select a gap, move a copy within its engine's order, make an op wait; greedy and annealing.

Everywhere `p` is the problem, `r` what drops do not change of it, `d` what is dropped, `s` a state, `x` its evaluation.
"""

from __future__ import annotations

from math import exp

from gpumem._jit import inner, jit
from gpumem.columns import I64
from gpumem.swap.search._drops import MARKS, Drops, Replays, choose, drop, remember, settle, tidy
from gpumem.swap.search._engines import Evaluation, SwapProblem, SwapState, evaluate, retime

DEAR = 4  # steps that one over drops counts for
CHOOSING = 30  # of a hundred steps over drops, how many change the way of an op, where ops have a choice
LOOKS = 16  # gaps drawn until one is around the point in question
MODULUS, FACTOR = 2**31 - 1, 48271  # Lehmer's generator: the same draws with and without the compiler


@inner
def draw(seed: I64, below: int) -> int:
    """Return a random integer in [0, below)."""
    seed[0] = seed[0] * FACTOR % MODULUS
    drawn: int = seed[0] % below
    return drawn


@jit
def toggle(p: SwapProblem, d: Drops, s: SwapState, g: int) -> None:
    """Select gap `g`, or drop it; the first selected gap of a value pays for its copy-out."""
    v = p.value[g]
    before = _payer(p, s, v)
    s.selected[g] = not s.selected[g]
    payer = _payer(p, s, v)
    if payer != before:
        if before >= 0:
            s.used[0] = _remove(s.outs, s.used[0], before)
        if payer >= 0:
            s.used[0] = _insert(s.outs, s.used[0], payer, p.end, p.after, 1)
        for k in range(p.first[v], p.last[v]):
            s.payer[k] = payer
    if s.selected[g]:
        s.used[1] = _insert(s.ins, s.used[1], g, p.begin, d.due, 2)
    else:
        s.used[1] = _remove(s.ins, s.used[1], g)


@inner
def _payer(p: SwapProblem, s: SwapState, v: int) -> int:
    for g in range(p.first[v], p.last[v]):
        if s.selected[g]:
            return g if p.out_ns[g] > 0 else -1
    return -1


@inner
def _remove(order: I64, count: int, g: int) -> int:
    kept = 0
    for q in range(count):
        if order[q] != g:
            order[kept] = order[q]
            kept += 1
    return kept


@inner
def _insert(order: I64, count: int, g: int, time: I64, op: I64, per: int) -> int:
    """Put `g` behind the last one whose time, that of `op[g] // per`, is earlier, ties by index."""
    q, key = count, time[op[g] // per]
    while q > 0:
        other = time[op[order[q - 1]] // per]
        if other < key or (other == key and order[q - 1] < g):
            break
        order[q] = order[q - 1]
        q -= 1
    order[q] = g
    return count + 1


@inner
def _shift(order: I64, count: int, seed: I64) -> None:
    """Move one copy by up to three places."""
    if count < 2:
        return
    a = draw(seed, count)
    b = min(max(a + (1 + draw(seed, 3)) * (1 if draw(seed, 2) else -1), 0), count - 1)
    g = order[a]
    while a != b:
        step = 1 if b > a else -1
        order[a] = order[a + step]
        a += step
    order[b] = g


@inner
def _wait(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, seed: I64, budget: int) -> None:
    """Let an op wait, most often the one where the load is too high by most; or shorten, split or move a stall."""
    n, total = len(p.begin), s.stall.sum()
    kind = draw(seed, 4)
    if kind == 0 or not total:
        k = x.worst[0] if draw(seed, 4) or not d.used[0] else draw(seed, d.used[0])
        more = p.turn // (200 << draw(seed, 8))
        s.stall[d.points[k] // 2] += max(min(more, budget - total), 0)
        return
    a = draw(seed, n)
    while not s.stall[a]:
        a = (a + 1) % n
    part = s.stall[a] if draw(seed, 2) else s.stall[a] // (2 << draw(seed, 4))
    s.stall[a] -= part
    if kind == 1:
        s.stall[(a + draw(seed, 11) - 5) % n] += part
    elif kind == 2:
        s.stall[draw(seed, n)] += part


@inner
def _step(p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, seed: I64, budget: int) -> None:
    """Change the state at random."""
    kind = draw(seed, 100)
    if budget > 0 and kind < 20:
        _wait(p, d, s, x, seed, budget)
        retime(p, d, s, x)
    elif not len(p.size):
        return
    elif kind < 55 or not s.used[1]:
        g = draw(seed, len(p.size))
        if p.copied[g] and not d.at[g]:
            toggle(p, d, s, g)
    elif kind < 80:
        g, h = s.ins[draw(seed, s.used[1])], draw(seed, len(p.size))
        toggle(p, d, s, g)
        if h != g and p.copied[h] and not d.at[h]:
            toggle(p, d, s, h)
    elif kind < 90:
        _shift(s.outs, s.used[0], seed)
    else:
        _shift(s.ins, s.used[1], seed)


@jit
def greedy(
    p: SwapProblem, d: Drops, s: SwapState, x: Evaluation, limits: I64, goal: int, factor: float, rounds: int
) -> bool:
    """Lower the limit towards `goal`; where the load is above it by most, toggle the gap that lowers the cost most.

    `limits`: the limit now, and the lowest one that was kept to. Return whether more is to be done after the rounds.
    """
    n = len(p.begin)
    for _ in range(rounds):
        limit = limits[0]
        cost, excess = evaluate(p, d, s, x, limit)
        if excess <= 0:
            limits[1] = limit
            if limit <= goal:
                return False
            limits[0] = max(int(limit * factor), goal)
            continue
        best, chosen, op = cost, -1, d.points[x.worst[0]] // 2
        for g in range(len(p.size)):
            gap = p.before[g] - p.after[g] + n * (p.before_turn[g] - p.after_turn[g])
            if p.copied[g] and (0 < (op - p.after[g]) % n < gap or gap >= n):
                toggle(p, d, s, g)
                lower, _ = evaluate(p, d, s, x, limit)
                toggle(p, d, s, g)
                if lower < best:
                    best, chosen = lower, g
        if chosen < 0:
            return False
        toggle(p, d, s, chosen)
    return True


@jit
def assign(to: SwapState, source: SwapState, stalls: bool) -> None:
    """Copy one state into another; the stalls only where they can differ."""
    for g in range(len(source.selected)):
        to.selected[g], to.payer[g] = source.selected[g], source.payer[g]
    to.used[0], to.used[1] = source.used[0], source.used[1]
    for q in range(source.used[0]):
        to.outs[q] = source.outs[q]
    for q in range(source.used[1]):
        to.ins[q] = source.ins[q]
    if stalls:
        for i in range(len(source.stall)):
            to.stall[i] = source.stall[i]


@jit
def anneal(
    p: SwapProblem,
    r: Replays,
    d: Drops,
    spare_d: Drops,
    best_at: I64,
    best_by: I64,
    s: SwapState,
    best: SwapState,
    spare: SwapState,
    x: Evaluation,
    seed: I64,
    limits: I64,
    steps: int,
    hot: float,
    cold: float,
    budget: int,
    weight: float,
    rate: int,
) -> int:
    """Take up to `steps` random steps while the temperature falls from `hot` to `cold`; return how many.

    `limits`: the limit now, the goal, the lowest one kept to, and the time that it took. Whenever the limit is
    kept to, the state is the best so far and the limit falls by 1/1000; at the goal, the best is the one that
    takes least, and without any time more the work is done. `rate`: how many in a hundred steps change what is
    dropped, or the way in which an op runs; each of them counts as `DEAR`.
    """
    retime(p, d, s, x)
    cost, excess = evaluate(p, d, s, x, limits[0])
    waits = _waits(d, s)
    cost += weight * waits / p.turn
    assign(spare, s, True)
    remember(r, spare_d, d)
    step = 0
    while step < steps:
        while excess <= 0 and (limits[0] < limits[2] or waits < limits[3]):
            assign(best, s, True)
            best_at[:], best_by[:] = d.at, d.by
            limits[2], limits[3] = limits[0], waits
            if limits[0] <= limits[1]:
                if not waits:
                    return step
                break
            limits[0] = max(limits[0] * 999 // 1000, limits[1])
            cost, excess = evaluate(p, d, s, x, limits[0])
            cost += weight * waits / p.turn
        assign(spare, s, budget > 0)
        other = rate > 0 and draw(seed, 100) < rate
        fine = True
        if other:
            step += DEAR - 1
            fine = _drop_step(p, r, d, spare_d, s, x, seed)
        else:
            _step(p, d, s, x, seed, budget)
        step += 1
        after, over, late = 0.0, 0, 0
        if fine:
            if other:
                retime(p, d, s, x)
            after, over = evaluate(p, d, s, x, limits[0])
            late = _waits(d, s) if budget > 0 else 0
            after += weight * late / p.turn
        temperature = hot * (cold / hot) ** (step / steps)
        if fine and (after <= cost or draw(seed, MODULUS) < MODULUS * exp((cost - after) / temperature)):
            cost, excess, waits = after, over, late
            if other:
                remember(r, spare_d, d)
        else:
            assign(s, spare, budget > 0)
            if other:
                remember(r, d, spare_d)
            if budget > 0 or other:
                retime(p, d, s, x)
    return steps


@inner
def _waits(d: Drops, s: SwapState) -> int:
    """Nanoseconds that a state takes more than all ops by their fastest ways."""
    waits: int = s.stall.sum() + d.added.sum() + d.longer.sum()
    return waits


@inner
def _drop_step(p: SwapProblem, r: Replays, d: Drops, was: Drops, s: SwapState, x: Evaluation, seed: I64) -> bool:
    """Change what is dropped, or how an op runs, at random; False where something could not be made again then."""
    if 2 * d.used[1] > len(d.read):
        tidy(r, d)
        remember(r, was, d)
    if len(r.ways.op) and (not len(r.can) or draw(seed, 100) < CHOOSING):
        fine = _choose_some(r, d, x, seed)
        settle(r, d)
        return fine
    g, kind = _some_gap(r, d, x, seed), draw(seed, 4)
    if d.at[g]:
        at = _some_place(r, d, g, seed) if kind == 2 else 0
        fine = at != d.at[g] and drop(r, d, g, at)
        if kind == 0 and p.copied[g]:
            toggle(p, d, s, g)
        elif kind == 3 and fine:
            fine = _drop_too(p, r, d, s, _some_gap(r, d, x, seed), g, seed)
    else:
        if kind == 0:
            fine = _keep_one(r, d, g, seed)
        elif kind == 1 and s.used[1]:
            toggle(p, d, s, s.ins[draw(seed, s.used[1])])
            fine = True
        else:
            fine = True
        fine = fine and _drop_too(p, r, d, s, g, -1, seed)
    if fine:
        settle(r, d)
        for h in range(len(d.due)):
            if s.selected[h] and d.due[h] != was.due[h]:
                s.used[1] = _insert(s.ins, _remove(s.ins, s.used[1], h), h, p.begin, d.due, 2)
    return fine


@inner
def _some_gap(r: Replays, d: Drops, x: Evaluation, seed: I64) -> int:
    """Draw a gap that can be dropped, most often one around the point where the load is too high by most."""
    g, q = r.can[draw(seed, len(r.can))], d.points[min(x.worst[0], max(d.used[0] - 1, 0))]
    if draw(seed, 4):
        for _ in range(LOOKS):
            if 2 * r.made.after[g] + 1 < q < 2 * r.made.before[g]:
                break
            g = r.can[draw(seed, len(r.can))]
    return int(g)


@inner
def _some_place(r: Replays, d: Drops, g: int, seed: I64) -> int:
    """Draw where to make a gap's value again: where it ends, or with others that are made inside it."""
    after, last, chosen, seen = r.made.after[g], r.lasts[g], r.lasts[g], 0
    if draw(seed, 2):
        mark = r.made.buffer[g] % MARKS
        for q in range(after + 1, last + 1):
            if d.wanted[q] and d.marks[q, mark]:
                seen += 1
                if not draw(seed, seen):
                    chosen = q
    return int(chosen)


@inner
def _drop_too(p: SwapProblem, r: Replays, d: Drops, s: SwapState, g: int, other: int, seed: I64) -> bool:
    """Drop a gap that is not dropped yet, and is not the other one."""
    if g == other or d.at[g]:
        return False
    if s.selected[g]:
        toggle(p, d, s, g)
    return drop(r, d, g, _some_place(r, d, g, seed))


@inner
def _keep_one(r: Replays, d: Drops, g: int, seed: I64) -> bool:
    """Keep one of the dropped values, the next one after a random gap."""
    k = draw(seed, len(r.can))
    for _ in range(len(r.can)):
        h = r.can[k]
        if d.at[h]:
            return drop(r, d, h, 0)
        k = (k + 1) % len(r.can)
    return True


@inner
def _choose_some(r: Replays, d: Drops, x: Evaluation, seed: I64) -> bool:
    """Draw another way for an op, often one that runs where the load is too high by most, or a quicker one."""
    w, kind, k = r.ways, draw(seed, 4), draw(seed, len(r.ways.op))
    if kind < 2:
        k = _some_op(r, d, x, k, seed)
    first, count = w.first[k], w.first[k + 1] - w.first[k]
    if kind == 2 and d.by[k] > first:
        count = d.by[k] - first + 1
    way = first + draw(seed, count - 1)
    return choose(r, d, k, way + (way >= d.by[k]))


@inner
def _some_op(r: Replays, d: Drops, x: Evaluation, k: int, seed: I64) -> int:
    """The op with a choice at the worst point, or one that runs again there; row `k` where there is none."""
    q = d.points[min(x.worst[0], max(d.used[0] - 1, 0))]
    if q % 2:
        return int(r.ways.row[q // 2] if r.ways.row[q // 2] >= 0 else k)
    for _ in range(LOOKS if d.wanted[q // 2] else 0):
        h = draw(seed, len(r.ways.op))
        if d.marks[q // 2, r.ways.own[h] % MARKS]:
            return h
    return k
