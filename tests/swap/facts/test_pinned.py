"""One account of pinned host memory: what every planner believes it holds is what the rewritten trace holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gpumem import Infeasible, NotReached, bundled
from gpumem.simulator.machine import Machine
from gpumem.swap import PLANNERS
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.facts.recompute_scratch import states
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan._cuts import find_replays
from gpumem.swap.plan.gaps import gaps, windows
from gpumem.swap.tasks import Task
from gpumem.swap.tensile import schedule
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import any_plans, nets, plans, steps, traces
from tests.swap.accounts import as_taken, on_host


@given(st.data())
def test_the_account_is_the_host_load_of_the_rewritten_trace(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(), nets()))
    if data.draw(st.booleans()):  # with host buffers and copies of its own
        trace = data.draw(plans(trace)).apply(trace)
    plan, found = data.draw(plans(trace)), gaps(trace)
    where = {key: k for k, key in enumerate(zip(found.buffer.tolist(), found.after.tolist()))}
    host = Pinned(trace, found, 10**6)
    assert host.peak == on_host(trace, Plan((), trace.n))
    for s in plan.swaps:  # first anywhere, then where the plan wants it
        assert host.take(where[s.buffer, s.after], s.after, s.before)
    assert host.peak == on_host(trace, as_taken(host, trace))
    host.place_copies(plan.swaps)
    most = on_host(trace, plan)
    assert host.peak == most
    host.budget = 0  # nothing more fits, no copy may move, and a refusal leaves no trace
    for k in range(len(found)):
        if trace.buffers.size[found.buffer[k]]:
            assert not host.take(k, int(found.after[k]), int(found.before[k]))
    assert host.peak == most
    for count, s in enumerate(plan.swaps, 1):
        host.drop(where[s.buffer, s.after])
        assert host.peak == on_host(trace, Plan(plan.swaps[count:], trace.n))


@given(st.data())
def test_windows_count_as_gaps_do(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(), nets()))
    found = windows(trace, tiny_machine())
    host = Pinned(trace, found, 10**6)
    for k in range(len(found)):
        if data.draw(st.booleans()):
            out = data.draw(st.integers(int(found.after[k]), int(found.before[k]) - 1))
            assert host.take(k, out, data.draw(st.integers(out + 1, int(found.before[k]))))
    assert host.peak == on_host(trace, as_taken(host, trace))


@given(st.data())
def test_states_of_generators_are_counted(data: st.DataObject) -> None:
    trace = data.draw(steps())
    plan, budget = data.draw(any_plans(trace)), data.draw(st.integers(0, 200))
    host, row = Pinned(trace, gaps(trace), 10**6), gaps(trace).rows(trace.n)
    for s in plan.swaps:
        assert host.take(row[s.buffer, s.after], s.out, s.prefetch)
    kept = states(trace, find_replays(trace, plan.decisions))  # also those of what is recomputed to stay
    before, host.budget = host.peak, budget
    held = on_host(trace, plan)
    if host.keep(kept):
        assert host.peak == held
    else:
        assert held > budget and host.peak == before and not host.states
    assert host.keep({}) and host.peak == before


@given(st.data())
def test_a_refusal_is_right(data: st.DataObject) -> None:
    trace = data.draw(st.one_of(traces(), nets()))
    found, budget = gaps(trace), data.draw(st.integers(0, 100))
    host = Pinned(trace, found, budget)
    for k in data.draw(st.permutations(range(len(found)))):
        wanted = Swap(*(int(x[k]) for x in (found.buffer, found.after, found.before)), int(found.after[k]) + 1, -1, -1)
        wanted = Swap(wanted.buffer, wanted.after, wanted.before, wanted.release, wanted.before, wanted.after)
        more = Plan((*as_taken(host, trace).swaps, wanted), trace.n)
        assert host.take(k, wanted.after, wanted.before) == (on_host(trace, more) <= budget)


def test_a_constant_is_pinned_for_the_whole_iteration() -> None:
    # C (8 bytes) is never written; X (8) is off the device between 2 and 4, where C is on it: the host holds both.
    ops = Ops.make([[0], [], [0], [], [0, 1]], [[], [], [1], [], []])
    trace = Trace(Buffers.make([8, 8], [0, 2], [5, 5], persistent=[True, False]), ops)
    found = gaps(trace)
    assert list(zip(found.buffer.tolist(), found.after.tolist())) == [(0, 0), (0, 2), (0, 4), (1, 2)]
    host = Pinned(trace, found, 8)
    assert (host.take(0, 0, 2), host.take(3, 2, 4), host.peak) == (True, False, 8)
    both = Plan((Swap(0, 0, 2, 1, 2), Swap(1, 2, 4, 3, 4)), 5).apply(trace)
    assert both.live_bytes(host=True).tolist() == [8, 8, 8, 8, 16, 16, 16, 8]
    assert not Pinned(trace, found, 7).take(0, 0, 2)


def accounts(monkeypatch: pytest.MonkeyPatch) -> list[Pinned]:
    """Every account that is opened from here on."""
    made: list[Pinned] = []
    original = Pinned.__init__

    def noted(self: Pinned, *args: Any) -> None:
        original(self, *args)
        made.append(self)

    monkeypatch.setattr(Pinned, "__init__", noted)
    return made


def own_account_is_true(planner: Callable[..., Plan], trace: Trace, machine: Machine, limit: int) -> bool:
    """Plan; hold the planner's own account against the rewritten trace. False where it does not get there."""
    with pytest.MonkeyPatch.context() as patch:
        made = accounts(patch)
        try:
            plan = planner(trace, machine, limit)
        except (Infeasible, NotReached):
            return False
    held = on_host(trace, plan)
    assert held <= machine.pinned
    if made:
        assert any(as_set(as_taken(host, trace)) == as_set(plan) and host.peak == held for host in made)
    return bool(plan.swaps) or held > 0


def as_set(plan: Plan) -> set[tuple[int, ...]]:
    """The copies of a plan."""
    return {(s.buffer, s.after, s.before, s.out, s.prefetch) for s in plan.swaps}


SMALL = {"autoswap": {"threshold": 1}, "bayes": {"threshold": 1, "evaluations": 6}, "capuchin": {"threshold": 1}}
ACCOUNTED = sorted(
    {name for name, planner in PLANNERS.items() if not planner.proves} - {"checkpoint", "dtr", "search"}
)  # one never swaps, others judge rewritten traces


@pytest.mark.parametrize("name", ACCOUNTED)
def test_own_accounts_under_a_tight_budget(name: str) -> None:
    planner = partial(PLANNERS[name], **SMALL.get(name, {}))
    got_there = []

    some = st.one_of(nets(), steps(streams=1)) if name in ("capuchin", "tensile") else nets()  # these recompute values

    @given(some, st.sampled_from([30, 50, 80, 120]), st.sampled_from([20, 50, 90]), st.booleans(), st.integers(5, 60))
    def check(trace: Trace, pinned: int, percent: int, duplex: bool, launch_ns: int) -> None:
        machine = tiny_machine(duplex=duplex).with_(pinned=pinned, launch_ns=launch_ns)
        least = floor(trace)[1]  # below it nothing gets
        limit = least + (trace.peak_live_bytes - least) * percent // 100
        if limit:
            got_there.append(own_account_is_true(planner, trace, machine, limit))

    check()
    if not name.startswith("vdnn"):  # random traces have no feature maps
        assert any(got_there)


@pytest.mark.parametrize("name", ACCOUNTED)
def test_own_accounts_on_a_real_trace(name: str) -> None:
    trace = bundled("resnet18")
    for part in (8, 4, 3, 2):
        machine = Machine.named("gtx1080ti").with_(pinned=trace.peak_live_bytes // part)
        planner = partial(PLANNERS[name], **({"evaluations": 4} if name == "bayes" else {}))
        if own_account_is_true(planner, trace, machine, trace.peak_live_bytes * 85 // 100):
            return
    raise AssertionError("no budget will do")


@given(st.lists(nets(), min_size=2, max_size=3), st.integers(0, 120))
def test_jobs_share_one_budget(several: list[Trace], pinned: int) -> None:
    machine = tiny_machine().with_(pinned=pinned, launch_ns=40)
    found = schedule([Task(t, machine.durations(t)) for t in several], machine, 1)
    assert sum(on_host(trace, one.plan) for trace, one in zip(several, found)) <= pinned
