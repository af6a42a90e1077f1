"""Simulated annealing over swaps, stalls, recomputations and variants: propose, evaluate, accept, record.

Kirkpatrick, Gelatt and Vecchi, 1983, with geometric cooling, and a limit that falls whenever the state keeps to it:
each plan for a limit is the start for the next one, 1/1000 below. `walk` runs it in phases.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from gpumem.base.jit import inner, jit
from gpumem.swap.search._copy_orders import MODULUS, draw
from gpumem.swap.search._evaluate import IN, OUT, State, SwapState, evaluate, retime
from gpumem.swap.search._recompute_moves import change_drops
from gpumem.swap.search._recompute_state import (
    RecomputeChoice,
    RecomputeProblem,
    RecomputeState,
    copy_choice,
    copy_drops,
)
from gpumem.swap.search._swap_moves import change_swaps
from gpumem.trace import I64

# How many steps a step over drops counts as: it finds replays anew and copies all of the state. Not tuned.
RECOMPUTE_STEPS = 4
# Of `limits`: the bytes to keep to now, those to reach, and of the best state so far its limit and its ns of delay.
LIMIT, GOAL, BEST_LIMIT, BEST_DELAY = range(4)


class CoolingSchedule(NamedTuple):
    """How to anneal."""

    steps: int
    hot: float  # the temperature at the beginning, in units of the cost, and
    cold: float  # at the end
    stall_budget: int  # ns that ops may wait in all
    delay_weight: float  # what a delay of a whole iteration costs
    recompute_rate: int  # percent of the proposals that change what is dropped or held, or which variant runs


class Saved(NamedTuple):
    """A copy of what steps change, from which a rejected step is undone."""

    drops: RecomputeState
    swaps: SwapState


class Best(NamedTuple):
    """The best state so far."""

    choice: RecomputeChoice
    swaps: SwapState


class StateScore(NamedTuple):
    """How good a state is at a limit."""

    cost: float
    excess: int  # bytes above the limit; at least 1 where a gap is useless or the host holds too much; 0: it will do
    delay: int  # ns beyond the time of all ops by their fastest variants


@jit
def anneal(  # noqa: PLR0917  compiled: no keyword-only parameters
    state: State,
    recompute: RecomputeProblem,
    saved: Saved,
    best: Best,
    limits: I64,
    schedule: CoolingSchedule,
    random: I64,
) -> int:
    """Take up to `schedule.steps` random steps while the temperature falls from hot to cold; return how many.

    `limits`: by `LIMIT`, `GOAL`, `BEST_LIMIT`, `BEST_DELAY`. Fewer steps are taken where the goal is reached without
    any delay: then nothing is left to gain. The state after the last step is not recorded; the next call does that.
    """
    retime(state)
    current = _score(state, limits[LIMIT], schedule)
    copy_swaps(saved.swaps, state.swaps, True)
    copy_drops(recompute, saved.drops, state.drops)
    may_wait, step = schedule.stall_budget > 0, 0
    while step < schedule.steps:
        current = _record(state, best, limits, current, schedule=schedule)
        if limits[BEST_LIMIT] <= limits[GOAL] and limits[BEST_DELAY] == 0:
            return step

        # Propose.
        copy_swaps(saved.swaps, state.swaps, may_wait)
        changes_drops = schedule.recompute_rate > 0 and draw(random, 100) < schedule.recompute_rate
        possible = True
        if changes_drops:
            step += RECOMPUTE_STEPS
            possible = change_drops(state, recompute, saved.drops, random)
        else:
            step += 1
            change_swaps(state, random, schedule.stall_budget)

        # Evaluate.
        candidate = current
        if possible:
            if changes_drops:
                retime(state)
            candidate = _score(state, limits[LIMIT], schedule)

        # Accept, or go back.
        temperature = schedule.hot * (schedule.cold / schedule.hot) ** (step / schedule.steps)
        if possible and _accepts(current.cost, candidate.cost, temperature, random):
            current = candidate
            if changes_drops:
                copy_drops(recompute, saved.drops, state.drops)
        else:
            copy_swaps(state.swaps, saved.swaps, may_wait)
            if changes_drops:
                copy_drops(recompute, state.drops, saved.drops)
            if may_wait or changes_drops:
                retime(state)
    return schedule.steps


@inner
def _score(state: State, limit: int, schedule: CoolingSchedule) -> StateScore:
    cost, excess = evaluate(state, limit)
    # Where no op may wait, none does, and nothing is dropped: three sums over all ops would be 0.
    delay = 0
    if schedule.stall_budget > 0:
        delay = state.swaps.stall.sum() + state.drops.added_ns.sum() + state.drops.extra_ns.sum()
    return StateScore(cost + schedule.delay_weight * delay / state.problem.period, excess, delay)


@inner
def _accepts(cost: float, candidate: float, temperature: float, random: I64) -> bool:
    """Metropolis' rule: a state that costs no more always, one that costs more with probability exp(-more / T)."""
    if candidate <= cost:
        return True
    return bool(draw(random, MODULUS) < MODULUS * exp((cost - candidate) / temperature))


@inner
def _record(state: State, best: Best, limits: I64, current: StateScore, schedule: CoolingSchedule) -> StateScore:
    """While the state keeps to the limit and is better than the best: it is the best, and the limit falls by 1/1000.

    Better: at a lower limit, or, at the goal, with less delay. Return the score at the new limit.
    """
    while current.excess <= 0 and (limits[LIMIT] < limits[BEST_LIMIT] or current.delay < limits[BEST_DELAY]):
        copy_swaps(best.swaps, state.swaps, True)
        copy_choice(best.choice, state.drops.choice)
        limits[BEST_LIMIT], limits[BEST_DELAY] = limits[LIMIT], current.delay
        if limits[LIMIT] <= limits[GOAL]:
            break
        # 1/1000 a step, not tuned. Integers: the same with and without the compiler.
        limits[LIMIT] = max(limits[LIMIT] * 999 // 1000, limits[GOAL])
        current = _score(state, limits[LIMIT], schedule)
    return current


@jit
def copy_swaps(target: SwapState, source: SwapState, stalls: bool) -> None:
    """Copy one state into another; the stalls only where they can differ."""
    for gap in range(len(source.selected)):
        target.selected[gap], target.copied_by[gap] = source.selected[gap], source.copied_by[gap]
    for engine in range(len(source.lengths)):
        target.lengths[engine] = source.lengths[engine]
    for turn in range(source.lengths[OUT]):
        target.outs[turn] = source.outs[turn]
    for turn in range(source.lengths[IN]):
        target.ins[turn] = source.ins[turn]
    if stalls:
        for op in range(len(source.stall)):
            target.stall[op] = source.stall[op]
