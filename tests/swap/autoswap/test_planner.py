"""AutoSwap: selection to the limit, certificates, the paper's figures, and the whole line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.pool import PLANNERS as POOLS
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import PEAKS, TARGETS, autoswap, candidates, load_min, select
from gpumem.swap.autoswap.scores import SCORES, Candidates
from gpumem.swap.facts.limits import floor
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared, tiny_machine
from tests.nets import ramp
from tests.strategies import traces
from tests.swap.autoswap.candidates import ops_of

GTX = Machine.named("gtx1080ti")


def test_all_peaks_add_candidates(machine: Machine) -> None:
    first = candidates(ramp(), machine, 10, threshold=1)
    every = candidates(ramp(), machine, 10, peaks="all", threshold=1)
    assert set(first.gaps.after.tolist()) <= set(every.gaps.after.tolist())
    assert len(candidates(ramp(), machine, 10, threshold=5)) == 1


def test_parameters_are_candidates_over_the_boundary() -> None:
    trace = bundled("vgg16")
    found = candidates(trace, GTX, 1, peaks="all")
    wraps = found.gaps.before >= trace.n
    assert wraps.any()
    assert trace.buffers.persistent[found.gaps.buffer[wraps]].all()


def test_the_floor_is_what_an_op_holds_whatever_is_swapped(machine: Machine) -> None:
    # op 2 makes Z (6), X and Y may be off the device: 6; op 0 and 5 hold X: 8
    assert floor(ramp()) == (0, 8)
    with pytest.raises(Infeasible, match="hold 8 B, the limit is 7 B; the least limit that could do is 8 bytes"):
        autoswap(ramp(), machine, 7, threshold=1, peaks="all")
    assert autoswap(ramp(), machine, 8, threshold=1, peaks="all").apply(ramp()).peak_live_bytes == 8


def test_giving_up_says_what_was_reached(machine: Machine) -> None:
    with pytest.raises(NotReached) as stop:
        autoswap(ramp(), machine, 9, threshold=5)  # Y may not go
    assert stop.value.reached == load_min(candidates(ramp(), machine, 9, threshold=5)) == 10


def test_a_pinned_budget_is_a_constraint() -> None:
    with pytest.raises(NotReached):
        autoswap(ramp(), tiny_machine().with_(pinned=7), 11, threshold=1)
    plan = autoswap(ramp(), tiny_machine().with_(pinned=8), 11, threshold=1)
    assert [swap.buffer for swap in plan.swaps] == [0]


def test_a_limit_above_the_peak_is_an_empty_plan(machine: Machine) -> None:
    assert autoswap(ramp(), machine, 18) == Plan((), 6)


@pytest.mark.parametrize(
    "options, why",
    [
        ({"score": "x"}, "score: 'x'"),
        ({"peaks": "x"}, "peaks: 'x'"),
        ({"limit": 0}, "limit: 0"),
        ({"targets": ()}, r"targets: \(\)"),
        ({"targets": (1.0, 1.5)}, r"targets: \(1.0, 1.5\)"),
        ({"targets": (0.0,)}, r"targets: \(0.0,\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        autoswap(ramp(), machine, **{"limit": 10, **options})  # type: ignore[arg-type]


@given(st.data())
def test_the_whole_line_on_random_traces(data: st.DataObject) -> None:
    trace = data.draw(traces())
    machine = tiny_machine(duplex=data.draw(st.booleans())).with_(pinned=data.draw(st.sampled_from([8, 30, 10**6])))
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_live_bytes, least, 1)))
    score, peaks = data.draw(st.sampled_from(sorted(SCORES))), data.draw(st.sampled_from(PEAKS))
    targets, as_printed = data.draw(st.sampled_from([(1.0,), TARGETS])), data.draw(st.booleans())
    rules = {"peaks": peaks, "threshold": 1, "targets": targets, "as_printed": as_printed}
    try:
        plan = autoswap(trace, machine, limit, score=score, **rules)
    except NotReached as stop:
        assert stop.reached > limit
        assert as_printed or peaks == "first" or gaps(trace).buffer.size == 0 or stop.reached >= least
        return
    swapped = plan.apply(trace)
    assert swapped.peak_live_bytes <= limit
    assert swapped.live_bytes(host=True).max() <= machine.pinned
    placement = POOLS[data.draw(st.sampled_from(sorted(POOLS)))](swapped, alignment=4)
    placed = simulate(swapped, machine, placement, iterations=60)
    check.everything(trace, swapped, placement, placed, machine, limit=limit, host=machine.pinned)
    tight = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, tight, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


def selected(trace: Trace, found: Candidates, order: list[int], pinned: int) -> list[int]:
    chosen, _ = select(found, np.array(order), 1, Pinned(trace, found.gaps, pinned))
    return [int(gap) for gap in chosen]


@given(st.data())
def test_selection_is_what_looking_at_every_op_gives(data: st.DataObject) -> None:
    trace = data.draw(traces())
    eligible = candidates(trace, tiny_machine(), 1, peaks="all", threshold=1)
    order = np.array(data.draw(st.permutations(range(len(eligible)))), np.int64)
    limit, every = data.draw(st.integers(0, trace.peak_live_bytes)), data.draw(st.booleans())
    load, naive = eligible.load.copy(), []
    for gap in order.tolist():
        if load.max() > limit and (every or load[ops_of(eligible, gap)].max(initial=0) > limit):
            load[ops_of(eligible, gap)] -= eligible.gaps.size[gap]
            naive.append(gap)
    chosen, left = select(eligible, order, limit, Pinned(trace, eligible.gaps, 10**6), every=every)
    assert (chosen.tolist(), left.tolist()) == (sorted(naive), load.tolist())


@given(st.data())
def test_as_printed_takes_what_is_best_until_the_peak_is_at_the_limit(data: st.DataObject) -> None:
    """IV-D: sorted by score, inserted one by one with live bytes updated; of what straddles the peak (IV-A)."""
    trace, machine = data.draw(traces()), tiny_machine()
    limit = data.draw(st.integers(max(floor(trace)[1], 1), max(trace.peak_live_bytes, 1)))
    score = data.draw(st.sampled_from(sorted(SCORES)))
    eligible, peak = candidates(trace, machine, limit, threshold=1), int(trace.live_bytes().argmax())
    assert all(peak in ops_of(eligible, gap) for gap in range(len(eligible)))
    load, taken = trace.live_bytes().copy(), []
    for gap in sorted(range(len(eligible)), key=lambda gap: -SCORES[score](eligible)[gap]):
        if load.max() <= limit:
            break
        load[ops_of(eligible, gap)] -= eligible.gaps.size[gap]
        taken.append((int(eligible.gaps.buffer[gap]), int(eligible.gaps.after[gap])))
    if load.max() > limit:
        with pytest.raises(NotReached):
            autoswap(trace, machine, limit, score=score, threshold=1, as_printed=True)
    else:
        plan = autoswap(trace, machine, limit, score=score, threshold=1, as_printed=True)
        assert sorted((decision.buffer, decision.after) for decision in plan.swaps) == sorted(taken)


def test_a_value_stays_on_the_host_between_two_gaps_that_share_it() -> None:
    # W (8 bytes) is written by 0, read by 2, 4 and 6. X (8) is off the device between 2 and 4, where W is on it.
    ops = Ops.make([[], [], [0], [], [0, 1], [], [0]], [[0], [], [1], [], [], [], []], duration=[100] * 7)
    trace = Trace(Buffers.make([8, 8], [0, 2], [7, 5]), ops)
    found = candidates(trace, tiny_machine(), 1, peaks="all", threshold=1)
    assert list(zip(found.gaps.after.tolist(), found.gaps.before.tolist())) == [(0, 2), (2, 4), (4, 6), (2, 4)]
    assert [selected(trace, found, [0, 2, 3], pinned) for pinned in (8, 16)] == [[0, 2], [0, 2, 3]]
    # Right before op 4 the one comes back, right after it the other leaves; before op 6 the host is free.
    assert [selected(trace, found, [3, 2, 0], pinned) for pinned in (8, 16)] == [[2, 3], [0, 2, 3]]


def test_a_value_that_goes_round_stays_on_the_host_over_the_boundary() -> None:
    # P (8 bytes, persistent) is written by 5, read by 1 and 3; swapped from 5 to 1 and from 3 to 5 it never leaves
    # the host, so that X (8), off the device between 1 and 3, exceeds the budget.
    ops = Ops.make([[], [0], [], [0, 1], [], []], [[], [1], [], [], [], [0]], duration=[100] * 6)
    trace = Trace(Buffers.make([8, 8], [0, 1], [6, 4], persistent=[True, False]), ops)
    found = candidates(trace, tiny_machine(), 1, peaks="all", threshold=1)
    assert list(zip(found.gaps.after.tolist(), found.gaps.before.tolist())) == [(1, 3), (3, 5), (5, 7), (1, 3)]
    for order in ([2, 1, 3], [1, 2, 3]):
        assert [selected(trace, found, order, pinned) for pinned in (8, 16)] == [[1, 2], [1, 2, 3]]
    plan = Plan(tuple(Swap(0, a, b, a + 1, b) for a, b in ((3, 5), (5, 7))), 6)
    host = plan.apply(trace).live_bytes(host=True)
    assert np.flatnonzero(host == 0).tolist() == [7]  # while op 5 writes it


def saving(trace: Trace, percent: int, peaks: str = "first") -> float:
    """The least overhead over the four scores, of a load limit `percent` below the peak."""
    base, limit = simulate(trace, GTX), trace.peak_live_bytes * (100 - percent) // 100
    plans = [autoswap(trace, GTX, limit, score=score, peaks=peaks).apply(trace) for score in SCORES]
    return min(simulate(p, GTX, capacity=limit).overhead(base) for p in plans)


@pytest.mark.parametrize("name, percent", [("vgg16", 31), ("resnet18", 50)])
def test_the_papers_saving_costs_nothing(name: str, percent: int) -> None:
    assert saving(bundled(name), percent) <= 0.005


@pytest.mark.parametrize("percent", range(10, 60, 5))
def test_vgg16_stays_below_a_fifth_down_to_45_percent(percent: int) -> None:
    assert saving(bundled("vgg16"), percent, peaks="all") < 0.2


def test_lower_targets_are_no_worse() -> None:
    trace = bundled("vgg16")
    base, limit = simulate(trace, GTX), trace.peak_live_bytes // 2
    cost = [
        simulate(autoswap(trace, GTX, limit, peaks="all", targets=target).apply(trace), GTX, capacity=limit).overhead(
            base
        )
        for target in ((1.0,), TARGETS)
    ]
    assert cost[1] < cost[0] < 0.2


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_the_papers_saving_costs_nothing_on_resnet50(path: Path) -> None:
    assert saving(load(path).trace, 35) <= 0.005


def whole_line(trace: Trace, percent: int, score: str, pool: str) -> None:
    limit = trace.peak_live_bytes * percent // 100
    try:
        swapped = autoswap(trace, GTX, limit, score=score, peaks="all").apply(trace)
    except (NotReached, Infeasible) as stop:
        assert limit < (stop.reached if isinstance(stop, NotReached) else stop.needs)
        return
    placement = POOLS[pool](swapped)
    check.everything(trace, swapped, placement, simulate(swapped, GTX, placement), GTX, limit=limit)
    tight = simulate(swapped, GTX, capacity=limit)
    check.timeline(swapped, tight, GTX.durations(swapped), capacity=limit)


@pytest.mark.parametrize("percent", [90, 60, 40])
@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
def test_bundled_traces_pass_every_oracle(name: str, percent: int) -> None:
    whole_line(bundled(name), percent, "wdoa", "best-fit")


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    "score, pool", [("doa", "first-fit"), ("aoa", "best-fit"), ("wdoa", "best-fit"), ("swdoa", "first-fit")]
)
@pytest.mark.parametrize("percent", [85, 70, 50, 35])
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_shared_traces_pass_every_oracle(path: Path, percent: int, score: str, pool: str) -> None:
    whole_line(load(path).trace, percent, score, pool)
