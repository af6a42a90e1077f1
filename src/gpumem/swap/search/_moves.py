"""Steps of the search: select a gap, move a copy within its engine's order, make an op wait; greedy and annealing.

Everywhere `p` is the problem, `s` a state, `x` its evaluation.
"""

from __future__ import annotations

from math import exp

from gpumem._jit import inner, jit
from gpumem.columns import I64
from gpumem.swap.search._engines import Evaluation, SwapProblem, SwapState, evaluate, retime

MODULUS, FACTOR = 2**31 - 1, 48271  # Lehmer's generator: the same draws with and without the compiler


@inner
def draw(seed: I64, below: int) -> int:
    """Return a random integer in [0, below)."""
    seed[0] = seed[0] * FACTOR % MODULUS
    drawn: int = seed[0] % below
    return drawn


@jit
def toggle(p: SwapProblem, s: SwapState, g: int) -> None:
    """Select gap `g`, or drop it; the first selected gap of a value pays for its copy-out."""
    v = p.value[g]
    before = _payer(p, s, v)
    s.selected[g] = not s.selected[g]
    payer = _payer(p, s, v)
    if payer != before:
        if before >= 0:
            s.used[0] = _remove(s.outs, s.used[0], before)
        if payer >= 0:
            s.used[0] = _insert(s.outs, s.used[0], payer, p.end[p.after[payer]], p.end, p.after)
        for k in range(p.first[v], p.last[v]):
            s.payer[k] = payer
    if s.selected[g]:
        s.used[1] = _insert(s.ins, s.used[1], g, p.begin[p.before[g]], p.begin, p.before)
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
def _insert(order: I64, count: int, g: int, key: int, time: I64, op: I64) -> int:
    """Put `g` behind the last one whose time is earlier, ties by index."""
    q = count
    while q > 0 and (time[op[order[q - 1]]] > key or (time[op[order[q - 1]]] == key and order[q - 1] > g)):
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
def _wait(p: SwapProblem, s: SwapState, x: Evaluation, seed: I64, budget: int) -> None:
    """Let an op wait, most often the one where the load is too high by most; or shorten, split or move a stall."""
    n, total = len(p.begin), s.stall.sum()
    kind = draw(seed, 4)
    if kind == 0 or not total:
        k = x.worst[0] if draw(seed, 4) else draw(seed, len(p.points))
        more = p.turn // (200 << draw(seed, 8))
        s.stall[p.points[k]] += max(min(more, budget - total), 0)
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
def _step(p: SwapProblem, s: SwapState, x: Evaluation, seed: I64, budget: int) -> None:
    """Change the state at random."""
    kind = draw(seed, 100)
    if budget > 0 and kind < 20:
        _wait(p, s, x, seed, budget)
        retime(p, s, x)
    elif kind < 55 or not s.used[1]:
        toggle(p, s, draw(seed, len(p.size)))
    elif kind < 80:
        g, h = s.ins[draw(seed, s.used[1])], draw(seed, len(p.size))
        toggle(p, s, g)
        if h != g:
            toggle(p, s, h)
    elif kind < 90:
        _shift(s.outs, s.used[0], seed)
    else:
        _shift(s.ins, s.used[1], seed)


@jit
def greedy(p: SwapProblem, s: SwapState, x: Evaluation, limits: I64, goal: int, factor: float, rounds: int) -> bool:
    """Lower the limit towards `goal`; where the load is above it by most, toggle the gap that lowers the cost most.

    `limits`: the limit now, and the lowest one that was kept to. Return whether more is to be done after the rounds.
    """
    n = len(p.begin)
    for _ in range(rounds):
        limit = limits[0]
        cost, excess = evaluate(p, s, x, limit)
        if excess <= 0:
            limits[1] = limit
            if limit <= goal:
                return False
            limits[0] = max(int(limit * factor), goal)
            continue
        best, chosen, op = cost, -1, p.points[x.worst[0]]
        for g in range(len(p.size)):
            gap = p.before[g] - p.after[g] + n * (p.before_turn[g] - p.after_turn[g])
            if 0 < (op - p.after[g]) % n < gap or gap >= n:
                toggle(p, s, g)
                lower, _ = evaluate(p, s, x, limit)
                toggle(p, s, g)
                if lower < best:
                    best, chosen = lower, g
        if chosen < 0:
            return False
        toggle(p, s, chosen)
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
) -> int:
    """Take up to `steps` random steps while the temperature falls from `hot` to `cold`; return how many.

    `limits`: the limit now, the goal, the lowest one kept to, and the stall that it took. Whenever the limit is
    kept to, the state is the best so far and the limit falls by 1/1000; at the goal, the best is the one that
    waits least, and without any wait the work is done.
    """
    retime(p, s, x)
    cost, excess = evaluate(p, s, x, limits[0])
    waits = s.stall.sum()
    cost += weight * waits / p.turn
    for step in range(steps):
        while excess <= 0 and (limits[0] < limits[2] or waits < limits[3]):
            assign(best, s, True)
            limits[2], limits[3] = limits[0], waits
            if limits[0] <= limits[1]:
                if not waits:
                    return step
                break
            limits[0] = max(limits[0] * 999 // 1000, limits[1])
            cost, excess = evaluate(p, s, x, limits[0])
            cost += weight * waits / p.turn
        assign(spare, s, budget > 0)
        _step(p, s, x, seed, budget)
        after, over = evaluate(p, s, x, limits[0])
        late = s.stall.sum() if budget > 0 else 0
        after += weight * late / p.turn
        temperature = hot * (cold / hot) ** (step / steps)
        if after <= cost or draw(seed, MODULUS) < MODULUS * exp((cost - after) / temperature):
            cost, excess, waits = after, over, late
        else:
            assign(s, spare, budget > 0)
            if budget > 0:
                retime(p, s, x)
    return steps
