"""Which of several plans a search returns: the most robust one, the one for the lowest limit, and when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpumem.base.errors import NotReached
from gpumem.simulator import Realised, Uncertainty
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.facts.limits import Judge
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.swap.search import robust
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search._pace import Pace
from gpumem.swap.search.annealing import BEST_LIMIT
from gpumem.swap.search.robust import FEW, FINAL, MANY, Question, most_robust
from gpumem.trace import Trace
from tests.swap.nets import CARD, line

planner = import_module("gpumem.swap.search.planner")  # the package has a function `search`

OFF = Uncertainty(spread=0.3, copy_noise=0.3)
SWAPS = [Plan((Swap(0, 0, 4, 2, prefetch, out),), 5) for prefetch in (2, 3, 4) for out in (0, 1)]
NOTHING = Plan((), 5)
SLOW_LINK = replace(CARD, into=Link(40.0, 0.0))


def choose(
    monkeypatch: pytest.MonkeyPatch,
    overheads: dict[Plan, list[float]],
    *,
    limit: int = 16,
    many: dict[Plan, list[float]],
) -> Plan:
    """Choose among plans of these overheads in draws, the first of them for the estimates; `many`: in many draws."""
    plans = [*overheads]
    by_roles = {str(plan.apply(line()).ops.role.tolist()): plan for plan in plans}
    assert len(by_roles) == len(plans)

    def realised(trace: Trace, planned: Trace, *args: Any, draws: int, **how: Any) -> Realised:
        plan = by_roles[str(planned.ops.role.tolist())]
        return Realised(OFF, np.array((many if draws == MANY else overheads)[plan]))

    monkeypatch.setattr(robust, "realised", realised)
    monkeypatch.setattr(robust, "PRICE", 10.0)

    def misses(trace: Trace, machine: Machine, limit: int) -> Plan:
        raise NotReached(limit + 1, limit)

    others = [misses, *(lambda *_, plan=plan: plan for plan in plans[1:])]
    return most_robust(Question(line(), CARD, limit, OFF), lambda *_: plans[0], others)  # type: ignore[arg-type]


def test_the_plan_that_is_cheap_in_nearly_all_draws_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is cheap on average, but not in one draw of ten."""
    overheads = {SWAPS[0]: [0.0] * 18 + [1.0, 1.0], SWAPS[1]: [0.3] * 20, SWAPS[2]: [0.4] * 20}
    assert choose(monkeypatch, overheads, many=overheads) == SWAPS[1]


def test_of_two_that_are_equally_dear_then_the_cheaper_on_average_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    overheads = {SWAPS[0]: [0.3] * 20, SWAPS[1]: [0.2] * 10 + [0.3] * 10}
    assert choose(monkeypatch, overheads, many=overheads) == SWAPS[1]


def test_the_best_few_are_judged_once_more_by_many_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {plan: [0.1 * rank] * FEW for rank, plan in enumerate(SWAPS)}
    many = {plan: [1.0 - 0.1 * rank] * MANY for rank, plan in enumerate(SWAPS)}
    assert choose(monkeypatch, few, many=many) == SWAPS[FINAL - 1]


def test_a_plan_above_the_limit_is_no_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    overheads = {SWAPS[2]: [0.3] * 20, NOTHING: [0.0] * 20}
    assert choose(monkeypatch, overheads, many=overheads) == NOTHING
    assert choose(monkeypatch, overheads, limit=8, many=overheads) == SWAPS[2]


def lowest(
    monkeypatch: pytest.MonkeyPatch, without: tuple[Plan, int], little: tuple[Plan, int] | None, stall: float
) -> tuple[Plan, int]:
    """The lowest limit where a walk ends with these plans and limits, without stalls and then with a few."""

    class Walk:
        windows, state = (0,), SimpleNamespace(problem=SimpleNamespace(period=50))

        def __init__(self, *args: object) -> None:
            self.limits, self.reached = np.zeros(4, np.int64), NOTHING

        def without_stalls(self, share: float) -> None:
            self.reached, self.limits[BEST_LIMIT] = without

        def a_little_stall(self, share: float, budget: int) -> None:
            assert budget == int(50 * stall) > 0 and little is not None
            self.reached, self.limits[BEST_LIMIT] = little

        def plan(self) -> Plan:
            return self.reached

    monkeypatch.setattr(planner, "Walk", Walk)
    plan, limit = planner.lowest(line(), SLOW_LINK, stall=stall)
    return plan, limit


def test_the_lowest_limit_is_that_of_a_plan_which_the_simulation_finds_cheap_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With this plan X comes back late, by 28 ns at 16 bytes and by 30 at 8: it is as good as none below 0.56."""
    swapped = SWAPS[2]
    assert lowest(monkeypatch, (NOTHING, 16), (swapped, 8), 0.7) == (swapped, 8)
    assert lowest(monkeypatch, (NOTHING, 16), (swapped, 8), 0.5) == (NOTHING, 16)
    assert lowest(monkeypatch, (swapped, 8), None, 0.0) == (NOTHING, 16)


def test_a_limit_is_never_below_what_its_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lowest(monkeypatch, (SWAPS[2], 5), (SWAPS[2], 6), 0.7) == (SWAPS[2], 8)


class Scripted:
    """A race, and the walk without stalls before it, of which nothing is known but how they end."""

    def __init__(self, reached: Plan | None, *, gaps: int = 1, known: Plan | None = None) -> None:
        self.judge, self.known, self.recompute = Judge(line(), SLOW_LINK, 16), dict[int, Plan](), True
        self.reached, self.windows, self.runs = reached, range(gaps), list[bool]()
        self.walks = 0
        if known is not None:
            self.judge.offer(known)

    def instance(self) -> None: ...

    def begin(self, instance: None) -> Scripted:
        return self

    def without_stalls(self, share: float, greedy_share: float) -> bool:
        self.walks += 1
        return self.reached is not None

    def plan(self) -> Plan:
        assert self.reached is not None
        return self.reached

    def run(self, greedy: bool) -> None:
        self.runs.append(greedy)


def test_without_stalls_there_is_no_race() -> None:
    race = Scripted(NOTHING)
    planner._anneal(race, greedy=True)
    assert race.judge.best == NOTHING and not race.runs


def test_with_stalls_there_is_one_that_begins_with_the_best_plan() -> None:
    race = Scripted(None, known=SWAPS[2])
    planner._anneal(race, greedy=True)
    assert race.walks == 1 and race.runs == [True] and race.known == {race.judge.makespan: SWAPS[2]}
    race = Scripted(None, gaps=0)
    planner._anneal(race, greedy=False)
    assert race.walks == 0 and race.runs == [False] and not race.known


def efforts(monkeypatch: pytest.MonkeyPatch, plans: list[Plan], start: Plan | None = None) -> tuple[Plan, list[bool]]:
    """Search with five efforts, of which each comes to such a plan; return whether each had greedy starts too."""
    greedily: list[bool] = []

    def anneal(race: Any, *, greedy: bool) -> None:
        greedily.append(greedy)
        race.judge.offer(plans[len(greedily) - 1])

    def five(self: Pace, effort: float) -> Iterator[float]:
        yield from [effort] * 5

    monkeypatch.setattr(planner, "_anneal", anneal)
    monkeypatch.setattr(planner, "ask_all", lambda *_, **__: None)
    monkeypatch.setattr(Pace, "efforts", five)
    return planner.search(line(), SLOW_LINK, 8, algorithms={}, start=start), greedily


def test_the_first_efforts_have_greedy_starts_and_one_without_overhead_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = SWAPS[2]
    plan, greedily = efforts(monkeypatch, [slow] * 5)
    assert plan.swaps == slow.swaps and greedily == [True, True, False, False, False]
    free = SWAPS[2]
    monkeypatch.setattr(Judge, "stall", property(lambda judge: 0 if judge.best else FAR, lambda judge, value: None))
    assert efforts(monkeypatch, [free] * 5)[1] == [True]


def test_a_plan_that_is_given_is_returned_where_no_better_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Plan((Recompute(0, 0, 4, 3),), 5)  # 10 ns, where the swap takes 30
    plan, _ = efforts(monkeypatch, [SWAPS[2]] * 5, start)
    assert [type(decision) for decision in plan.decisions] == [Recompute]
