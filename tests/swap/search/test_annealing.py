"""The rules by which annealing accepts, goes back, records and stops: steps and evaluator are scripted."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpumem.swap.search import annealing
from gpumem.swap.search._evaluate import FAR, State
from gpumem.swap.search.annealing import BEST_DELAY, BEST_LIMIT, GOAL, LIMIT, CoolingSchedule, Saved, StateScore
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from tests.plain import plain
from tests.swap.nets import CARD, layers

Evaluate = Callable[[State, int], tuple[float, int]]


def walk_to(goal: int) -> SearchWalk:
    """Four maps of 8 bytes, and a constant: 33 bytes at the peak."""
    return SearchWalk(Instance.of(layers(4), CARD, goal, recompute=True), 1.0, 0)


def scripted(evaluate: Evaluate, **others: Any) -> SimpleNamespace:
    """The loops of `annealing`, with this evaluator; a step over swaps lets op 0 wait 10 ns more."""

    def wait_longer(state: State, *_: object) -> None:
        state.swaps.stall[0] += 10

    return plain(annealing, **{"evaluate": evaluate, "change_swaps": wait_longer, **others})


def anneal(loops: SimpleNamespace, walk: SearchWalk, steps: int, **how: Any) -> int:
    """Anneal with ops that may wait, so cold that nothing dearer is accepted."""
    schedule = {"hot": 1e-9, "cold": 1e-9, "stall_budget": FAR, "delay_weight": 0.0, "recompute_rate": 0} | how
    saved = Saved(walk.drops.copy(), walk.state.swaps.copy())
    where = (walk.state, walk.recompute, saved, walk.best, walk.limits)
    done: int = loops.anneal(*where, CoolingSchedule(steps=steps, **schedule), np.array([1]))
    return done


def stall(walk: SearchWalk) -> int:
    return int(walk.state.swaps.stall[0])


def test_a_state_that_costs_no_more_is_accepted_without_a_draw() -> None:
    accepts, random = plain(annealing)._accepts, np.array([1])
    assert accepts(1.0, 1.0, 0.1, random) and accepts(1.0, 0.5, 0.1, random) and random[0] == 1


@pytest.mark.parametrize("more", [0.5, 1.0, 3.0])
def test_one_that_costs_more_is_accepted_by_temperature(more: float) -> None:
    accepts, random = plain(annealing)._accepts, np.array([1])
    accepted = sum(accepts(2.0, 2.0 + 0.25 * more, 0.25, random) for _ in range(4000))
    assert accepted / 4000 == pytest.approx(exp(-more), abs=0.02)


def test_the_temperature_falls_geometrically_over_the_steps() -> None:
    temperatures = []

    def accepts(cost: float, candidate: float, temperature: float, random: object) -> bool:
        temperatures.append(temperature)
        return True

    loops = scripted(lambda state, limit: (1.0, 1), _accepts=accepts)
    anneal(loops, walk_to(20), 4, hot=1.0, cold=0.0625)
    assert temperatures == pytest.approx([0.5, 0.25, 0.125, 0.0625])


def test_what_costs_less_is_kept_and_what_costs_more_is_undone() -> None:
    """The cost is least where op 0 waits 30 ns: steps behind that are undone one by one."""
    walk = walk_to(20)
    begin = walk.state.times.begin.copy()
    loops = scripted(lambda state, limit: (abs(state.swaps.stall[0] - 30.0), 1))
    assert anneal(loops, walk, 8) == 8
    assert stall(walk) == 30
    np.testing.assert_array_equal(walk.state.times.begin[1:], begin[1:] + 30)  # the times of the state, not of a step


def test_swaps_are_undone() -> None:
    def select(state: State, *_: object) -> None:
        state.swaps.selected[0], state.swaps.copied_by[0], state.swaps.lengths[:] = True, 0, 1
        state.swaps.outs[0] = state.swaps.ins[0] = 1

    walk = walk_to(20)
    before = walk.state.swaps.copy()
    anneal(scripted(lambda state, limit: (float(state.swaps.selected[0]), 1), change_swaps=select), walk, 2)
    for column, old in zip(walk.state.swaps[:2], before[:2]):
        np.testing.assert_array_equal(column, old)
    assert not walk.state.swaps.lengths.any()


def recompute_longer(possible: bool) -> Callable[..., bool]:
    """A step over drops: what is recomputed before op 1 takes 10 ns more."""

    def change(state: State, *_: object) -> bool:
        state.drops.targets[1] = 1
        state.drops.added_ns[1] += 10
        return possible

    return change


def test_drops_that_cost_less_are_kept_and_others_undone() -> None:
    walk = walk_to(20)
    loops = scripted(
        lambda state, limit: (abs(state.drops.added_ns[1] - 20.0), 1), change_drops=recompute_longer(possible=True)
    )
    assert anneal(loops, walk, 20, recompute_rate=100) == 20  # five of them: each counts as four
    assert walk.drops.added_ns[1] == 20
    assert walk.state.times.period[0] == walk.state.problem.period + 20


@pytest.mark.parametrize(("steps", "changes"), [(4, 1), (5, 2), (8, 2)])
def test_a_step_over_drops_counts_as_four(steps: int, changes: int) -> None:
    walk = walk_to(20)
    loops = scripted(lambda state, limit: (0.0, 1), change_drops=recompute_longer(possible=True))
    anneal(loops, walk, steps, recompute_rate=100)
    assert walk.drops.added_ns[1] == 10 * changes


def test_what_is_impossible_is_undone_whatever_it_would_cost() -> None:
    evaluated = []

    def cheaper_and_cheaper(state: State, limit: int) -> tuple[float, int]:
        evaluated.append(limit)
        return -float(len(evaluated)), 1

    walk = walk_to(20)
    anneal(scripted(cheaper_and_cheaper, change_drops=recompute_longer(possible=False)), walk, 8, recompute_rate=100)
    assert walk.drops.added_ns[1] == 0 and len(evaluated) == 1


def test_a_delay_costs_by_its_weight_only_where_ops_may_wait() -> None:
    walk, score = walk_to(20), scripted(lambda state, limit: (2.0, 5))._score
    walk.state.swaps.stall[0], walk.drops.added_ns[1], walk.drops.extra_ns[2] = 8, 4, 4
    schedule = CoolingSchedule(1, 1.0, 1.0, stall_budget=1, delay_weight=0.5, recompute_rate=0)
    assert score(walk.state, 10, schedule) == StateScore(2.0 + 0.5 * 16 / walk.state.problem.period, 5, 16)
    assert score(walk.state, 10, schedule._replace(stall_budget=0)) == StateScore(2.0, 5, 0)


def record(walk: SearchWalk, current: StateScore, evaluate: Evaluate, **limits: int) -> tuple[StateScore, list[int]]:
    """Record a state with limits by name; return its score then, and the limits."""
    names = {"limit": LIMIT, "goal": GOAL, "best_limit": BEST_LIMIT, "best_delay": BEST_DELAY}
    for name, value in limits.items():
        walk.limits[names[name]] = value
    schedule = CoolingSchedule(1, 1.0, 1.0, stall_budget=1, delay_weight=0.0, recompute_rate=0)
    score = scripted(evaluate)._record(walk.state, walk.best, walk.limits, current, schedule)
    return score, walk.limits[[LIMIT, GOAL, BEST_LIMIT, BEST_DELAY]].tolist()


def test_while_a_limit_is_kept_to_it_falls_by_a_thousandth_down_to_the_goal() -> None:
    walk = walk_to(20)
    walk.state.swaps.stall[0], walk.drops.choice.recompute_at[0] = 7, 3
    seen = []

    def keeps(state: State, limit: int) -> tuple[float, int]:
        seen.append(limit)
        return 0.5, 0

    limits = {"limit": 10_000, "goal": 9_975, "best_limit": 10_001, "best_delay": FAR}
    score, after = record(walk, StateScore(1.0, 0, 7), keeps, **limits)
    assert seen == [9_990, 9_980, 9_975]
    assert after == [9_975, 9_975, 9_975, 7] and score == StateScore(0.5, 0, 7)
    assert walk.best.swaps.stall[0] == 7 and walk.best.choice.recompute_at[0] == 3


def test_the_limit_stays_where_it_is_exceeded() -> None:
    """At 9,990 it is: so the state is the best for 10,000, and annealing goes on towards 9,990."""
    walk = walk_to(20)
    limits = {"limit": 10_000, "goal": 9_000, "best_limit": 10_001, "best_delay": FAR}
    score, after = record(walk, StateScore(1.0, 0, 0), lambda state, limit: (3.0, 4), **limits)
    assert after == [9_990, 9_000, 10_000, 0] and score == StateScore(3.0, 4, 0)


@pytest.mark.parametrize(
    ("score", "best_limit", "best_delay", "recorded"),
    [
        (StateScore(1.0, 0, 5), 90, 6, True),  # less delay at the goal
        (StateScore(1.0, 0, 5), 90, 5, False),
        (StateScore(1.0, 0, 5), 90, 4, False),
        (StateScore(1.0, 0, 5), 91, 4, True),  # a lower limit, whatever the delay
        (StateScore(1.0, 1, 5), 91, 6, False),  # exceeded
    ],
)
def test_only_what_is_better_than_the_best_is_recorded(
    score: StateScore, best_limit: int, best_delay: int, recorded: bool
) -> None:
    walk = walk_to(20)
    walk.state.swaps.stall[0] = 5
    limits = {"limit": 90, "goal": 90, "best_limit": best_limit, "best_delay": best_delay}
    _, after = record(walk, score, lambda state, limit: (1.0, 0), **limits)
    assert after == [90, 90, *((90, 5) if recorded else (best_limit, best_delay))]
    assert walk.best.swaps.stall[0] == (5 if recorded else 0)


def test_annealing_ends_at_the_goal_without_delay_and_not_before() -> None:
    def steps_taken(goal: int, waiting: int) -> int:
        walk = walk_to(goal)
        walk.state.swaps.stall[0] = waiting
        keeps_to_20 = scripted(lambda state, limit: (0.0, max(20 - limit, 0)))
        return anneal(keeps_to_20, walk, 8)

    assert steps_taken(goal=20, waiting=0) == 0
    assert steps_taken(goal=20, waiting=1) == 8  # less delay may be found
    assert steps_taken(goal=19, waiting=0) == 8  # a lower limit may be
