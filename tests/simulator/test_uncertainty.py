"""Durations that are off: what is drawn, what it does to a plan, and what does not depend on it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.io import bundled
from gpumem.simulator import Machine, Uncertainty, baseline, realised, simulate
from gpumem.swap import PLANNERS
from gpumem.trace import COPY_IN, COPY_OUT, Trace
from tests.strategies import traces

MACHINE = Machine.named("gtx1080ti")
COPIES = (COPY_IN, COPY_OUT)


def swapped(part: float = 0.5, planner: str = "autoswap") -> tuple[Trace, Trace, int]:
    trace = bundled("vgg16")
    limit = int(part * trace.peak_live_bytes)
    return trace, PLANNERS[planner](trace, MACHINE, limit).apply(trace), limit


def copies(trace: Trace) -> Any:
    return np.isin(trace.ops.role, COPIES)


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_factors_are_log_normal_of_mean_one(sigma: float) -> None:
    for found in (Uncertainty(spread=sigma).lasting(100_000, 3), Uncertainty(noise=sigma).passing(100_000, 3)):
        logs = np.log(found)
        assert abs(logs.std() / sigma - 1) < 0.01 and abs(found.mean() - 1) < 0.01
        assert abs(logs.mean() + sigma**2 / 2) < 0.01


def test_half_of_all_ops_are_off_by_a_third_at_a_spread_of_half() -> None:
    off = np.abs(Uncertainty(spread=0.5).lasting(100_000) - 1)
    assert abs(float(np.median(off)) - 0.33) < 0.01


def test_draws_are_the_same_by_key_and_independent_otherwise() -> None:
    off = Uncertainty(spread=0.4, noise=0.2, seed=5)
    assert (off.lasting(50, 1, 2) == off.lasting(50, 1, 2)).all()
    others = [off.lasting(5000, 1, 3), replace(off, seed=6).lasting(5000, 1, 2), off.passing(5000, 1, 2)]
    for other in others:
        assert abs(np.corrcoef(np.log(off.lasting(5000, 1, 2)), np.log(other))[0, 1]) < 0.05


@pytest.mark.jit
def test_an_op_is_off_by_as_much_under_every_plan() -> None:
    """Also where it runs once more; else plans would be compared by luck."""
    off, ratio = Uncertainty(spread=0.5), dict[int, set[float]]()
    for planner in ("autoswap", "checkpoint"):
        trace, planned, _ = swapped(planner=planner)
        for one in (trace, planned):
            drawn, ns = off.drawn(one, MACHINE, 4), MACHINE.durations(one)
            for op in np.flatnonzero(~copies(one) & (ns > 1000)).tolist():
                factor = drawn.ops.duration[op] / ns[op]
                ratio.setdefault(int(one.ops.of[op]), set()).add(round(float(factor), 2))
    assert all(max(found) - min(found) <= 0.011 for found in ratio.values())
    assert len({min(found) for found in ratio.values()}) > 30


def test_a_link_that_is_half_takes_twice_as_long_and_compute_does_not() -> None:
    _, planned, _ = swapped()
    ns, drawn = MACHINE.durations(planned), Uncertainty(link=0.5).drawn(planned, MACHINE, 0).ops.duration
    moved = copies(planned)
    assert (drawn[moved] == 2 * ns[moved]).all() and (drawn[~moved] == ns[~moved]).all()


def test_a_link_that_someone_uses_makes_that_part_of_copies_wait() -> None:
    ns = np.full(20_000, 10**6)
    found = Uncertainty(link_used=0.3).copies(ns, MACHINE, 0) - ns
    foreign = int(MACHINE.out.copy_ns(np.array([64 * 2**20]))[0])
    assert abs((found > 0).mean() - 0.3) < 0.02 and 0.98 * foreign < found.max() <= foreign
    assert abs(found[found > 0].mean() / foreign - 0.5) < 0.02


def test_bias_alone_scales_an_iteration_without_copies() -> None:
    trace = bundled("vgg16")
    found = simulate(Uncertainty(bias=3.0).drawn(trace, MACHINE, 0), MACHINE).makespan
    assert abs(found / simulate(trace, MACHINE).makespan - 3) < 1e-4


def test_nothing_off_is_what_was_planned() -> None:
    trace, planned, limit = swapped()
    expected = simulate(planned, MACHINE, capacity=limit).overhead(baseline(trace, MACHINE, planned))
    found = realised(trace, planned, MACHINE, Uncertainty(), capacity=limit, draws=3)
    assert Uncertainty(seed=7).certain and found.overheads.tolist() == [expected] * 3


def test_the_more_is_off_the_more_it_costs() -> None:
    trace, planned, limit = swapped()
    costs = [
        realised(trace, planned, MACHINE, Uncertainty(spread=s, copy_noise=s), capacity=limit, draws=40).p95
        for s in (0.0, 0.2, 0.5)
    ]
    assert costs[0] < costs[1] - 0.005 < costs[2] - 0.03


@given(traces(), st.integers(0, 5))
def test_a_drawn_trace_is_the_same_but_for_durations(trace: Trace, draw: int) -> None:
    drawn = Uncertainty(spread=0.5, noise=0.3, copy_noise=0.2, link_used=0.5).drawn(trace, MACHINE, draw)
    kept = [field.name for field in fields(trace.ops) if field.name != "duration"]
    assert all(getattr(drawn.ops, name) is getattr(trace.ops, name) for name in kept) and drawn.buffers is trace.buffers
    assert (drawn.ops.duration >= 0).all()


@pytest.mark.parametrize(
    ("what", "value"),
    [
        *(("spread", -0.1), ("spread", 4.0), ("noise", float("nan")), ("bias", 0.0), ("bias", float("inf"))),
        *(("link", 0.0), ("link", 1.5), ("link_used", 1.0), ("link_used", -0.5), ("seed", -1)),
        ("copy_noise", float("inf")),
    ],
)
def test_numbers_out_of_range_are_named(what: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{what}: "):
        Uncertainty(**{what: value})


def test_no_draws() -> None:
    trace, planned, limit = swapped()
    with pytest.raises(ValueError, match="draws: 0 is below 1"):
        realised(trace, planned, MACHINE, Uncertainty(), capacity=limit, draws=0)
