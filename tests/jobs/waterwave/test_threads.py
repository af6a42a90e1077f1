"""Waterwave under real threads: an executor whose jobs come and go."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from gpumem import Machine, best_fit
from gpumem.execute import Emulator, Program, in_issue_order, prepare, run
from gpumem.execute.models import Model, cnn, mlp
from gpumem.jobs.waterwave import Partition, Pipeline, PipelineExecutor, partition, pipeline
from gpumem.kernels import reference
from tests.jobs.waterwave.in_threads import WATCHDOG, hesitate, in_threads

pytestmark = [pytest.mark.jit, pytest.mark.usefixtures("often")]  # jit: no loop that counts is compiled here

MACHINE = Machine.named("v100")


@cache
def model(k: int) -> Model:
    """One of three models."""
    if k == 2:
        return cnn(batch=2, side=4, channels=[2], classes=3, norm=True, drop=0.25)
    return mlp(batch=4, features=8, hidden=(8, 6, 8)[k:], classes=3, seed=k)


@cache
def part(k: int, groups: int = 3) -> Partition:
    """Its node groups."""
    trace = model(k).trace
    rest = int(trace.buffers.size[trace.eternal].sum())
    return partition(trace, MACHINE, (trace.peak_live_bytes - rest) // groups)


def kind(job: str) -> int:
    """Which model a job trains: the last digit of its name."""
    return int(job[-1]) % 3


class Watch:
    """Plans for an executor and is called by it; sees whether anything runs when it must not."""

    def __init__(self, seed: int, work: Callable[[str, int], object] = lambda job, group: None) -> None:
        self.rng, self.work = random.Random(seed), work
        self.running: dict[int, tuple[str, int]] = {}
        self.next: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self.wrong: list[str] = []
        self.shared = self.plans = 0
        self.signals = [0, 0]

    def plan(self, jobs: tuple[str, ...]) -> Pipeline:
        assert not self.running and not any(self.next.values())
        parts = [part(kind(job)) for job in jobs]
        turns = [*range(len(jobs))] + [0] * (self.rng.random() < 0.3)
        least = sum(p.rest for p in parts) + max(p.peak - p.rest for p in parts)
        found = pipeline(parts, int(least * self.rng.choice([1, 1.2, 2])), turns=turns)
        self.plans += 1
        self.slots: dict[tuple[str, int, int], set[int]] = {}  # job, group, stream -> where that may run
        for turn in found.turns:
            for group, (slot, stream) in enumerate(zip(turn.slot, turn.stream)):
                self.slots.setdefault((jobs[turn.job], group, stream), set()).add(slot % found.period)
        return found

    def call(self, job: str, group: int, stream: int) -> None:
        if self.next.get(job, 0) != group:
            self.wrong.append(f"{job} runs group {group}, not {self.next.get(job, 0)}")
        self.running[stream] = job, group
        mine = self.slots[job, group, stream]
        for other, (its, which) in list(self.running.items()):
            if other != stream:
                self.shared += 1
                if not mine & self.slots[its, which, other]:
                    self.wrong.append(f"{job} {group} runs beside {its} {which}")
        self.work(job, group)
        hesitate(self.rng)
        last = group == len(part(kind(job))) - 1
        self.next[job] = 0 if last else group + 1
        self.ran[job] = self.ran.get(job, 0) + last
        del self.running[stream]

    def signal(self, stream: int) -> None:
        self.signals[stream] += 1

    def wait(self, stream: int) -> None:
        """All have signalled before any goes on."""
        if abs(self.signals[0] - self.signals[1]) > 1:
            self.wrong.append(f"stream {stream} waits, signals are {self.signals}")

    def executor(self) -> PipelineExecutor:
        return PipelineExecutor(self.plan, self.call, signal=self.signal, wait=self.wait, timeout=WATCHDOG / 2)


def test_a_thousand_joins_and_leaves():
    watch, rng = Watch(0), random.Random(1)
    executor = watch.executor()
    told: dict[str, int] = {}

    def come_and_go() -> None:
        staying = ["job0"]
        for k in range(1, 1000):
            plans, until = watch.plans, time.monotonic() + WATCHDOG / 2
            if len(staying) > 3 or (len(staying) > 1 and rng.random() < 0.5):
                gone = staying.pop(rng.randrange(len(staying)))
                told[gone] = watch.ran.get(gone, 0)
                executor.leave(gone)
            else:
                staying.append(f"job{k}")
                executor.join(staying[-1])
            time.sleep(5e-4 * rng.random())
            while k % 5 == 0 and watch.plans == plans and time.monotonic() < until:
                time.sleep(1e-4)
        for job in staying:
            executor.leave(job)

    executor.join("job0")
    assert in_threads(executor.run, come_and_go) == [None, None]
    assert not watch.wrong and not watch.running and not any(watch.next.values())
    assert executor.jobs == ()
    assert watch.shared > 0 and watch.plans > 190
    assert all(watch.ran.get(job, 0) - before <= 2 for job, before in told.items())  # it ends one, and begins no other


def test_a_thousand_rounds():
    watch = Watch(3)
    executor = watch.executor()
    executor.join("job0", 1000)
    executor.join("job1", 900)
    assert in_threads(executor.run) == [None]
    assert watch.ran == {"job0": 1000, "job1": 900} and not watch.wrong and watch.plans <= 3


def test_a_job_told_to_leave_in_the_middle_ends_its_iteration_and_begins_no_other():
    watch = Watch(5)
    executor = watch.executor()
    executor.join("job0", 5)
    executor.join("job1")

    def leaves(job: str, group: int) -> None:
        if job == "job1" and group == 1 and watch.ran.get(job, 0) == 2:
            executor.leave("job1")
            executor.join("job2", 2)
            with pytest.raises(ValueError, match="job 'job1' is in already, it is leaving"):
                executor.join("job1")

    watch.work = leaves
    assert in_threads(executor.run) == [None]
    assert watch.ran == {"job0": 5, "job1": 3, "job2": 2} and not watch.wrong


@pytest.mark.parametrize(("leaves", "want"), [(False, {"a": 3, "b": 2}), (True, {"a": 3, "b": 1})])
def test_iterations_where_a_job_has_two_turns_and_where_one_leaves_before_its_turn(leaves: bool, want: dict[str, int]):
    ran = dict.fromkeys(want, 0)

    def call(job: str, group: int, stream: int) -> None:
        if leaves and (job, group, ran["a"]) == ("a", 0, 2):
            executor.leave("b")  # a begins the second round, b would come behind it
        ran[job] += group == len(part(0)) - 1

    def plan(jobs: tuple[str, ...]) -> Pipeline:
        turns = [0, 0, 1] if jobs == ("a", "b") else [0]
        return pipeline([part(0)] * len(jobs), turns=turns, overlap=0, wrap=False)

    executor = PipelineExecutor(plan, call, timeout=WATCHDOG)
    executor.join("a", 3)
    executor.join("b", 2)
    assert in_threads(executor.run) == [None]
    assert ran == want


def test_a_round_is_run_between_two_plans_whoever_comes_and_goes():
    ran, seen = [], []

    def plan(jobs: tuple[str, ...]) -> Pipeline:
        seen.append(len(ran))
        if len(seen) < 5:
            executor.join(f"job{len(seen)}")  # a change before the first round
        else:
            for job in jobs:
                executor.leave(job)
        return pipeline([part(0)] * len(jobs))

    executor = PipelineExecutor(plan, lambda job, group, stream: ran.append(job), timeout=WATCHDOG)
    executor.join("job0")
    assert in_threads(executor.run) == [None]
    assert [b - a for a, b in pairwise(seen)] == [k * len(part(0)) for k in (1, 2, 3, 4)]


def test_models_under_threads_end_with_the_bytes_of_each_alone():
    programs: dict[str, Program] = {}
    iterations = {"job0": 4, "job1": 7, "job2": 5}
    for job in iterations:
        mine, trace = model(kind(job)), part(kind(job)).trace
        programs[job] = prepare(trace, best_fit(trace), Emulator(), mine.launch(reference))
        programs[job].write(mine.initial)

    def work(job: str, group: int) -> None:
        first, last = part(kind(job)).cuts[group : group + 2].tolist()
        for op in programs[job].works[first:last]:
            if op.call is not None:
                op.call(None)

    watch = Watch(7, work)
    executor = watch.executor()
    for job, times in iterations.items():
        executor.join(job, times)
    assert in_threads(executor.run) == [None]
    assert watch.ran == iterations and not watch.wrong
    for job, times in iterations.items():
        mine, state, after = model(kind(job)), model(kind(job)).state(), programs[job].read()
        run(mine.trace, best_fit(mine.trace), Emulator(in_issue_order), mine.launch(reference), times, state=state)
        assert all(np.array_equal(after[of][: v.nbytes], v.reshape(-1).view(np.uint8)) for of, v in state.items())


# What fails


@pytest.mark.parametrize("where", ["call", "signal", "wait", "enter"])
def test_what_fails_in_one_thread_ends_all(where: str):
    seen = []

    def fails(*given: object) -> None:
        seen.append(given)
        if len(seen) > 5 or where == "enter":
            raise OSError("the disk is full")

    hooks = {"call": lambda job, group, stream: None} | {where: fails}
    executor = PipelineExecutor(lambda jobs: pipeline([part(kind(job)) for job in jobs]), **hooks)
    executor.join("job0")
    executor.join("job1")
    (error,) = in_threads(executor.run)
    assert isinstance(error, OSError) and str(error) == "the disk is full"
    assert error.__notes__[-1].startswith("stream ")
    if where == "call":
        assert error.__notes__[0].startswith("job 'job")
    assert executor.jobs == ("job0", "job1")


def test_a_plan_that_fails_and_one_that_forgets_a_job():
    def plan(jobs: tuple[str, ...]) -> Pipeline:
        return pipeline([part(0)])

    executor = PipelineExecutor(plan, lambda job, group, stream: None)
    executor.join("job0", 2)
    executor.join("job1", 2)
    (error,) = in_threads(executor.run)
    assert isinstance(error, ValueError) and str(error).startswith(
        "plan: it returned a pipeline of 1 jobs for 2: ('job0'"
    )
    executor.leave("job1")
    assert in_threads(executor.run) == [None]
    assert executor.jobs == ()


def test_a_stream_that_hangs_is_told():
    go_on = threading.Event()

    def call(job: str, group: int, stream: int) -> None:
        if group == 2:
            go_on.wait(WATCHDOG)

    executor = PipelineExecutor(lambda jobs: pipeline([part(0)]), call, timeout=0.02)
    executor.join("job0")
    (error,) = in_threads(executor.run)
    assert isinstance(error, TimeoutError) and str(error) == "a root has waited 0.02 s for leaves: 1 of 2 has not come"
    go_on.set()
    in_threads(*(thread.join for thread in threading.enumerate() if thread.name.startswith("stream ")))


def test_misuse_is_told():
    executor = PipelineExecutor(lambda jobs: pipeline([part(0)]), lambda job, group, stream: executor.run())
    executor.run()  # nobody is in
    executor.join("job0")
    for wrong, told in (
        (lambda: executor.join("job0"), "job 'job0' is in already$"),
        (lambda: executor.leave("job1"), "job: .*job1.*job0"),
        (lambda: executor.join("job2", 0), "iterations: 0 is below 1"),
    ):
        with pytest.raises(ValueError, match=told):
            wrong()
    (error,) = in_threads(executor.run)
    assert isinstance(error, RuntimeError) and str(error) == "the executor is running already"
