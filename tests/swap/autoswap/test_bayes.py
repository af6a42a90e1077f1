"""Bayesian optimization of the aggregated score: never worse than the four, the same on any executor."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import check
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.bayes import Missed, Trials, bayes, standardised
from gpumem.swap.autoswap.planner import PEAKS, autoswap, best_plan, candidates
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan import Plan
from gpumem.swap.planner import Proposal
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.nets import ramp
from tests.strategies import traces

GTX = Machine.named("gtx1080ti")


def makespan(trace: Trace, machine: Machine, limit: int, plan: Plan) -> int:
    return simulate(plan.apply(trace), machine, capacity=limit).makespan


def best_of_four(trace: Trace, machine: Machine, limit: int, **options: Any) -> int | None:
    """The shortest iteration over the four scores; None where none gets to the limit."""
    spans = []
    for score in SCORES:
        try:
            spans.append(makespan(trace, machine, limit, autoswap(trace, machine, limit, score=score, **options)))
        except NotReached:
            continue
    return min(spans, default=None)


@pytest.mark.jit
@pytest.mark.parametrize(
    "name, percent", [("vgg16", 80), ("vgg16", 55), ("vgg16", 45), ("vgg16", 30), ("resnet18", 45), ("resnet18", 35)]
)
def test_it_is_never_worse_than_the_best_score(name: str, percent: int) -> None:
    trace = bundled(name)
    limit = trace.peak_live_bytes * percent // 100
    plan = bayes(trace, GTX, limit, evaluations=8, peaks="all")
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=GTX.pinned)
    best = best_of_four(trace, GTX, limit, peaks="all")
    assert best is not None and makespan(trace, GTX, limit, plan) <= best
    assert makespan(trace, GTX, limit, bayes(trace, GTX, limit, evaluations=4, peaks="all")) == best


@pytest.mark.thorough
@pytest.mark.jit
def test_it_finds_weights_that_beat_the_four() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 55 // 100
    best = best_of_four(trace, GTX, limit, peaks="all")
    assert best is not None and makespan(trace, GTX, limit, bayes(trace, GTX, limit, peaks="all")) < best


@given(st.data())
@settings(max_examples=30)
def test_random_traces_pass_every_oracle(data: st.DataObject) -> None:
    trace = data.draw(traces())
    machine = tiny_machine(duplex=data.draw(st.booleans())).with_(pinned=data.draw(st.sampled_from([8, 30, 10**6])))
    limit = data.draw(st.integers(max(floor(trace)[1], 1), max(trace.peak_live_bytes, 1)))
    options = {"peaks": data.draw(st.sampled_from(PEAKS)), "threshold": 1}
    best = best_of_four(trace, machine, limit, **options)
    try:
        plan = bayes(trace, machine, limit, evaluations=8, seed=data.draw(st.integers(0, 3)), **options)
    except NotReached as stop:
        assert best is None and stop.reached > limit
        return
    swapped = plan.apply(trace)
    check.data_flow(trace, swapped)
    check.budget(swapped, limit, host=machine.pinned)
    line = simulate(swapped, machine, capacity=limit, iterations=60)
    check.timeline(swapped, line, machine.durations(swapped), capacity=limit, duplex=machine.duplex)
    assert best is None or makespan(trace, machine, limit, plan) <= best


def on(executor: Executor | None) -> Plan:
    trace = bundled("vgg16")
    return bayes(trace, GTX, trace.peak_live_bytes * 55 // 100, evaluations=9, peaks="all", executor=executor)


@pytest.fixture(scope="module")
def here() -> Plan:
    """The plan found without an executor."""
    return on(None)


def test_threads_find_the_same(here: Plan) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert on(pool) == here


@pytest.mark.thorough
@pytest.mark.jit
def test_processes_find_the_same(here: Plan) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert on(pool) == here


@pytest.mark.thorough
@pytest.mark.jit
def test_a_dask_cluster_finds_the_same(here: Plan) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert on(client.get_executor()) == here


class Backwards(Executor):
    """Runs a batch from its end, and notes what it was sent."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.batches: list[int] = []

    def map(self, fn: Any, *iterables: Any, timeout: float | None = None, chunksize: int = 1) -> Any:
        """Pickle all that is sent, as a pool of processes would."""
        calls = [pickle.dumps((fn, args)) for args in zip(*iterables)]
        self.sizes += [len(call) for call in calls]
        self.batches.append(len(calls))
        results = [pickle.loads(call)[0](*pickle.loads(call)[1]) for call in reversed(calls)]
        return iter(pickle.loads(pickle.dumps(results))[::-1])

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        raise AssertionError("not used")


def test_batches_are_fixed_and_what_is_sent_is_small(here: Plan) -> None:
    pool = Backwards()
    assert on(pool) == here
    assert pool.batches == [4, 4, 1]
    assert max(pool.sizes) < 100_000


def test_it_ends_early_where_nothing_waits() -> None:
    trace, reports = bundled("vgg16"), []
    bayes(trace, GTX, trace.peak_live_bytes * 8 // 10, progress=reports.append)
    assert len(reports) == 1 and reports[0].startswith("4 of 36 evaluations: 57.49")


def test_it_ends_where_there_is_no_other_order(machine: Machine) -> None:
    reports: list[str] = []
    bayes(ramp(), machine.with_(duplex=False), 11, threshold=1, progress=reports.append)
    assert len(reports) <= 2  # two candidates have two orders


def crossing() -> Trace:
    """Two buffers of 8 bytes, the later one with a longer gap; pinned memory for one of them."""
    ops = Ops.make([[], [], [], [0], [], [1]], [[0], [1], [2], [], [3], []], duration=[10, 10, 10, 10, 90, 10])
    return Trace(Buffers.make([8, 8, 9, 1], [0, 1, 2, 4], [4, 6, 3, 5]), ops)


def test_weights_that_miss_the_limit_do_not_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    # With every score but one out of reach, the one that is left must win.
    trace, limit = bundled("vgg16"), bundled("vgg16").peak_live_bytes * 55 // 100
    calls: list[int] = []

    def sometimes(*args: Any, **kwargs: Any) -> Proposal:
        calls.append(1)
        if len(calls) in (1, 2, 4, 6):
            raise NotReached(limit + 1, limit)
        return best_plan(*args, **kwargs)

    monkeypatch.setattr(import_module("gpumem.swap.autoswap.bayes"), "best_plan", sometimes)
    plan = bayes(trace, GTX, limit, evaluations=8, peaks="all")
    wdoa = autoswap(trace, GTX, limit, score="wdoa", peaks="all")
    assert len(calls) == 8
    assert makespan(trace, GTX, limit, plan) <= makespan(trace, GTX, limit, wdoa)


def test_what_misses_the_limit_counts_as_the_worst() -> None:
    search = Trials.start(candidates(ramp(), tiny_machine(), 10, threshold=1), np.random.default_rng(0))
    best, *others = (Proposal(Plan(), makespan) for makespan in (5, 7, 6))
    search.results = [best, Missed(9, ""), *others]
    assert (search.values().tolist(), search.best) == ([5, 7, 7, 6], best)
    search.results = [Missed(9, ""), Missed(8, "")]
    assert (search.values().tolist(), search.best) == ([1, 1], Missed(8, ""))


def test_what_no_weights_reach_is_not_reached() -> None:
    with pytest.raises(NotReached, match="7 bytes of pinned memory hold no more") as stop:
        bayes(crossing(), tiny_machine().with_(pinned=7), 24, threshold=1)
    assert stop.value.reached == 25
    with pytest.raises(NotReached, match="more candidates"):
        bayes(crossing(), tiny_machine(), 24, threshold=10)  # no candidate at all
    with pytest.raises(Infeasible):
        bayes(crossing(), tiny_machine(), 8, threshold=1)
    assert pickle.loads(pickle.dumps(Missed(3, "x"))) == Missed(3, "x")  # exceptions with arguments would not


def test_a_load_that_fits_is_an_empty_plan(machine: Machine) -> None:
    assert bayes(ramp(), machine, 18) == Plan((), 6)


@pytest.mark.parametrize(
    "options, why",
    [
        ({"evaluations": 3}, "evaluations: 3 is below 4"),
        ({"peaks": "x"}, "peaks: 'x'"),
        ({"limit": 0}, "limit: 0"),
        ({"targets": (2.0,)}, "targets"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], why: str, machine: Machine) -> None:
    with pytest.raises(ValueError, match=why):
        bayes(ramp(), machine, **{"limit": 10, **options})


def test_scores_are_standardised_and_a_constant_one_is_nothing() -> None:
    z = standardised(np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]]))
    assert z[0].mean() == pytest.approx(0) and z[0].std() == pytest.approx(1)
    assert z[1].tolist() == [0, 0, 0]
    assert standardised(np.zeros((4, 0))).shape == (4, 0)
