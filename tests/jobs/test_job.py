"""Jobs, and policies and options of a run, that make no sense are refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpumem.jobs import Job, Policy, simulate_jobs
from gpumem.trace import COPY_OUT, Trace
from tests.conftest import tiny_machine
from tests.jobs.logs import TIGHT, block, fork


@pytest.mark.parametrize(
    "change, why",
    [
        ({"arrival": -1}, "job 'a': arrival -1 ns is below 0"),
        ({"iterations": 0}, "job 'a': iterations 0 is below 1"),
        ({"arrival": 5, "leave": 4}, "job 'a': leaves at 4 ns, before it arrives at 5 ns"),
        ({"ratio": -0.5}, r"job 'a': ratio -0.5 is not in \[0, 1\]"),
        ({"trace": Trace.from_lifetimes([1], [0], [1])}, "job 'a': no ops"),
        ({"trace": TIGHT.apply(fork("a"))}, "job 'a': op 1 is a copy"),
    ],
)
def test_a_job_that_makes_no_sense(change: dict[str, Any], why: str) -> None:
    assert TIGHT.apply(fork("a")).ops.role[1] == COPY_OUT
    with pytest.raises(ValueError, match=why):
        Job(**({"name": "a", "trace": block(8, 5)} | change))


@pytest.mark.parametrize(
    "options, why",
    [
        ({"capacity": 0}, "capacity: 0 bytes is below 1"),
        ({"slowdown": -1.0}, "slowdown: -1.0 is not finite and >= 0"),
        ({"threshold": float("nan")}, "threshold: nan"),
        ({"beta": 1.5}, r"beta: 1.5 is not in \[0, 1\]"),
        ({"jobs": [Job("a", block(8, 5))] * 2}, "jobs: 2 of them are called 'a'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], why: str) -> None:
    given = {"jobs": [Job("a", block(8, 5))], "machine": tiny_machine(), "capacity": 8} | options
    chosen = {name: given.pop(name) for name in ("threshold", "beta") if name in given}
    with pytest.raises(ValueError, match=why):
        simulate_jobs(**given, policy=Policy(**chosen))
