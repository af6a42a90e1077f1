"""The greedy start without stalls: lower the limit a little, swap what helps most, until no gap helps."""

from __future__ import annotations

from gpumem.base.jit import inner, jit
from gpumem.swap.search._copy_orders import toggle
from gpumem.swap.search._evaluate import State, evaluate
from gpumem.trace import I64

GREEDY_STEP = 0.995  # by which a limit that is kept to is lowered; not tuned
CURRENT, KEPT = range(2)  # of the limits: the one to reach now, and the lowest that was reached


@jit
def lower_greedily(state: State, limits: I64, goal: int, rounds: int) -> bool:
    """Lower a limit towards `goal`; where it is exceeded by most, toggle the gap that lowers the cost most.

    `limits`: bytes, by `CURRENT` and `KEPT`. Return whether more is to be done after so many rounds.
    """
    for _ in range(rounds):
        cost, excess = evaluate(state, limits[CURRENT])
        if excess <= 0:
            limits[KEPT] = limits[CURRENT]
            if limits[CURRENT] <= goal:
                return False
            limits[CURRENT] = max(int(limits[CURRENT] * GREEDY_STEP), goal)
            continue
        gap = _best_toggle(state, limits[CURRENT], cost)
        if gap < 0:
            return False
        toggle(state.problem, state.drops, state.swaps, gap)
    return True


@inner
def _best_toggle(state: State, limit: int, cost: float) -> int:
    """The gap around the op that exceeds a limit by most which lowers the cost most; -1 where none does.

    Others do not change how many bytes are live there, but for copies that come earlier or later: they are not tried.
    """
    problem, drops, swaps = state.problem, state.drops, state.swaps
    ops, op = len(problem.begin), drops.points[state.times.worst[0]] // 2
    best_cost, best_gap = cost, -1
    for gap in range(len(problem.size)):
        iterations = problem.before_iteration[gap] - problem.after_iteration[gap]
        length = problem.before[gap] - problem.after[gap] + ops * iterations
        if 0 < (op - problem.after[gap]) % ops < length or length >= ops:
            toggle(problem, drops, swaps, gap)
            lower_cost, _ = evaluate(state, limit)
            toggle(problem, drops, swaps, gap)
            if lower_cost < best_cost:
                best_cost, best_gap = lower_cost, gap
    return best_gap
