"""AutoSwap: the scores by hand, selection to the limit, certificates, the paper's figures, and the whole line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem import check
from gpumem.columns import Buffers, Ops
from gpumem.errors import Infeasible, NotReached
from gpumem.io import bundled, load
from gpumem.machine import Link, Machine
from gpumem.pool import PLANNERS as POOLS
from gpumem.simulate import simulate
from gpumem.swap.autoswap import PEAKS, autoswap, candidates, floor, load_min
from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Plan
from gpumem.swap.scores import SCORES
from gpumem.trace import Trace

from .conftest import shared, tiny_machine
from .strategies import traces

GTX = Machine.named("gtx1080ti")


def hill() -> Trace:
    """X (8 bytes): made by 0, used by 5. Y (4): 1, 4. Z (6): 2, 3. Ops take 10, 20, 30, 40, 50, 60 ns."""
    ops = Ops.make([[], [], [], [2], [1], [0]], [[0], [1], [2], [], [], []], duration=[10, 20, 30, 40, 50, 60])
    return Trace(Buffers.make([8, 4, 6], [0, 1, 2], [6, 5, 4]), ops)


def test_scores_by_hand(machine: Machine) -> None:
    # load 8 12 18 18 12 8; the first peak is op 2; X's gap is ops 1..4, Y's 2..3; Z straddles nothing
    found = candidates(hill(), machine, 10, threshold=1)
    assert found.gaps.buffer.tolist() == [0, 1]
    assert found.gap_ns.tolist() == [140, 70]
    assert (found.out_ns.tolist(), found.in_ns.tolist()) == ([7, 5], [4, 3])
    assert SCORES["doa"](found).tolist() == [129, 62]
    assert SCORES["aoa"](found).tolist() == [129 * 8, 62 * 4]
    area = 12 * 20 + 18 * 30 + 18 * 40 + 12 * 50
    assert SCORES["wdoa"](found).tolist() == [area, 18 * 30 + 18 * 40]
    # X is taken first; without it the load in Y's gap is 10 and 10
    assert SCORES["swdoa"](found).tolist() == [area, 10 * 30 + 10 * 40]


def test_a_negative_absence_is_divided_by_the_size() -> None:
    slow = Machine("slow", 10**6, Link(100, 0.0), Link(100, 0.0), flops=1, bandwidth=1)
    found = candidates(hill(), slow, 10, threshold=1)
    assert SCORES["aoa"](found).tolist() == [(140 - 200) / 8, (70 - 200) / 4]


def test_a_constant_load_makes_wdoa_the_duration(machine: Machine) -> None:
    found = candidates(hill(), machine, 10, threshold=1)
    flat = type(found)(
        found.gaps, found.size, found.gap_ns, found.out_ns, found.in_ns, np.ones(6, np.int64), found.duration
    )
    assert SCORES["wdoa"](flat).tolist() == [140, 70]


def test_all_peaks_add_candidates(machine: Machine) -> None:
    first = candidates(hill(), machine, 10, threshold=1)
    every = candidates(hill(), machine, 10, peaks="all", threshold=1)
    assert set(first.gaps.after.tolist()) <= set(every.gaps.after.tolist())
    assert len(candidates(hill(), machine, 10, threshold=5)) == 1


def test_parameters_are_candidates_over_the_boundary() -> None:
    trace = bundled("vgg16")
    found = candidates(trace, GTX, 1, peaks="all")
    wraps = found.gaps.before >= trace.n
    assert wraps.any()
    assert trace.buffers.persistent[found.gaps.buffer[wraps]].all()


def test_the_floor_is_what_an_op_holds_whatever_is_swapped(machine: Machine) -> None:
    # op 2 makes Z (6), X and Y may be away: 6; op 0 and 5 hold X: 8
    assert floor(hill()) == (0, 8)
    with pytest.raises(Infeasible, match="op 0 must hold 8 bytes, the limit is 7; the least limit that could do is 8"):
        autoswap(hill(), machine, 7, threshold=1, peaks="all")
    assert autoswap(hill(), machine, 8, threshold=1, peaks="all").apply(hill()).peak_load == 8


def test_giving_up_says_what_was_reached(machine: Machine) -> None:
    with pytest.raises(NotReached) as stop:
        autoswap(hill(), machine, 9, threshold=5)  # Y may not go
    assert stop.value.reached == load_min(candidates(hill(), machine, 9, threshold=5)) == 10


def test_a_pinned_budget_is_a_constraint() -> None:
    with pytest.raises(NotReached):
        autoswap(hill(), tiny_machine().with_(pinned=7), 11, threshold=1)
    plan = autoswap(hill(), tiny_machine().with_(pinned=8), 11, threshold=1)
    assert [s.buffer for s in plan.swaps] == [0]


def test_a_limit_above_the_peak_is_an_empty_plan(machine: Machine) -> None:
    assert autoswap(hill(), machine, 18) == Plan((), 6)


@pytest.mark.parametrize(
    "options, why", [({"score": "x"}, "score 'x'"), ({"peaks": "x"}, "peaks 'x'"), ({"limit": 0}, "limit: 0")]
)
def test_bad_options_are_refused(options: dict[str, object], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        autoswap(hill(), machine, **{"limit": 10, **options})  # type: ignore[arg-type]


@given(st.data())
def test_the_whole_line_on_random_traces(data: st.DataObject) -> None:
    trace = data.draw(traces())
    machine = tiny_machine(duplex=data.draw(st.booleans()))
    least = floor(trace)[1]
    limit = data.draw(st.integers(max(least, 1), max(trace.peak_load, least, 1)))
    score, peaks = data.draw(st.sampled_from(sorted(SCORES))), data.draw(st.sampled_from(PEAKS))
    try:
        plan = autoswap(trace, machine, limit, score=score, peaks=peaks, threshold=1)
    except NotReached as stop:
        assert stop.reached > limit
        assert peaks == "first" or gaps(trace).buffer.size == 0 or stop.reached >= least
        return
    swapped = plan.apply(trace)
    assert swapped.peak_load <= limit
    placement = POOLS[data.draw(st.sampled_from(sorted(POOLS)))](swapped, alignment=4)
    placed = simulate(swapped, machine, placement, iterations=60)
    check.everything(trace, swapped, placement, placed, machine, limit=limit, host=machine.pinned)
    tight = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, tight, machine.durations(swapped), capacity=limit, duplex=machine.duplex)


def saving(trace: Trace, percent: int) -> float:
    """The least overhead over the four scores, of a load limit `percent` below the peak."""
    base, limit = simulate(trace, GTX), trace.peak_load * (100 - percent) // 100
    plans = [autoswap(trace, GTX, limit, score=score).apply(trace) for score in SCORES]
    return min(simulate(p, GTX, capacity=limit).overhead(base) for p in plans)


@pytest.mark.parametrize("name, percent", [("vgg16", 31), ("resnet18", 50)])
def test_the_papers_saving_costs_nothing(name: str, percent: int) -> None:
    assert saving(bundled(name), percent) <= 0.005


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/resnet50_cifar_b100.json.gz"), ids=lambda p: p.name)
def test_the_papers_saving_costs_nothing_on_resnet50(path: Path) -> None:
    assert saving(load(path).trace, 35) <= 0.005


def whole_line(trace: Trace, percent: int, score: str, pool: str) -> None:
    limit = trace.peak_load * percent // 100
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
