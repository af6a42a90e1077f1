"""Whose plans are asked for, which walks start and go on, and which plan a search returns: all scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator import Realised, Uncertainty
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts.limits import Judge
from gpumem.swap.plan import Plan, Recompute, Swap, Variant
from gpumem.swap.plan.tails import Tails
from gpumem.swap.search import multistart, robust
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search._pace import Pace
from gpumem.swap.search.annealing import BEST_DELAY, BEST_LIMIT
from gpumem.swap.search.multistart import WalkRace, ask_all, start_from_drops
from gpumem.swap.search.robust import FEW, FINAL, MANY, Question, most_robust
from gpumem.trace import I64, RECOMPUTE, Buffers, Ops, Trace
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

    def started(self: WalkRace, plans: object, greedy: bool) -> Iterator[ScriptedWalk]:
        yield from walks

    monkeypatch.setattr(WalkRace, "_starts", started)
    monkeypatch.setattr(multistart, "ROUNDS", tuple((count, 0.1) for count in most))
    race = WalkRace(judge(), no_instance, no_walk, {}, recompute=False)
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

    race = WalkRace(judge(), instance, lambda _: ScriptedWalk("a", [], [FAR]), known, recompute=False)  # type: ignore[arg-type,return-value]
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
        return ScriptedWalk("a", [], can_start=began[-1][0] is not UNDECLARED_WRITES, many=many)

    race = WalkRace(judge(), instance, begin, {}, recompute=recompute)
    walks = list(race._starts(plans, greedy))
    assert len(walks) == sum(plan is not UNDECLARED_WRITES for plan, _ in began)
    return began


UNDECLARED_WRITES = Plan((Swap(0, 0, 4, 3, 4, 0),), 5)  # as if it could not be
RECOMPUTED = Plan((Recompute(0, 0, 4, 3),), 5)


def test_a_good_plan_of_swaps_starts_a_second_time_without_recomputation() -> None:
    assert starts([SWAPPED, FREE]) == [(SWAPPED, True), (SWAPPED, False), (FREE, True)]
    assert starts([RECOMPUTED, FREE]) == [(RECOMPUTED, True), (FREE, False), (FREE, True)]
    assert starts([RECOMPUTED, RECOMPUTED, FREE]) == [(RECOMPUTED, True), (RECOMPUTED, True), (FREE, True)]
    assert starts([SWAPPED, FREE], recompute=False) == [(SWAPPED, False), (FREE, False)]


def test_a_plan_that_cannot_be_said_is_no_start() -> None:
    assert starts([UNDECLARED_WRITES, FREE], recompute=False) == [(UNDECLARED_WRITES, False), (FREE, False)]


def test_where_there_is_little_time_the_best_plan_has_all_of_it() -> None:
    assert starts([FREE, SWAPPED], many=multistart.FEW) == [(FREE, True), (FREE, False), (SWAPPED, True)]
    assert starts([FREE, SWAPPED], many=multistart.FEW - 1) == [(FREE, True)]


@pytest.mark.parametrize(("recompute", "greedy"), [(True, False), (False, True), (False, False)])
def test_greedy_starts_are_those_that_recompute_where_they_are_asked_for(recompute: bool, greedy: bool) -> None:
    starts([FREE], recompute=recompute, greedy=greedy)
    with pytest.raises(LookupError):
        starts([FREE], recompute=True, greedy=True)


class DroppingWalk:
    """A walk that drops A of `recomputable`, which is recomputed right before op 8, and notes what is asked of it."""

    goal, effort, drops = 100, 0.5, SimpleNamespace(choice=None)

    def __init__(self, *, can_trim: bool = True) -> None:
        trace = recomputable()
        # As of a trace that some other plan made.
        self.trace = replace(
            trace,
            buffers=replace(trace.buffers, of=np.roll(np.arange(3), 1)),
            ops=replace(trace.ops, of=np.arange(10)[::-1].copy()),
        )
        self.can_trim, self.log = can_trim, list[str]()
        self.selected: list[tuple[int, int]] = []
        self.stalls = 0

    def drop_greedily(self, goal: int, most: int) -> None:
        self.log.append(f"drop to {goal}, {most} tries")

    def trim_holds(self) -> bool:
        return self.can_trim

    def changes(self, choice: object) -> list[Recompute]:
        return [Recompute(0, 0, 9, 8)]

    def select(self, gaps: Iterator[tuple[int, int]]) -> None:
        self.selected = [*gaps]

    def stall(self, planned: Trace, line: Timeline) -> None:
        line.check_fits(planned)
        self.stalls = sum(line.stalls.values())

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.log.append(name)


def recomputable() -> Trace:
    """A, B and C of 8 bytes, by ops 0 to 2 of nothing, read by ops 9, 8 and 7."""
    reads = [[], [], [], [], [], [], [], [2], [1], [0]]
    ops = Ops.make(reads, [[0], [1], [2], *([[]] * 7)], duration=[10] * 10, name=["zeros"] * 10)
    return Trace(Buffers.make([8, 8, 8], [0, 1, 2], [10, 9, 8]), ops)


def start(
    monkeypatch: pytest.MonkeyPatch, walk: DroppingWalk, swaps: Callable[[Trace], Plan], **how: bool
) -> tuple[bool, list[str]]:
    def autoswap(trace: Trace, machine: Machine, limit: int, *, peaks: str, threshold: int) -> Plan:
        assert (limit, peaks, threshold) == (100, "all", 1)
        return swaps(trace)

    monkeypatch.setattr(multistart, "autoswap", autoswap)
    monkeypatch.setattr(multistart, "TRIES", 1000.0)
    return start_from_drops(walk, CARD, 1.5, **how), walk.log  # type: ignore[arg-type]


def two_swaps(recomputed: Trace) -> Plan:
    """B between ops 1 and 8, and what was recomputed of A between its recomputation and op 9."""
    assert recomputed.ops.role[8] == RECOMPUTE
    (remade,) = recomputed.ops.writes[8]
    return Plan((Swap(1, 1, 9, 3, 9, 1), Swap(int(remade), 8, 10, 9, 10, 8)), 11)


def test_a_start_from_drops_has_the_swaps_and_the_waits_of_autoswap(monkeypatch: pytest.MonkeyPatch) -> None:
    """B comes back for op 8 only when that is due: it waits. What is recomputed has no gap in the trace itself."""
    walk = DroppingWalk()
    assert start(monkeypatch, walk, two_swaps) == (True, ["drop to 150, 50 tries"])
    assert walk.selected == [(1, 1)] and walk.stalls > 0


def test_small_workspaces_and_dead_tails_are_there_before_values_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = "drop to 150, 50 tries"
    small = ["shrink_workspaces", drop, "speed_up_ops"]
    assert start(monkeypatch, DroppingWalk(), two_swaps, small=True) == (True, small)
    assert start(monkeypatch, DroppingWalk(), two_swaps, tails=True) == (True, ["hold_tails", drop])


@pytest.mark.parametrize("error", [NotReached(101, 100), Infeasible(1, 101, 100)])
def test_drops_from_which_swaps_do_not_get_to_the_limit_are_no_start(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(trace: Trace) -> Plan:
        raise error

    walk = DroppingWalk()
    assert not start(monkeypatch, walk, fails, small=True)[0] and "speed_up_ops" not in walk.log


def test_half_of_the_drops_are_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not start(monkeypatch, DroppingWalk(can_trim=False), two_swaps)[0]
    with monkeypatch.context() as patch:
        patch.setattr(multistart.work, "over", lambda: True)
        assert not start(monkeypatch, DroppingWalk(), two_swaps)[0]


planner = import_module("gpumem.swap.search.planner")  # the package has a function `search`

OFF = Uncertainty(spread=0.3, copy_noise=0.3)
SWAPS = [Plan((Swap(0, 0, 4, 2, prefetch, out),), 5) for prefetch in (2, 3, 4) for out in (0, 1)]
NOTHING = Plan((), 5)


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

    class SearchWalk:
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

    monkeypatch.setattr(planner, "SearchWalk", SearchWalk)
    plan, limit = planner.lowest(line(), MACHINE, stall=stall)
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
        self.judge, self.known, self.recompute = Judge(line(), MACHINE, 16), dict[int, Plan](), True
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
    return planner.search(line(), MACHINE, 8, algorithms={}, start=start), greedily


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
