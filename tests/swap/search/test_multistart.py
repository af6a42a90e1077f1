"""Whose plans are asked for, which walks start, and which go on: with planners and walks that a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from gpumem.simulator.machine import Link
from gpumem.swap.facts.limits import Judge
from gpumem.swap.plan import Plan, Recompute, Swap, Variant
from gpumem.swap.plan.tails import Tails
from gpumem.swap.search import multistart
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search.annealing import BEST_DELAY
from gpumem.swap.search.multistart import Race, ask_all
from gpumem.trace import I64, Trace
from tests.swap.nets import CARD, chain, line

MACHINE = replace(CARD, into=Link(40.0, 0.0))
SWAPPED = Plan((Swap(0, 0, 4, 2, 3, 0),), 5)  # X of `line` comes back from 28 to 68: op 4 waits for 28 ns
FREE = Plan((), 5)  # 16 bytes are live, and allowed


def judge() -> Judge:
    return Judge(line(), MACHINE, 16)


def named(plan: Plan, asked: list[str], name: str) -> Callable[..., Plan]:
    def planner(trace: Trace, machine: object, limit: int) -> Plan:
        asked.append(name)
        return plan

    return planner


def ask(
    planners: list[Callable[..., Plan]], judge: Judge, menu: dict[int, list[Variant]] | None = None
) -> dict[int, Plan]:
    known: dict[int, Plan] = {}
    trace = judge.trace
    ask_all(planners, judge, menu or {}, Tails(trace, trace), known=known)  # type: ignore[arg-type]
    return known


def test_the_first_plan_without_overhead_ends_the_asking() -> None:
    asked: list[str] = []
    known = ask([named(SWAPPED, asked, "a"), named(FREE, asked, "b"), named(FREE, asked, "c")], judge())
    assert asked == ["a", "b"] and known == {68: SWAPPED, 50: FREE}


@pytest.mark.parametrize(("small", "asked_too"), [(5, True), (4, False)])
def test_slow_planners_are_asked_on_short_traces_or_where_no_plan_swaps(
    monkeypatch: pytest.MonkeyPatch, small: int, asked_too: bool
) -> None:
    asked: list[str] = []
    slow = named(SWAPPED, asked, "slow")
    monkeypatch.setattr(multistart, "SMALL", small)
    monkeypatch.setattr(multistart, "SLOW", (slow,))
    ask([named(SWAPPED, asked, "a"), slow], judge())
    assert asked == (["a", "slow"] if asked_too else ["a"])
    asked.clear()
    ask([slow], judge())
    assert asked == ["slow"]


@pytest.mark.parametrize(("limit", "times"), [(95, 2), (80, 1)])
def test_plans_for_the_smallest_workspaces_are_asked_for_too_and_alone_where_recorded_ones_do_not_fit(
    limit: int, times: int
) -> None:
    """With its workspace op 1 holds 90 bytes more than the limit of 80 allows."""
    trace, menu = chain(workspace=60)
    asked: list[str] = []
    ask([named(Plan.of(trace), asked, "a")], Judge(trace, CARD, limit), menu)
    assert len(asked) == times


@dataclass(eq=False)
class ScriptedWalk:
    """A walk whose rounds end with these delays; `FAR`: the limit is not kept to."""

    name: str
    log: list[str]
    delays: list[int] = field(default_factory=list)
    planned: Plan = SWAPPED
    can_start: bool = True
    many: int = 1000
    limits: I64 = field(default_factory=lambda: np.full(4, FAR))
    has_best: bool = False

    def from_plan(self, plan: Plan, line: object) -> bool:
        return self.can_start

    def steps(self, share: float) -> int:
        return self.many

    def back_to_best(self) -> None:
        self.log.append(f"{self.name} goes back")

    def with_stalls(self, share: float, rate: int) -> None:
        self.log.append(self.name)
        self.limits[BEST_DELAY] = self.delays.pop(0)
        self.has_best = bool(self.limits[BEST_DELAY] < FAR)

    def plan(self) -> Plan:
        self.log.append(f"{self.name} has a plan")
        return self.planned


def run(monkeypatch: pytest.MonkeyPatch, walks: list[ScriptedWalk], *most: int) -> dict[int, Plan]:
    """Let walks race that have started, so many in each round; return what is known then."""

    def started(self: Race, plans: object, greedy: bool) -> Iterator[ScriptedWalk]:
        yield from walks

    monkeypatch.setattr(Race, "_starts", started)
    monkeypatch.setattr(multistart, "ROUNDS", tuple((count, 0.1) for count in most))
    race = Race(judge(), no_instance, no_walk, {}, recompute=False)
    race.run(greedy=False)
    return race.known


def no_instance(**how: object) -> Any:
    raise AssertionError


def no_walk(instance: object) -> Any:
    raise AssertionError


def test_the_walks_with_least_delay_go_on_each_from_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    delays = {"a": [9], "b": [FAR], "c": [5, 4], "d": [7, FAR]}
    known = run(monkeypatch, [ScriptedWalk(name, log, rounds) for name, rounds in delays.items()], 4, 2)
    for name, rounds in delays.items():
        assert not rounds and log.count(f"{name} goes back") == log.count(name)
    assert [name for name in log if len(name) == 1] == ["a", "b", "c", "d", "c", "d"]
    assert [name for name in log if "plan" in name] == [f"{name} has a plan" for name in ("a", "c", "d", "c")]
    assert known == {68: SWAPPED}


def test_a_plan_without_overhead_ends_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    walks = [ScriptedWalk("a", log, [3], FREE), ScriptedWalk("b", log, [2])]
    assert run(monkeypatch, walks, 2, 1) == {50: FREE}
    assert "b" not in log


def plans_that_start(known: dict[int, Plan]) -> list[Plan]:
    """The plans from which walks start, where these are known."""
    began: list[Plan] = []

    def instance(*, plan: Plan, **how: object) -> None:
        began.append(plan)

    race = Race(judge(), instance, lambda _: ScriptedWalk("a", [], [FAR]), known, recompute=False)  # type: ignore[arg-type,return-value]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multistart, "ROUNDS", ((0, 0.1),))
        race.run(greedy=False)
    return began


def test_the_best_plans_that_get_to_the_limit_start_and_the_slowest_one() -> None:
    plans = [Plan((Swap(0, 0, 4, *copies, 0),), 5) for copies in ((2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (4, 4))]
    assert plans_that_start({60 - k: plan for k, plan in enumerate(plans)}) == [*plans[:2:-1], plans[0]]
    assert plans_that_start({60: plans[0], FAR: plans[1], 2 * FAR: plans[2]}) == [plans[0]]
    assert plans_that_start({}) == []


def starts(
    plans: list[Plan], *, recompute: bool = True, greedy: bool = False, many: int = 1000
) -> list[tuple[Plan, bool]]:
    """What walks start from: a plan, and whether they recompute."""
    began: list[tuple[Plan, bool]] = []

    def instance(*, recompute: bool, least: int, plan: Plan | None = None) -> Any:
        if plan is None:
            raise LookupError
        began.append((plan, recompute))

    def begin(instance: object) -> Any:
        return ScriptedWalk("a", [], can_start=began[-1][0] is not UNSAID, many=many)

    race = Race(judge(), instance, begin, {}, recompute=recompute)
    walks = list(race._starts(plans, greedy))
    assert len(walks) == sum(plan is not UNSAID for plan, _ in began)
    return began


UNSAID = Plan((Swap(0, 0, 4, 3, 4, 0),), 5)  # as if it could not be
RECOMPUTED = Plan((Recompute(0, 0, 4, 3),), 5)


def test_a_good_plan_of_swaps_starts_a_second_time_without_recomputation() -> None:
    assert starts([SWAPPED, FREE]) == [(SWAPPED, True), (SWAPPED, False), (FREE, True)]
    assert starts([RECOMPUTED, FREE]) == [(RECOMPUTED, True), (FREE, False), (FREE, True)]
    assert starts([RECOMPUTED, RECOMPUTED, FREE]) == [(RECOMPUTED, True), (RECOMPUTED, True), (FREE, True)]
    assert starts([SWAPPED, FREE], recompute=False) == [(SWAPPED, False), (FREE, False)]


def test_a_plan_that_cannot_be_said_is_no_start() -> None:
    assert starts([UNSAID, FREE], recompute=False) == [(UNSAID, False), (FREE, False)]


def test_where_there_is_little_time_the_best_plan_has_all_of_it() -> None:
    assert starts([FREE, SWAPPED], many=multistart.FEW) == [(FREE, True), (FREE, False), (SWAPPED, True)]
    assert starts([FREE, SWAPPED], many=multistart.FEW - 1) == [(FREE, True)]


@pytest.mark.parametrize(("recompute", "greedy"), [(True, False), (False, True), (False, False)])
def test_greedy_starts_are_those_that_recompute_where_they_are_asked_for(recompute: bool, greedy: bool) -> None:
    starts([FREE], recompute=recompute, greedy=greedy)
    with pytest.raises(LookupError):
        starts([FREE], recompute=True, greedy=True)
