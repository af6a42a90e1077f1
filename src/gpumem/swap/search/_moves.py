"""Steps of the search: select a gap, move a copy within its engine's order, make an op wait; greedy and annealing.

Everywhere `p` is the problem, `r` what drops do not change of it, `d` what is dropped, `s` a state, `x` its evaluation.
"""

from __future__ import annotations

from math import exp

from gpumem.base.jit import inner, jit
from gpumem.swap.search._copy_orders import MODULUS, draw, shift, toggle
from gpumem.swap.search._evaluate import Evaluation, SwapProblem, SwapState, evaluate, retime
from gpumem.swap.search._recompute_moves import drop_step
from gpumem.swap.search._recompute_state import Decided, Drops, Replays, choose_all, remember
from gpumem.trace import I64

DEAR = 4  # steps that one over drops counts for


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
        if not d.c.at[g]:
            toggle(p, d, s, g)
    elif kind < 80:
        g, h = s.ins[draw(seed, s.used[1])], draw(seed, len(p.size))
        toggle(p, d, s, g)
        if h != g and not d.c.at[h]:
            toggle(p, d, s, h)
    elif kind < 90:
        shift(s.outs, s.used[0], seed)
    else:
        shift(s.ins, s.used[1], seed)


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
            if 0 < (op - p.after[g]) % n < gap or gap >= n:
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
    best_c: Decided,
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
            choose_all(best_c, d.c)
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
            fine = drop_step(p, r, d, spare_d, s, x, seed)
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
