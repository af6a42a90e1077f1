"""What the tests of jobs on CUDA run on the fake driver: several threads, a backend for each job, one device."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda.core import Device

from fake_cuda import control, waterwave_checks
from fake_cuda.backend_checks import held, library, raised, report
from gpumem import best_fit
from gpumem.base.errors import ExecutionError
from gpumem.execute import Emulator, GenericOp, carried, in_issue_order, initial, run
from gpumem.execute.cuda import Cuda
from gpumem.execute.models import mlp
from gpumem.jobs import Job, Outcome, Policy, run_jobs
from gpumem.jobs.environments.backend_job import prepared
from gpumem.jobs.environments.simulated import _Clock
from gpumem.jobs.environments.threads import Threads
from gpumem.kernels import reference
from gpumem.pool.smartpool.offline import first_fit
from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled
from gpumem.trace import COPY_OUT, Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.nets import dense
from tests.shared_jobs import Drawn, judged, recorded, tight

FAKE = Machine("fake", 2**30, Link(500, 1 / 16), Link(500, 1 / 16), 1e12, 1e12, launch_ns=4000, pinned=2**30)
State = dict[str, dict[int, np.ndarray]]


def enter() -> None:
    """Have a thread use the device."""
    Device(0).set_current()


@dataclass
class Backends:
    """Makes backends whose views are plain device arrays; counts iterations, and events at each close."""

    options: dict[str, Any] = field(default_factory=dict)
    kind: type[Cuda] = Cuda
    events: list[int] = field(default_factory=list)
    iterations: int = 0

    def __call__(self) -> Cuda:
        mine = self

        class Counted(self.kind):
            def close(self) -> None:
                mine.events.append(control.count("live_events"))
                super().close()

            def iteration(self, issue: Callable[[], list[Any]]) -> list[Any]:
                mine.iterations += 1
                return super().iteration(issue)

        return Counted(array=lambda array: array, **self.options)


def alone(job: Job, iterations: int) -> dict[int, np.ndarray]:
    """What the job holds after so many iterations on the emulator, without any plan."""
    state = initial(job.trace, seed=1)
    if iterations:
        launch = GenericOp(job.trace, reference)
        run(job.trace, best_fit(job.trace), Emulator(in_issue_order), launch, iterations, state=state)
    return state


def go(
    jobs: list[Job],
    machine: Machine,
    capacity: int,
    *,
    backend: Callable[[], Cuda] | None = None,
    **options: Any,
) -> tuple[Outcome, State]:
    """Run jobs; return what came of them and their state."""
    state = {job.name: initial(job.trace, seed=1) for job in jobs}
    launches = {job.name: GenericOp(job.trace, library) for job in jobs}
    options = {"place": best_fit, "enter": enter, "state": state} | options
    ran = run_jobs(jobs, machine, capacity, backend or Backends(), lambda job: launches[job.name], **options)
    return ran, state


def right(jobs: list[Job], ran: Outcome, state: State, capacity: int) -> None:
    """The log is sound, every job holds what it holds alone and unswapped, the device holds nothing."""
    judged(jobs, ran, capacity)
    for job, got in zip(jobs, ran.jobs):
        want = alone(job, len(got.end))
        for of in carried(job.trace):
            assert np.array_equal(state[job.name][of], want[of]), (job.name, of)
    assert not any(held().values()), held()


def crowd(seed: int) -> tuple[list[Job], Machine, int, dict[str, Any]]:
    """Jobs that come, swap much, change their plans and go."""
    rng = np.random.default_rng(seed)
    jobs, plans = [], {}
    for k in range(int(rng.integers(1, 4))):
        arrival = int(rng.choice([0, 0, 10**6, 10**7]))
        leave = arrival + int(rng.integers(0, 3 * 10**7)) if rng.random() < 0.2 else None
        job = Job(f"job{k}", recorded(dense(rng), 100 * k), arrival, int(rng.integers(1, 6)), leave)
        jobs.append(job)
        few = [tight(rng, job.trace) for _ in range(int(rng.integers(1, 4)))]
        plans[id(job.trace)] = [
            Scheduled(s.plan, s.peak, tuple((a * 20000, b * 20000) for a, b in s.delays)) for s in few
        ]
    capacity = 256 * int(rng.integers(8, 20))
    options = {
        "place": [best_fit, first_fit][int(rng.integers(2))],
        "policy": Policy(Drawn(plans), drain=bool(rng.random() < 0.3), threshold=0.02),
        "backend": Backends({"timing": bool(rng.random() < 0.5)}),
    }
    return jobs, tiny_machine(duplex=bool(rng.random() < 0.6)), capacity, options


def check_any_plans_give_the_bytes_of_the_job_alone() -> None:
    ran_at_all = swapped = adopted = early = 0
    control.reset_counts()
    for seed in range(16):
        control.seed(seed)
        jobs, machine, capacity, options = crowd(seed)
        ran, state = go(jobs, machine, capacity, **options)
        right(jobs, ran, state, capacity)
        ran_at_all += sum(job.launch >= 0 for job in ran.jobs)
        swapped += sum(job.out + job.into > 0 for job in ran.jobs)
        adopted += sum(e.kind == "adopt" for e in ran.log)
        early += sum(len(got.end) < job.iterations and not got.refused for job, got in zip(jobs, ran.jobs))
    found = ran_at_all, swapped, adopted, early
    assert min(found) > 0, found
    assert control.count("waits") == 0  # ops may be started outside the lock: none is behind one that has not ended


def check_tensile_plans_two_training_steps() -> None:
    """One arrives while the other is there, both swap, it goes, the other takes the room."""

    def ten_us(job: Job, utilisation: float) -> Any:
        """Estimates that stay, so that plans do not depend on how fast the host is."""
        return np.full(job.trace.n, 10_000)

    traces = [mlp(batch=64, features=64, hidden=(32,) * depth).trace for depth in (4, 5)]
    capacity = sum(best_fit(trace).height for trace in traces) * 80 // 100
    policy = Policy(estimate=ten_us, beta=1)
    for timing in (False, True):
        jobs = [Job("a", traces[0], iterations=60), Job("b", traces[1], 10**6, 3)]
        ran, state = go(jobs, FAKE, capacity, policy=policy, backend=Backends({"timing": timing}))
        right(jobs, ran, state, capacity)
        assert [len(job.end) for job in ran.jobs] == [60, 3]
        assert ran.replans and any(e.kind == "adopt" for e in ran.log)
        assert sum(job.into for job in ran.jobs) > 0


def weight() -> Trace:
    """Op 0 changes 40 bytes that live for ever; the others do something else."""
    ops = Ops.make([[0], [], [], []], [[0], [1], [1], [1]], name=["change", "one", "two", "three"])
    return Trace(Buffers.make([40, 8], [0, 1], [4, 4], persistent=[True, False]), ops)


AWAY = Plan((Swap(0, 0, 4, 1, 4),), 4)


def fixed(*plans: Plan, trace: Trace, delay: int = 0) -> Drawn:
    return Drawn({id(trace): [Scheduled(plan, 0, ((delay, 0),) * len(plan.decisions)) for plan in plans]})


def planned_at_once() -> Any:
    """Plans are made by who asks for them, so there is one at the next boundary on a busy machine too."""
    return patch.object(Threads, "soon", _Clock.soon)


def check_a_change_of_plan_carries_the_values_over() -> None:
    for few in ((Plan(), AWAY), (AWAY, Plan())):
        trace = weight()
        jobs = [Job("a", trace, iterations=1000)]  # long enough for the plan to come, on a busy machine too
        ran, state = go(jobs, Machine.named("h200"), 2048, policy=Policy(fixed(*few, trace=trace), threshold=1e9))
        assert sum(e.kind == "adopt" for e in ran.log) == 1
        right(jobs, ran, state, 2048)


class Watched(Cuda):
    """Lets the host wait for op `one` until the copy out has been submitted, and notes what that was put behind."""

    beside: list[tuple[bool, bool]]  # is `one` running, does the copy wait for it
    copied: threading.Event
    one: Any = None

    def submit(self, work: Any, reads: Any, writes: Any, after: Any) -> Any:
        token = super().submit(work, reads, writes, after)
        if work.name == "one":
            Watched.one = token
        if work.role == COPY_OUT:
            Watched.beside.append((Watched.one.span is None, Watched.one in after))
            Watched.copied.set()
        return token

    def wait(self, token: Any) -> Any:
        if token is Watched.one:
            assert Watched.copied.wait(10)
            Watched.copied.clear()
        return super().wait(token)


def check_a_copy_does_not_wait_for_a_kernel_that_runs_beside_it() -> None:
    """The copy out is due some time after op 0 has ended, while op 1 is running."""
    trace = weight()
    Watched.beside, Watched.copied = [], threading.Event()
    late = Plan((Swap(0, 0, 4, 3, 4),), 4)  # op 1 does not need its memory
    plan = fixed(late, trace=trace, delay=3 * 10**6)
    jobs = [Job("a", trace, iterations=3)]
    ran, state = go(jobs, Machine.named("h200"), 2048, policy=Policy(plan), backend=Backends(kind=Watched))
    right(jobs, ran, state, 2048)
    assert Watched.beside == [(True, False)] * 3, Watched.beside


def check_events_do_not_grow_with_the_iterations() -> None:
    most = []
    for iterations in (8, 80):
        trace, backend = weight(), Backends({"timing": True})
        jobs = [Job("a", trace, iterations=iterations)]
        control.reset_counts()
        go(jobs, Machine.named("h200"), 2048, policy=Policy(fixed(AWAY, trace=trace)), backend=backend)
        most.append(max(backend.events))
        assert backend.iterations == iterations
        assert control.count("waits") == 0  # the host has waited for whatever an op is put behind
    assert 0 < most[0] == most[1], most


def check_times_are_the_device_s_where_it_is_asked_for_them() -> None:
    """The fake device takes 1000 ns for each launch and 10 for the record of an event; its jobs are told so."""
    trace = weight()
    told: list[list[int]] = []

    class Told(Drawn):
        def __call__(self, tasks: Any, machine: Any, capacity: int) -> Any:
            told.append(tasks[0].duration.tolist())
            return super().__call__(tasks, machine, capacity)

    plan = Told({id(trace): [Scheduled(Plan(), 0)]})
    jobs = [Job("a", trace, iterations=500)]
    go(jobs, Machine.named("h200"), 2048, policy=Policy(plan, beta=0), backend=Backends({"timing": True}))
    # clear and fill; `change` also has a checksum
    assert len(told) > 1 and told[-1] == [3010, 2010, 2010, 2010], told


def check_a_thread_that_has_not_entered_is_told() -> None:
    trace, before = weight(), threading.active_count()
    jobs = [Job("a", trace, iterations=3)]
    plan = fixed(AWAY, trace=trace)
    text = raised(ExecutionError, lambda: go(jobs, Machine.named("h200"), 2048, policy=Policy(plan), enter=None))
    assert re.match(r"op \d+ \(copy_\w+\): could not be started: .*CUDA_ERROR_INVALID_CONTEXT", text), text
    assert threading.active_count() == before
    assert not any(held().values()), held()


def until_it_fails() -> Exception:
    """Two jobs that would go on for long, and one that has not come yet; return what ends them."""
    traces = [weight(), weight()]
    plan = Drawn({id(trace): [Scheduled(p, 0) for p in (AWAY, Plan())] for trace in traces})
    jobs = [Job("a", traces[0], 0, 10**5), Job("b", traces[1], 10**6, 10**5), Job("c", weight(), 10**15)]
    before = threading.active_count()
    try:
        go(jobs, Machine.named("h200"), 4096, policy=Policy(plan, threshold=0))
    except Exception as error:
        assert threading.active_count() == before
        assert not any(held().values()), held()
        return error
    raise AssertionError("nothing has failed")


def check_a_fault_anywhere_ends_all_threads_and_gives_everything_back() -> None:
    for kind in ("launch", "copy", "record"):
        seen = set()
        for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            control.fail(kind, n)
            error = until_it_fails()
            assert "CUDA_ERROR" in str(error), error
            if isinstance(error, ExecutionError):  # else values that go in or out between runs
                assert re.match(r"op \d+ \(\w+\): could not be started: ", str(error)), error
                seen.update(error.__notes__)
        assert seen and seen <= {"job 'a'", "job 'b'"}, seen
    for kind, text in {"allocation": "bytes of device memory", "pinned": "bytes of pinned memory"}.items():
        for n in (1, 2, 3, 4):
            control.fail(kind, n)
            error = until_it_fails()
            assert isinstance(error, MemoryError) and text in str(error), error
    for kind in ("event", "stream"):
        for n in (1, 2, 3, 5):
            control.fail(kind, n)
            until_it_fails()


def check_work_that_fails_on_the_device_ends_all_threads() -> None:
    for n in (1, 2, 4, 7, 20, 50):
        control.fail("execution", n)
        error = until_it_fails()
        assert "CUDA_ERROR_LAUNCH_FAILED" in str(error), error
        if isinstance(error, ExecutionError):
            assert "did not end, it or an op before it: " in str(error), error


def check_a_launch_that_takes_long_keeps_nobody_else() -> None:
    """As one does that is compiled at its first call: what is bound in `prepare` is made there."""
    for slow in ("bind", "call"):
        traces, went_on = [weight(), weight()], threading.Event()
        jobs = [Job(name, trace, iterations=3) for name, trace in zip("ab", traces)]
        launches = {job.name: GenericOp(job.trace, library) for job in jobs}

        def launch(job: Job, slow: str = slow, launches: Any = launches, went_on: Any = went_on) -> Any:
            mine = launches[job.name]

            def bound(op: Any, views: Any) -> Any:
                if job.name == "a" and slow == "bind":
                    assert went_on.wait(10), "the other job stands still while an op of this is bound"
                call = mine(op, views)

                def start(stream: Any) -> None:
                    if job.name == "a":
                        assert went_on.wait(10), "the other job stands still while an op of this is started"
                    call(stream)
                    if job.name == "b" and op.name == "three":
                        went_on.set()

                return start

            return bound

        plan = Drawn({id(trace): [Scheduled(AWAY, 0)] for trace in traces})
        state = {job.name: initial(job.trace, seed=1) for job in jobs}
        options = {"place": best_fit, "enter": enter, "state": state, "policy": Policy(plan)}
        ran = run_jobs(jobs, Machine.named("h200"), 4096, Backends(), launch, **options)
        right(jobs, ran, state, 4096)


def check_compiled_kernels_are_loaded_while_a_job_is_laid_out() -> None:
    """And at no other time, when the lock might be held; the values are those of the job alone."""
    from gpumem.kernels import device

    trace, within = weight(), [0]

    def watched(*arguments: Any) -> Any:
        before = control.count("loads")
        made = prepared(*arguments)
        within[0] += control.count("loads") - before
        return made

    jobs, state = [Job("a", trace, iterations=20)], {"a": initial(trace, seed=1)}
    options = {"place": best_fit, "enter": enter, "state": state}
    options["policy"] = Policy(fixed(AWAY, Plan(), trace=trace), threshold=0)
    control.reset_counts()
    with patch("gpumem.jobs.environments.threads.prepared", watched), planned_at_once():
        ran = run_jobs(jobs, FAKE, 2048, Backends(), lambda job: GenericOp(job.trace, device), **options)
    right(jobs, ran, state, 2048)
    assert sum(e.kind == "adopt" for e in ran.log) > 1
    loads = control.count("loads"), control.count("late_loads")
    assert loads == (within[0], 0) and within[0] >= 3, (loads, within)  # clear, checksum, fill


def check_who_waits_for_an_op_sleeps() -> None:
    """How often the host spins does not depend on how many iterations there are."""
    for timing in (False, True):
        spun, synced = [], []
        for iterations in (8, 80):
            trace = weight()
            jobs = [Job("a", trace, iterations=iterations)]
            control.reset_counts()
            backend = Backends({"timing": timing})
            go(jobs, Machine.named("h200"), 2048, policy=Policy(fixed(AWAY, trace=trace)), backend=backend)
            spun.append(control.count("spinning_syncs")), synced.append(control.count("syncs"))
        assert synced[1] - synced[0] >= 72 * 6, synced  # four ops and two copies
        assert spun[0] == spun[1], (timing, spun)


def as_high(trace: Trace) -> Placement:
    """A placement as high as that under any other plan, so that the device's slab is as large."""
    return replace(best_fit(trace), height=512)


def check_changes_of_plan_take_no_memory() -> None:
    """What the first two plans have had is there for the others."""
    changes, taken = [], []
    for iterations in (10, 50):
        trace = weight()
        plan = fixed(AWAY, Plan(), trace=trace)
        jobs = [Job("a", trace, iterations=iterations)]
        control.reset_counts()
        with planned_at_once():
            ran, state = go(jobs, Machine.named("h200"), 2048, policy=Policy(plan, threshold=0), place=as_high)
        right(jobs, ran, state, 2048)
        changes.append(sum(e.kind == "adopt" for e in ran.log))
        taken.append((control.count("allocations"), control.count("host_allocations")))
    assert min(changes) > 2, changes
    assert taken[0] == taken[1], (changes, taken)


def main() -> None:
    """Run all checks, those of Waterwave too."""
    report(globals() | vars(waterwave_checks))
