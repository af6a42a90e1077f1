"""How long a job's ops will take: predictions beside other jobs, corrected by what is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from gpumem.execute.latency import estimator, fit
from gpumem.jobs import Job, Policy, ewma, roofline, simulate_jobs, unmanaged
from gpumem.jobs.scheduler.forecast import Forecast
from gpumem.simulator.machine import Machine
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine


def job(*duration: int, name: str = "a", iterations: int = 1) -> Job:
    n = len(duration)
    ops = Ops.make([[0]] * n, [[]] * n, duration=list(duration))
    return Job(name, Trace(Buffers.make([8], [0], [n], persistent=[True]), ops), iterations=iterations)


def test_a_forecast_moves_with_the_company_and_keeps_its_corrections() -> None:
    known = Forecast(job(10, 0, 30), roofline(tiny_machine(), slowdown=0.5))
    assert known.beside(0).tolist() == [10, 0, 30] and known.beside(2).tolist() == [20, 0, 60]
    known.correct([20, 4, 30], beta=0.5)  # 15, 2, 30
    assert known.beside(0).tolist() == [15, 2, 30]
    assert known.beside(2).tolist() == [30, 2, 60]  # what was predicted to take no time is not scaled
    known.set_neighbours(2)
    known.correct([30, 2, 80], beta=0.5)
    assert known.beside(2).tolist() == [30, 2, 70] and known.beside(0).tolist() == [15, 2, 35]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=6))
def test_company_that_comes_and_goes_leaves_no_trace(duration: list[int], others: list[int]) -> None:
    known = Forecast(job(*duration), roofline(tiny_machine(), slowdown=1))
    for k in others:
        known.set_neighbours(k)
    assert known.beside(0).tolist() == duration


def test_wrong_estimates_name_the_job() -> None:
    with pytest.raises(ValueError, match="job 'a': 2 estimates for 3 ops"):
        Forecast(job(1, 2, 3), lambda job, others: np.zeros(2, np.int64))


def test_the_default_knows_the_slow_down() -> None:
    """Right from the start the times are right: nobody is planned anew but after the first iterations."""
    two = [job(100, 50, name="a", iterations=6), job(100, 50, name="b", iterations=6)]
    ran = simulate_jobs(two, tiny_machine(), 100, slowdown=1)
    assert len(ran.replans) == 3  # after the first iteration of each, and when one has left
    assert [one.end[0] for one in ran.jobs] == [300, 300]


@pytest.mark.parametrize("others", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_a_latency_estimate_knows_how_many_others_run(others: float) -> None:
    """It stopped at one: of three jobs two were planned as if nothing had changed when one left."""
    one = job(100, 50, name="a")
    estimate = estimator(tiny_machine(), fit([]), slowdown=1)
    assert estimate(one, others).tolist() == roofline(tiny_machine(), slowdown=1)(one, others).tolist()


def test_when_one_of_three_leaves_the_others_are_planned_with_what_they_will_take() -> None:
    seen: list[list[int]] = []

    def noted(tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        seen.append([int(task.duration.sum()) for task in tasks])
        return unmanaged(tasks, machine, capacity)

    three = [job(100, 50, name=name, iterations=turns) for name, turns in (("a", 6), ("b", 6), ("c", 3))]
    policy = Policy(noted, estimate=estimator(tiny_machine(), fit([]), slowdown=1))
    simulate_jobs(three, tiny_machine(), 100, policy, slowdown=1)
    assert seen[0] == [450] * 3 and next(row for row in seen if len(row) == 2) == [300] * 2


def test_what_was_printed_changes_nothing() -> None:
    """TENSILE prints `t[j+1] = beta t[j] + (1 - beta) t[j]`: the estimate stays what it was."""
    before, measured = np.array([100.0, 50.0]), np.array([10.0, 90.0])
    assert ewma(before, measured, 0.7, as_printed=True).tolist() == before.tolist()
    assert ewma(before, measured, 0.7).tolist() == pytest.approx([73, 62])


ns = st.floats(0, 1e15) | st.integers(0, 2**53).map(float)
beta = st.floats(0, 1)
pairs = st.lists(st.tuples(ns, ns), min_size=1, max_size=6)


@given(pairs, beta)
@example([(13.0, 13.0)], 0.1)  # where the sum of the two parts, rounded, is not the whole
def test_a_correction_lies_between_estimate_and_measurement(pairs: list[tuple[float, float]], beta: float) -> None:
    old, new = np.array(pairs).T
    mixed = ewma(old, new, beta)
    assert (np.minimum(old, new) <= mixed).all() and (mixed <= np.maximum(old, new)).all()
    assert np.array_equal(ewma(old, old, beta), old)
    assert np.array_equal(ewma(old, new, 1), old) and np.array_equal(ewma(old, new, 0), new)
    assert mixed.tolist() == [float(ewma(a, b, beta)) for a, b in pairs]


@given(ns, st.lists(ns, max_size=8), beta)
def test_corrections_add_up_to_weights_that_fade(planned: float, measured: list[float], beta: float) -> None:
    estimate: Any = planned
    for t in measured:
        estimate = ewma(estimate, t, beta)
    n = len(measured)
    want = beta**n * planned + sum((1 - beta) * beta ** (n - 1 - j) * t for j, t in enumerate(measured))
    assert float(estimate) == pytest.approx(want, rel=1e-9, abs=1e-6)


@given(ns, st.lists(ns, min_size=1), beta)
def test_the_printed_formula_never_learns(planned: float, measured: list[float], beta: float) -> None:
    estimate: Any = planned
    for t in measured:
        estimate = ewma(estimate, t, beta, as_printed=True)
    assert float(estimate) == pytest.approx(planned)


def test_integers_do_not_stop_short() -> None:
    estimate: Any = np.array([10, 10])
    for _ in range(200):
        estimate = ewma(estimate, [11, 10], 0.9)
    assert estimate == pytest.approx([11, 10])


def test_bad_corrections() -> None:
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"beta: {bad}"):
            ewma([1], [1], bad)
    with pytest.raises(ValueError, match=r"\(1,\).*\(2,\)"):
        ewma([1], [1, 2], 0.5)
