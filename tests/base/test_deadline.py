"""Every planner ends by its deadline, with a plan that holds or with how far it got; no test looks at a real clock.

It is asked of all planners of `swap` and `pool`, and `gpumem.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

import gpumem
from gpumem import check
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.work import LATE
from gpumem.io import bundled
from gpumem.pool import PLANNERS as PLACERS, best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import PLANNERS, Plan, linear_programs as linear
from gpumem.swap._solver_process import answer
from gpumem.swap.facts.limits import floor
from gpumem.swap.search.planner import lowest
from gpumem.trace import Trace
from tests.nets import GTX, MIB, hill, net
from tests.strategies import machine_of, traces

SMALL = {"search": {"effort": 1e-6}, "bayes": {"evaluations": 5}, "autoswap": {"threshold": 1}}
ONCE = {"best-fit", "first-fit"}  # they make one placement, so there is nothing to cut short
PROMPT = 12  # looks at the clock after the time is up: each loop around another looks once


class Clock:
    """Stands still until it is looked at for the k-th time, is far ahead from then on, and goes on."""

    def __init__(self, k: float) -> None:
        self.k, self.looks = k, 0

    def __call__(self) -> float:
        self.looks += 1
        return 0.0 if self.looks <= self.k else 1e6 + self.looks

    @property
    def late(self) -> int:
        """Looks after the jump."""
        return max(self.looks - int(self.k), 0)


def solved_here(question: dict[str, Any], *, grace: float = 0.0) -> Any:
    """The solver without a process of its own, which would be ended and begun anew whenever the clock jumps."""
    return None if work.over() else answer(question)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Clock]:
    monkeypatch.setattr(linear, "ask", solved_here)

    def jump(k: float) -> Clock:
        made = Clock(k)
        monkeypatch.setattr(work, "now", made)
        return made

    return jump


def held(trace: Trace, target: Machine, plan: Plan, limit: int) -> None:
    """Hold a plan against all oracles."""
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=target.pinned)
    line = simulate(swapped, target, capacity=limit)
    check.timeline(swapped, line, target.durations(swapped), capacity=limit, duplex=target.duplex)


def ends_well(name: str, trace: Trace, target: Machine, limit: int) -> bool:
    """Plan; whether there is a plan. Without one, what was reached lies where it can."""
    try:
        plan = PLANNERS[name](trace, target, limit, seconds=1.0, **SMALL.get(name, {}))
    except Infeasible as stop:
        assert stop.needs == floor(trace)[1] > limit
        return False
    except NotReached as stop:
        assert max(floor(trace)[1], limit + 1) <= stop.reached <= trace.peak_live_bytes
        return False
    held(trace, target, plan, limit)
    return True


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_every_planner_ends_by_its_deadline_wherever_it_comes(name: str, clock: Callable[[float], Clock]) -> None:
    trace = net()
    limit = trace.peak_live_bytes * 3 // 4
    whole = clock(math.inf)
    there = ends_well(name, trace, GTX, limit)
    assert whole.looks > 1, f"{name} never looks at the clock"
    for k in range(min(whole.looks, 40)):
        cut = clock(k)
        assert ends_well(name, trace, GTX, limit) <= there
        assert cut.late <= PROMPT
    clock(1)
    with pytest.raises(NotReached, match=LATE) as stop:
        PLANNERS[name](trace, GTX, limit, seconds=1.0)
    assert stop.value.reached == trace.peak_live_bytes  # nothing was done yet


@pytest.mark.parametrize("name", sorted(PLANNERS))
@given(data=st.data())
def test_any_deadline_leaves_a_valid_plan(name: str, data: st.DataObject) -> None:
    trace, target = data.draw(traces()), machine_of(data, pinned=data.draw(st.sampled_from([20, 10_000])))
    assume(trace.peak_live_bytes > 1)
    limit = data.draw(st.integers(1, trace.peak_live_bytes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "ask", solved_here)
        patch.setattr(work, "now", Clock(data.draw(st.integers(0, 60))))
        ends_well(name, trace, target, limit)


@pytest.mark.parametrize("name", sorted({*PLACERS} - ONCE))
def test_every_placer_that_goes_on_ends_by_its_deadline(name: str, clock: Callable[[float], Clock]) -> None:
    trace = bundled("vgg16")
    whole = clock(math.inf)
    PLACERS[name](trace, seconds=1.0)
    for k in {0, 1, 2, 3, whole.looks // 2, whole.looks - 1}:
        cut = clock(k)
        placed = PLACERS[name](trace, seconds=1.0)
        check.placement(trace, placed)
        assert placed.height <= best_fit(trace).height and cut.late <= PROMPT


@pytest.mark.parametrize("planner", [*PLANNERS.values(), *(PLACERS[name] for name in sorted({*PLACERS} - ONCE))])
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_that_are_none_are_refused(planner: Callable[..., object], seconds: float) -> None:
    trace = hill(1, 2)
    rest = (GTX, trace.peak_live_bytes) if planner in PLANNERS.values() else ()
    with pytest.raises(ValueError, match=f"seconds: {seconds} must be positive"):
        planner(trace, *rest, seconds=seconds)


def test_without_seconds_nobody_looks_at_the_clock(clock: Callable[[float], Clock]) -> None:
    trace, seen = net(), clock(0)
    for name in ("autoswap", "search", "tensile"):
        PLANNERS[name](trace, GTX, trace.peak_live_bytes * 3 // 4, **SMALL.get(name, {}))
    gpumem.plan(trace, GTX, pool=trace.peak_live_bytes * 3 // 4)
    assert seen.looks == 0


def test_the_lowest_limit_is_what_was_found_by_then(clock: Callable[[float], Clock]) -> None:
    trace = net()
    for k in (1, 3, 5, 9):
        clock(k)
        plan, limit = lowest(trace, GTX, effort=1e-6, seconds=1.0)
        held(trace, GTX, plan, limit)
        assert limit <= trace.peak_live_bytes


@pytest.mark.parametrize("goal", [{"pool": "80%"}, {"load": "80%"}])
@pytest.mark.parametrize("planner", ["autoswap", "search"])
def test_the_main_job_ends_by_its_deadline(planner: str, goal: dict[str, str], clock: Callable[[float], Clock]) -> None:
    """With the first plan that fits, checked, or by saying how far it got."""
    trace, whole = net(), clock(math.inf)
    job = partial(gpumem.plan, trace, GTX, planner=planner, seconds=1.0, **SMALL[planner], **goal)  # type: ignore[arg-type]
    full = job()
    assert full.checked.held == ("placement", "data_flow", "budget", "timeline")
    ends = set()
    for k in [*range(0, 24, 2), *range(24, whole.looks, whole.looks // 6)]:  # most looks are those of the oracles
        clock(k)
        try:
            found = job()
        except NotReached as stop:
            assert LATE in str(stop) and stop.reached > stop.limit
            ends.add("late")
        else:
            assert (
                found.placement.height <= found.pool if found.pool else found.trace.peak_live_bytes <= (found.load or 0)
            )
            assert "are left" in found.checked.left_out["timeline"] or found.checked.left_out["timeline"] == LATE
            ends.add("planned")
    assert ends == {"late", "planned"}


def test_a_pool_is_approached_in_larger_steps_where_the_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try takes a second; a hundred steps would take ten times as long as there is."""
    from gpumem.pipeline import in_pool
    from gpumem.trace.placement import Placement

    trace, tried, moment = hill(100 * MIB, 100 * MIB), list[int](), 0.0

    def swap(trace: Trace, limit: int) -> Plan:
        nonlocal moment
        moment += 1
        if limit < 55 * MIB:
            raise NotReached(55 * MIB, limit)
        tried.append(limit)
        return Plan()

    def pool(trace: Trace) -> Placement:
        placed = best_fit(trace)
        return Placement(placed.offset, placed.height if tried[-1] > 60 * MIB else 10 * MIB, placed.alignment)

    monkeypatch.setattr(work, "now", lambda: moment)
    found = in_pool(trace, 100 * MIB, swap=swap, pool=pool, seconds=10)
    assert 55 * MIB <= found.load_limit <= 60 * MIB and len(tried) < 10  # back where a step went too far
    patient = in_pool(trace, 100 * MIB, swap=swap, pool=pool)
    assert patient.load_limit == 60 * MIB
    moment = 0.0
    with pytest.raises(NotReached, match=LATE) as stop:
        in_pool(trace, 100 * MIB, swap=swap, pool=best_fit, seconds=3)
    assert stop.value.reached == 200 * MIB
