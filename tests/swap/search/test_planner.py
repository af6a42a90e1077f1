"""The search: never worse than what it starts from, its limits and options, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.facts.limits import FAR, Judge, floor
from gpumem.swap.plan import Plan, Variant
from gpumem.swap.plan.tails import Tails
from gpumem.swap.search import multistart, walk
from gpumem.swap.search._recompute_state import POINTS
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.multistart import CHEAP, MORE, PROGRAM, SLOW, SMALL, SWAPPING, planners
from gpumem.swap.search.planner import lowest, search
from gpumem.swap.search.walk import SearchWalk
from gpumem.testing import steps
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared
from tests.strategies import machine_of, traces
from tests.swap.nets import CARD, chain
from tests.swap.search.oracles import check_plan, check_variants, menus, overhead

GTX = Machine.named("gtx1080ti")


@given(st.data())
def test_plans_pass_the_oracles_and_are_never_worse_than_autoswap(data: st.DataObject) -> None:
    trace = data.draw(traces())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    assume(trace.peak_live_bytes > 1)
    limit = data.draw(st.integers(1, trace.peak_live_bytes - 1))
    try:
        plan = search(trace, target, limit, effort=1e-6, seed=data.draw(st.integers(0, 3)))
    except Infeasible as stop:
        assert stop.needs == floor(trace)[1] > limit
        return
    except NotReached as stop:
        assert stop.reached > limit and target.pinned < 10_000
        return
    check_plan(trace, target, plan, limit)
    for score in SCORES:
        try:
            greedy = autoswap(trace, target, limit, score=score, peaks="all", threshold=1)
        except NotReached:
            continue
        assert overhead(trace, target, plan, limit) <= overhead(trace, target, greedy, limit)


@pytest.mark.jit
@pytest.mark.parametrize("recompute", [False, True])
def test_ops_that_take_no_time(recompute: bool) -> None:
    n, count = 10, 5
    reads = [[n - 1 - i] if n - 1 - i < count else [] for i in range(n)]
    ops = Ops.make(reads, [[i] if i < count else [] for i in range(n)], duration=[0] * n)
    trace = Trace(Buffers.make([4] * count, range(count), [n - b for b in range(count)]), ops)
    machine = GTX.with_(launch_ns=0)
    assert simulate(trace, machine).makespan == 0
    plan = search(trace, machine, 12, effort=1e-5, recompute=recompute)
    swapped = plan.apply(trace)
    greedy = autoswap(trace, machine, 12, threshold=1).apply(trace)
    known = simulate(greedy, machine, capacity=12).makespan
    assert swapped.peak_live_bytes <= 12 and simulate(swapped, machine, capacity=12).makespan <= known


@pytest.mark.jit
@given(st.data())
def test_half_duplex_and_the_pinned_budget_are_honoured_by_the_lowest_limit(data: st.DataObject) -> None:
    trace = data.draw(traces())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 8, 20])))
    plan, limit = lowest(trace, target, stall=0.1, effort=1e-5)
    if trace.peak_live_bytes:
        check_plan(trace, target, plan, limit)
    if plan.decisions:  # with two streams, waiting for memory may cost time without any swap
        assert overhead(trace, target, plan, limit) <= 0.1


@pytest.mark.thorough
@pytest.mark.jit
def test_the_same_seed_gives_the_same_plan() -> None:
    trace = bundled("resnet18")
    limit = trace.peak_live_bytes * 42 // 100
    once, again, other = (search(trace, GTX, limit, effort=0.02, seed=seed) for seed in (3, 3, 4))
    assert once == again != other


@pytest.mark.thorough
@pytest.mark.jit
def test_vgg16_needs_no_stall_at_60_percent_and_little_at_40() -> None:
    trace = bundled("vgg16")
    for percent, most in ((60, 0.0), (40, 0.16)):  # AutoSwap: 0.6 and 20 %
        limit = trace.peak_live_bytes * percent // 100
        plan = search(trace, GTX, limit, effort=0.1)
        assert overhead(trace, GTX, plan, limit) <= most
    plan, limit = lowest(trace, GTX, effort=0.05)
    assert limit < 0.6 * trace.peak_live_bytes
    check_plan(trace, GTX, plan, limit)


def test_a_trace_that_fits_needs_no_plan() -> None:
    trace = bundled("mlp3")
    assert search(trace, GTX, trace.peak_live_bytes) == Plan((), trace.n, trace.name)


def test_nothing_to_swap_leaves_the_peak() -> None:
    trace = Trace(Buffers.make([8], [0], [2]), Ops.make([[], [0]], [[0], []], duration=[5, 5]))
    assert lowest(trace, GTX) == (Plan((), 2, ""), 8)
    with pytest.raises(Infeasible, match="8"):
        search(trace, GTX, 7)


@pytest.mark.parametrize("wrong", [{"effort": 0}, {"effort": -1.0}, {"seconds": 0.0}])
def test_an_effort_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: {next(iter(wrong.values()))} .*positive and finite"):
        search(trace, GTX, trace.peak_live_bytes * 95 // 100, **wrong)


@pytest.mark.jit
def test_time_up_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bundled("vgg16")
    texts: list[str] = []
    limit, moment = trace.peak_live_bytes * 55 // 100, 0.0

    def hear(text: str) -> None:
        nonlocal moment
        texts.append(text)
        moment = 0.0 if text == "published planners" else 2.0  # up with the first step of annealing

    monkeypatch.setattr(work, "now", lambda: moment)
    plan = search(trace, GTX, limit, recompute=False, seconds=1.0, progress=hear)
    check_plan(trace, GTX, plan, limit)
    assert texts[0] == "published planners" and len(texts) == 2 and "% of the peak" in texts[-1]
    drops = SearchWalk(Instance.of(trace, GTX, limit), 1.0, 0).drops
    assert np.all(np.diff(drops.points[: drops.used[POINTS]]) > 0)


def test_a_gap_that_pays_only_with_another_one_is_found() -> None:
    """Found by brute force: the greedy start does not get below the peak, annealing has to go on from there."""
    ops = Ops.make([[], [], [], [0], [], [], []], [[], [], [], [], [], [], [0]], duration=[0, 0, 2, 0, 0, 1, 0])
    trace = Trace(Buffers.make([1, 1], [0, 4], [7, 5], persistent=[True, False]), ops)
    target = Machine("m", 100, Link(1.0, 0.05), Link(0.0, 0.05), 1.0, 1.0)
    assert lowest(trace, target, stall=0, effort=2e-4)[1] == 1


@pytest.mark.jit
@settings(max_examples=10)
@given(st.data())
def test_the_search_is_never_worse_than_what_it_starts_from(data: st.DataObject) -> None:
    trace = data.draw(steps())
    target = machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    assume(trace.peak_live_bytes > 1)
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 2, 1), trace.peak_live_bytes - 1))

    def time(planner) -> int | None:  # type: ignore[no-untyped-def]
        try:
            return simulate(planner(trace, target, limit).apply(trace), target, capacity=limit).makespan
        except (NotReached, Infeasible):
            return None

    known, menu = data.draw(st.sampled_from((*CHEAP, *SWAPPING))), data.draw(st.one_of(st.just({}), menus(trace)))
    others = time(known), time(data.draw(st.sampled_from((*MORE, *SLOW))))
    try:
        plan = search(trace, target, limit, effort=1e-6, algorithms=menu)
    except (Infeasible, NotReached):
        assert others[0] is None
        return
    check_variants(trace, target, plan, limit)
    reached = time(lambda *_: plan)
    assert reached is not None and (others[0] is None or reached <= others[0])
    try:
        start = known(trace, target, limit)
    except NotReached:
        return
    assert time(lambda *a: search(*a, effort=1e-6, recompute=False, start=start)) <= others[0]


def makespan(trace: Trace, machine: Machine, limit: int, planner: Callable[..., Plan]) -> int:
    """Of an iteration within the limit; far where the planner does not get there."""
    try:
        plan = planner(trace, machine, limit)
    except (NotReached, Infeasible):
        return FAR
    return simulate(plan.apply(trace), machine, capacity=limit).makespan


@pytest.mark.jit
@settings(max_examples=10)
@given(st.data())
def test_a_search_of_any_effort_is_at_or_below_all_that_it_asks(data: st.DataObject) -> None:
    trace, target = data.draw(steps()), machine_of(data, pinned=data.draw(st.sampled_from([0, 20, 10_000])))
    assume(trace.peak_live_bytes > 1)
    limit = data.draw(st.integers(max(trace.peak_live_bytes // 2, 1), trace.peak_live_bytes - 1))
    recompute = data.draw(st.booleans())
    some = (*CHEAP, *MORE, *((PROGRAM,) if trace.n <= SMALL and recompute else ()))
    for effort, asked in ((1e-6, CHEAP), (0.1 + 1e-6, some), (0.25 + 1e-6, (*some, *SLOW))):
        with patched(WORK=1.0):  # planners by the effort, hardly any annealing
            reached = makespan(
                trace, target, limit, partial(search, effort=effort, recompute=recompute, algorithms=None)
            )
        planners_asked = asked if recompute else [p.with_known({"recompute": False}) for p in asked if p not in SLOW]
        assert reached <= min(makespan(trace, target, limit, planner) for planner in (*planners_asked, *SWAPPING))


@contextmanager
def patched(**constants: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(walk, name, value)
        patch.setattr(multistart, "TRIES", 1.0)
        yield


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_on_shared_traces_too(path: Path, recompute: bool) -> None:
    trace = load(path).trace
    limit = max(trace.peak_live_bytes * 6 // 10, floor(trace)[1])
    asked = planners(trace, 0.1, recompute=recompute)
    with patched(WORK=1.0):
        reached = makespan(trace, GTX, limit, partial(search, effort=0.1, recompute=recompute, algorithms={}))
    assert reached <= min(makespan(trace, GTX, limit, planner) for planner in asked)


@pytest.mark.jit
def test_a_plan_without_overhead_ends_the_search() -> None:
    trace, texts = bundled("vgg16"), list[str]()
    limit = trace.peak_live_bytes * 97 // 100
    plan = search(trace, GTX, limit, progress=texts.append)
    assert texts == ["published planners"] and overhead(trace, GTX, plan, limit) == 0


def test_who_is_slow_does_not_take_the_time_of_who_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each planner moves on by what it says; `slow` takes all that it is given."""
    trace, moment, asked = bundled("mlp3"), 0.0, list[tuple[str, float]]()
    limit = trace.peak_live_bytes * 97 // 100

    def named(name: str, takes: float) -> Callable[..., Plan]:
        def planner(trace: Trace, machine: Machine, limit: int) -> Plan:
            nonlocal moment
            asked.append((name, round(work.left(), 3)))
            moment += min(takes, work.left())
            raise NotReached(trace.peak_live_bytes, limit)

        return planner

    monkeypatch.setattr(work, "now", lambda: moment)
    cheap, slow, judge = (
        (named("a", 0.5), named("b", 0.5)),
        (named("c", 100), named("d", 100)),
        Judge(trace, GTX, limit),
    )
    with work.within(10.0):
        multistart.ask_all(cheap, judge, {}, Tails(trace, trace), known={})
        with work.part(share=multistart.START):
            multistart.ask_all(slow, judge, {}, Tails(trace, trace), known={}, each=0.5)
    assert asked == [("a", 10.0), ("b", 9.5), ("c", 1.35), ("d", 1.35)]


@pytest.mark.jit
def test_cut_short_a_search_has_what_the_cheap_ones_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up as soon as the first planner that takes seconds is asked."""
    trace, moment = bundled("vgg16"), 0.0
    limit = trace.peak_live_bytes * 45 // 100

    def slow(*args: object, **options: object) -> Plan:
        nonlocal moment
        moment = 100.0
        raise NotReached(0, limit)

    monkeypatch.setattr(work, "now", lambda: moment)
    monkeypatch.setattr(multistart, "SWAPPING", (slow,))
    reached = makespan(trace, GTX, limit, partial(search, seconds=1.0))
    assert reached <= min(makespan(trace, GTX, limit, planner) for planner in CHEAP) < FAR


@pytest.mark.jit
def test_an_op_takes_a_slower_way_where_that_costs_least() -> None:
    trace, menu = chain(workspace=25)
    plan = search(trace, CARD, 80, effort=1e-4, algorithms=menu)
    assert simulate(plan.apply(trace), CARD, capacity=80).makespan == 265
    assert Variant(1, "narrow", 65, 0) in plan.decisions
    assert plan == search(trace, CARD, 80, effort=1e-4, algorithms=menu)


@pytest.mark.jit
def test_limits_below_what_recorded_workspaces_need() -> None:
    trace, menu = chain(workspace=60)
    with pytest.raises(Infeasible, match="op 1 must hold 90 B"):
        search(trace, CARD, 80, algorithms={})
    with pytest.raises(Infeasible, match="op 1 must hold 90 B"):
        search(trace, CARD, 80, algorithms=menu, recompute=False)
    with pytest.raises(Infeasible, match="op 2 must hold 60 B"):
        search(trace, CARD, 59, algorithms=menu)
    plan = search(trace, CARD, 80, effort=1e-4, algorithms=menu)
    assert simulate(plan.apply(trace), CARD, capacity=80).makespan == 265


def test_a_gap_that_is_too_short_for_a_copy_is_swapped_where_the_limit_asks_for_it() -> None:
    trace = Trace(Buffers.make([8, 8], [0, 1], [3, 2]), Ops.make([[], [], [0]], [[0], [1], []], duration=[5, 5, 5]))
    target = Machine("m", 100, Link(0.0, 1.0), Link(0.0, 1.0), 1.0, 1.0)
    plan = search(trace, target, 8, effort=1e-6, algorithms={})
    check_variants(trace, target, plan, 8)
    assert len(plan.swaps) == 1


@pytest.mark.parametrize(("seed", "makespan", "digest"), [(0, 261, 2935606015), (1, 248, 4163522240)])
def test_the_same_plan_with_and_without_the_compiler(seed: int, makespan: int, digest: int) -> None:
    """The suite runs both ways; where the search changes, both have to get the same new figures."""
    size, n = [(37 * i * i + 11 * i) % 50 + 10 for i in range(8)], 16
    ops = Ops.make(
        [[i - 1] if 0 < i < 8 else [n - 1 - i] if i else [] for i in range(n)],
        [[i] if i < 8 else [] for i in range(n)],
        duration=[29 * i % 23 + 5 for i in range(n)],
    )
    trace = Trace(Buffers.make(size, range(8), range(n, 8, -1)), ops)
    target = Machine("m", 1000, Link(1.0, 0.5), Link(1.0, 0.5), 1.0, 1.0)
    limit = trace.peak_live_bytes * 60 // 100
    plan = search(trace, target, limit, effort=1e-4, seed=seed, algorithms={})  # a published one takes 261 ns
    assert simulate(plan.apply(trace), target, capacity=limit).makespan == makespan
    assert crc32(plan.to_json().encode()) == digest
