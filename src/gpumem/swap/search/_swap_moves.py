"""Steps over swaps: select a gap, exchange two, move a copy within its engine's order, make an op wait."""

from __future__ import annotations

from gpumem.base.jit import inner
from gpumem.swap.search._copy_orders import draw, shift, toggle
from gpumem.swap.search._evaluate import IN, OUT, State, retime
from gpumem.swap.search._recompute_state import POINTS
from gpumem.trace import I64

# A step draws from a hundred: below the first it changes a stall, if any is allowed; below the next it selects a gap or
# unselects it; then it exchanges two gaps, moves a copy-out, and else a copy-in. Not tuned.
STALL, TOGGLE, EXCHANGE, MOVE_OUT = 20, 55, 80, 90
# A stall grows by 1/200 of an iteration, halved up to seven times, as drawn: by 1/25,600 at least. Not tuned.
LONGEST, HALVINGS = 200, 8
NEAR = 5  # ops by which a stall moves, at most; not tuned
SPLITS = 4  # a part of a stall is a half down to 1/16 of it; not tuned


@inner
def change_swaps(state: State, random: I64, stall_budget: int) -> None:
    """Change the swaps or the stalls at random; ops may wait for `stall_budget` ns in all."""
    problem, drops, swaps = state.problem, state.drops, state.swaps
    gaps, dropped = len(problem.size), drops.choice.recompute_at
    kind = draw(random, 100)
    if stall_budget > 0 and kind < STALL:
        _change_stall(state, random, stall_budget)
        retime(state)
    elif not gaps:
        return
    elif kind < TOGGLE or not swaps.lengths[IN]:
        gap = draw(random, gaps)
        if not dropped[gap]:
            toggle(problem, drops, swaps, gap)
    elif kind < EXCHANGE:
        gap, other = swaps.ins[draw(random, swaps.lengths[IN])], draw(random, gaps)
        toggle(problem, drops, swaps, gap)
        # Not for itself: that would only select it once more.
        if other != gap and not dropped[other]:
            toggle(problem, drops, swaps, other)
    elif kind < MOVE_OUT:
        shift(swaps.outs, swaps.lengths[OUT], random)
    else:
        shift(swaps.ins, swaps.lengths[IN], random)


@inner
def _change_stall(state: State, random: I64, budget: int) -> None:
    """Let an op wait, most often the one that exceeds the limit by most; or shorten, split or move a stall."""
    drops, stall = state.drops, state.swaps.stall
    ops, total = len(state.problem.begin), stall.sum()
    kind = draw(random, 4)
    if kind == 0 or not total:
        # `worst` may be of a state with more points: then an op of that one waits, a step as good as another.
        at_worst = draw(random, 4) or not drops.used[POINTS]
        point = state.times.worst[0] if at_worst else draw(random, drops.used[POINTS])
        more = state.problem.period // (LONGEST << draw(random, HALVINGS))
        # Never below 0: a walk with a budget starts without stalls, and no step exceeds it.
        stall[drops.points[point] // 2] += min(more, budget - total)
        return
    op = draw(random, ops)
    while not stall[op]:
        op = (op + 1) % ops
    part = stall[op] if draw(random, 2) else stall[op] // (2 << draw(random, SPLITS))
    stall[op] -= part  # of kind 3 that is all: the stall is shorter
    if kind == 1:
        stall[(op + draw(random, 2 * NEAR + 1) - NEAR) % ops] += part
    elif kind == 2:
        stall[draw(random, ops)] += part
