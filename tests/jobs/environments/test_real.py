"""Jobs in threads, on the emulator: whatever happens when, each job computes what it computes alone and unswapped."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import best_fit
from gpumem.base.errors import ExecutionError
from gpumem.execute import Emulator, GenericOp, Views, carried, initial, prepare, run
from gpumem.jobs import Job, Outcome, Policy, instructions, run_jobs
from gpumem.pool.smartpool.offline import first_fit
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan, Recompute, Swap
from gpumem.swap.tasks import Scheduled
from gpumem.trace import Buffers, Op, Ops, Trace
from tests.conftest import tiny_machine
from tests.nets import dense
from tests.shared_jobs import Drawn, judged, recorded, tight
from tests.strategies import any_plans, steps

State = dict[int, np.ndarray]


def alone(job: Job, iterations: int) -> tuple[State, np.ndarray]:
    """What the job holds after so many iterations without any plan, and what each op has read."""
    launch, state = GenericOp(job.trace), initial(job.trace, seed=1)
    if iterations:
        run(job.trace, best_fit(job.trace), Emulator(), launch, iterations, state=state)
    return state, launch.seen


def same(jobs: list[Job], ran: Outcome, state: dict[str, State], seen: dict[str, GenericOp]) -> None:
    """Every op has read what it reads alone, and what crosses the boundary is what crosses it there."""
    for job, got in zip(jobs, ran.jobs):
        if got.launch >= 0:
            want, digest = alone(job, len(got.end))
            assert seen[job.name].seen.tolist() == digest.tolist()
            for of in carried(job.trace):
                assert state[job.name][of].tolist() == want[of].tolist()


@given(st.integers(0, 2**32 - 1))
def test_any_plans_give_the_bytes_of_the_job_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, plans = [], {}
    place = [best_fit, first_fit][int(rng.integers(2))]
    for k in range(int(rng.integers(1, 4))):
        arrival = int(rng.choice([0, 0, 10**5, 10**6]))
        leave = arrival + int(rng.integers(0, 3 * 10**6)) if rng.random() < 0.2 else None
        job = Job(f"job{k}", recorded(dense(rng), 100 * k), arrival, int(rng.integers(1, 5)), leave)
        few = [tight(rng, job.trace) for _ in range(int(rng.integers(1, 4)))]
        jobs.append(job)
        plans[id(job.trace)] = [
            Scheduled(s.plan, s.peak, tuple((a * 3000, b * 3000) for a, b in s.delays)) for s in few
        ]
    height = {
        key: [instructions(job.trace, s.plan, tiny_machine(), place=place).budget for s in plans[key]]
        for job in jobs
        for key in (id(job.trace),)
    }
    least, most = max(map(min, height.values())), sum(map(max, height.values()))
    capacity = max(1, int(rng.integers(least, most + 1)))
    state = {job.name: initial(job.trace, seed=1) for job in jobs}
    seen = {job.name: GenericOp(job.trace) for job in jobs}
    ran = run_jobs(
        jobs,
        tiny_machine(duplex=bool(rng.random() < 0.6)),
        capacity,
        lambda: Emulator(int(rng.integers(100))),
        lambda job: seen[job.name],
        Policy(Drawn(plans), drain=bool(rng.random() < 0.3), threshold=0.02),
        place=place,
        state=state,
    )
    judged(jobs, ran, capacity)
    same(jobs, ran, state, seen)


@given(st.data())
def test_values_made_again_are_the_bytes_of_the_job_alone(data: st.DataObject) -> None:
    """Chains, scratch, statistics, held inputs, random ops; the plan changes on the way as often as not."""
    jobs, plans = [], {}
    for k in range(data.draw(st.integers(1, 2))):
        trace = recorded(data.draw(steps(max_layers=6)), 100 * k)
        jobs.append(Job(f"job{k}", trace, data.draw(st.sampled_from([0, 10**5])), data.draw(st.integers(1, 6))))
        plans[id(trace)] = [Scheduled(data.draw(any_plans(trace)), 0) for _ in range(data.draw(st.integers(1, 2)))]
    rooms = [[instructions(j.trace, s.plan, tiny_machine(), place=best_fit) for s in plans[id(j.trace)]] for j in jobs]
    capacity = max(1, sum(max(todo.budget for todo in row) for row in rooms))
    state = {job.name: initial(job.trace, seed=1) for job in jobs}
    seen = {job.name: GenericOp(job.trace) for job in jobs}
    ran = run_jobs(
        jobs,
        tiny_machine(),
        capacity,
        Emulator,
        lambda job: seen[job.name],
        Policy(Drawn(plans), threshold=0.02),
        place=best_fit,
        state=state,
    )
    judged(jobs, ran, capacity)
    same(jobs, ran, state, seen)


def dropout() -> tuple[Trace, Plan]:
    """Op 0 draws a mask, op 1 changes W by it, op 2 by the mask recomputed."""
    ops = Ops.make([[], [0, 1], [0, 1]], [[1], [0], [0]], rng=[True, False, False])
    trace = Trace(Buffers.make([16, 16], [0, 0], [3, 3], persistent=[True, False]), ops)
    return trace, Plan.of(trace, [Recompute(1, 1, 2, 2)])


def test_a_change_of_plan_goes_on_drawing() -> None:
    trace, again = dropout()
    job = Job("a", trace, iterations=200)
    state, seen = {"a": initial(trace, seed=1)}, {"a": GenericOp(trace)}
    policy = Policy(Drawn({id(trace): [Scheduled(again, 0), Scheduled(Plan(), 0)]}), threshold=1e9)
    ran = run_jobs([job], tiny_machine(), 2048, Emulator, lambda job: seen["a"], policy, place=best_fit, state=state)
    assert [e.kind for e in ran.log].count("adopt") == 1
    same([job], ran, state, seen)


def weight() -> Trace:
    """Op 0 changes 40 bytes that live for ever; op 1 does something else."""
    ops = Ops.make([[0], []], [[0], []], name=["change", "rest"])
    return Trace(Buffers.make([40], [0], [2], persistent=[True]), ops)


AWAY = Plan((Swap(0, 0, 2, 1, 2),), 2)


@pytest.mark.parametrize("first, second, moved", [(Plan(), AWAY, "out"), (AWAY, Plan(), "in")])
def test_a_change_of_plan_carries_the_values_over(first: Plan, second: Plan, moved: str) -> None:
    """Planned anew after its first iteration, and never again."""
    trace = weight()
    job = Job("a", trace, iterations=500)  # so many that the controller gets its turns
    few = [Scheduled(first, 0), Scheduled(second, 0)]
    state, seen = {"a": initial(trace, seed=1)}, {"a": GenericOp(trace)}
    ran = run_jobs(
        [job],
        tiny_machine(),
        1024,
        Emulator,
        lambda job: seen[job.name],
        Policy(Drawn({id(trace): few}), threshold=1e9),
        place=best_fit,
        state=state,
    )
    kinds = [e.kind for e in ran.log if e.kind in ("adopt", "out", "in")]
    at = kinds.index("adopt")
    assert kinds.count("adopt") == 1
    assert kinds[at - 1 : at] == ["out"] if moved == "out" else kinds[at + 1 :] == ["in"]
    judged([job], ran, 1024)
    same([job], ran, state, seen)


def failing(job: Job) -> Any:
    def launch(op: Op, views: Views) -> Any:
        def call(stream: object) -> None:
            if job.name == "b" and op.name == "rest":
                raise OSError("the disk is full")

        return call

    return launch


class Closed(Emulator):
    """An emulator that is counted."""

    open_now = 0

    def open(self, layout: Any) -> None:
        Closed.open_now += 1
        super().open(layout)

    def close(self) -> None:
        Closed.open_now -= 1


def test_what_fails_in_a_thread_ends_the_run() -> None:
    before = threading.active_count()
    jobs = [Job("a", weight(), iterations=3), Job("b", weight(), arrival=10**6), Job("c", weight(), arrival=10**12)]
    with pytest.raises(ExecutionError, match=r"op 1 \(rest\): the disk is full"):
        run_jobs(jobs, Machine.named("h200"), 1024, Closed, failing, place=best_fit)
    assert threading.active_count() == before
    assert Closed.open_now == 0


def test_each_thread_calls_enter_first() -> None:
    entered: list[int] = []
    ran = run_jobs(
        [Job("a", weight(), iterations=2)],
        Machine.named("h200"),
        1024,
        Emulator,
        lambda job: None,
        place=best_fit,
        enter=lambda: entered.append(threading.get_ident()),
    )
    assert len(set(entered)) == 4 and len(ran["a"].end) == 2  # a kernel, a copy of each engine, planning
    assert len(entered) == 4 and threading.get_ident() not in entered


def test_what_fails_when_a_thread_begins_or_plans_ends_the_run() -> None:
    def fails(*given: object) -> Any:
        raise OSError("the device is gone")

    before, given = threading.active_count(), ([Job("a", weight())], Machine.named("h200"), 1024, Closed)
    for told in ({"enter": fails}, {"policy": Policy(fails)}):
        with pytest.raises(OSError, match="the device is gone"):
            run_jobs(*given, lambda job: None, place=best_fit, **told)
        assert threading.active_count() == before
        assert Closed.open_now == 0


def test_a_job_that_does_not_fit_as_placed_is_refused() -> None:
    """The live bytes would fit, the height of the placement does not."""
    jobs = [Job("a", weight())]
    ran = run_jobs(
        jobs, Machine.named("h200"), 40, Emulator, lambda job: None, place=lambda trace: best_fit(trace, alignment=1)
    )
    assert ran["a"].refused == 0
    trace = Trace(Buffers.make([40, 40], [0, 0], [1, 1]), Ops.make([[]], [[0, 1]]))
    ran = run_jobs([Job("a", trace)], Machine.named("h200"), 255, Emulator, lambda job: None, place=best_fit)
    assert ran["a"].refused == 256 + 40 and ran["a"].launch == -1


def test_the_emulator_numbers_ops_by_their_place_in_issue_order() -> None:
    emulator = Emulator()
    program = prepare(weight(), best_fit(weight()), emulator)
    emulator.begin(program.works, 2)
    tokens = [emulator.submit(program.works[op], (), (), ()) for op in (1, 0, 0, 1)]
    assert [token.number for token in tokens] == [1, 0, 2, 3]
    assert [emulator.wait(token).op for token in tokens[2:]] == [0, 1]
