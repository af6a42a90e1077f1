"""How long a job's ops will take: predictions beside other jobs, corrected by what is measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.jobs import Job, roofline, simulate_jobs
from gpumem.jobs.scheduler.forecast import Forecast
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
    known.settle(2)
    known.correct([30, 2, 80], beta=0.5)
    assert known.beside(2).tolist() == [30, 2, 70] and known.beside(0).tolist() == [15, 2, 35]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=6))
def test_company_that_comes_and_goes_leaves_no_trace(duration: list[int], others: list[int]) -> None:
    known = Forecast(job(*duration), roofline(tiny_machine(), slowdown=1))
    for k in others:
        known.settle(k)
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
