"""Jobs whose ops and copies take other times than was estimated: the oracle looks at every log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem.base.errors import CheckError
from gpumem.io import bundled
from gpumem.jobs import Job, Policy, simulate_jobs, unmanaged, verify
from gpumem.jobs.actual_times import informed
from gpumem.jobs.policy import REPLAN
from gpumem.simulator.machine import Machine
from gpumem.simulator.uncertainty import Uncertainty
from tests.conftest import tiny_machine
from tests.jobs.environments.test_simulated import crowd
from tests.jobs.logs import LOOSE, Given, block, fork
from tests.shared_jobs import simulated_right

OFF = Uncertainty(spread=0.6, noise=0.3, copy_noise=0.3, link=0.5, link_used=0.2)


def assert_an_imperfect_crowd_is_right(seed: int) -> None:
    jobs, machine, capacity, slowdown, policy = crowd(seed)
    rng = np.random.default_rng([seed, 1])
    off = Uncertainty(
        spread=float(rng.choice([0, 0.3, 0.6, 1.5])),
        bias=float(rng.choice([1, 0.2, 10])),
        noise=float(rng.choice([0, 0.05, 0.5])),
        copy_noise=float(rng.choice([0, 0.05, 0.5])),
        link=float(rng.choice([1, 0.5, 0.1])),
        link_used=float(rng.choice([0, 0.3])),
        seed=int(rng.integers(100)),
    )
    policy = replace(policy, replan=str(rng.choice(REPLAN)), late=float(rng.choice([0, 0.003])))

    ran = simulate_jobs(jobs, machine, capacity, policy, slowdown=slowdown, uncertainty=off)
    simulated_right(jobs, ran, machine, capacity, slowdown, off)
    assert ran.peak <= capacity and max((total for _, total in ran.budgets), default=0) <= capacity
    assert verify.jobs(ran, jobs, machine, capacity, slowdown, off).held == ("jobs",)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_an_imperfect_crowd(seed: int) -> None:
    assert_an_imperfect_crowd_is_right(seed)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_two_thousand_imperfect_crowds(seed: int) -> None:
    assert_an_imperfect_crowd_is_right(seed)


def test_ops_keep_their_errors_and_have_noise_besides() -> None:
    trace, machine = block(8, *[10_000] * 40), tiny_machine()

    def taken(off: Uncertainty) -> np.ndarray:
        ran = simulate_jobs([Job("a", trace, iterations=3)], machine, 100, Policy(unmanaged), uncertainty=off)
        ns = [e.ns for e in ran.log if e.kind in ("start", "end")]
        return np.diff(np.array(ns).reshape(3, 40, 2))[:, :, 0]

    lasting = taken(Uncertainty(spread=0.5))
    assert (lasting[0] == lasting[1]).all() and len(set(lasting[0].tolist())) == 40
    assert (lasting[0] == np.rint(10_000 * Uncertainty(spread=0.5).lasting(40, 0))).all()
    passing = taken(Uncertainty(noise=0.05))
    assert (passing[0] != passing[1]).any() and np.std(np.log(passing / 10_000)) == pytest.approx(0.05, rel=0.3)
    assert (taken(Uncertainty(bias=3)) == 30_000).all() and (taken(OFF) == taken(OFF)).all()


def test_copies_are_late_where_the_link_is_slower() -> None:
    """As planned op 2 starts at 30 + 4; with half of the link its copy-in takes 8."""
    jobs, policy = [Job("a", fork())], Policy(Given({(trace := fork()): [(LOOSE, 0, 0)]}))
    jobs = [replace(jobs[0], trace=trace)]
    for link, start in ((1.0, 34), (0.5, 38)):
        ran = simulate_jobs(jobs, tiny_machine(), 100, policy, uncertainty=Uncertainty(link=link))
        assert [e.ns for e in ran.log if e.kind == "start"][-1] == start
    with pytest.raises(CheckError, match="took 14 ns, not 7"):
        simulated_right(jobs, ran, tiny_machine(), 100)


def test_plans_count_on_estimates_and_the_informed_one_on_what_lasts() -> None:
    trace, machine, seen = bundled("mlp3"), Machine.named("rtx2080ti"), list[list[int]]()

    def noted(tasks, machine, capacity):  # type: ignore[no-untyped-def]
        seen.append(tasks[0].duration.tolist())
        return unmanaged(tasks, machine, capacity)

    jobs = [Job("a", trace, iterations=2)]
    for estimate in (None, informed(jobs, machine, OFF)):
        simulate_jobs(jobs, machine, 2**40, Policy(noted, estimate=estimate), uncertainty=OFF)
    first, informed_first = seen[0], seen[2]
    assert first == machine.durations(trace).tolist()
    assert informed_first == np.rint(machine.durations(trace) * OFF.lasting(trace.n, 0)).astype(int).tolist()
