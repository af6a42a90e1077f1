"""Random steps under random plans, and what may come between: only the memory differs from the bare steps."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.swap.plan import Hold, Recompute, Swap
from gpumem.testing import plans
from gpumem.torch import managed
from gpumem.torch.step.ops import kind_of
from tests.pytorch.managing import (
    HOW,
    Left,
    Lesson,
    Resident,
    differences,
    least,
    left,
    storages,
    taught,
    trace_of,
    world,
)
from tests.pytorch.nets import OPTIMIZERS
from tests.pytorch.programs import WHAT, N, Program

FEW = 8  # steps
SLACK = 256  # bytes that last within a step, and not after it: gradients and a loss
RANDOM = torch.get_rng_state().nbytes
FEWER = settings(max_examples=max(settings().max_examples // 3, 1))  # examples of what takes long
BARE = sorted({*WHAT} - {"cycle"})  # what a collector frees, it frees whenever it likes


class Bomb(TorchDispatchMode):
    """Raises at the op of a number, counted since it was armed: before it runs, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.late = -1, False

    def arm(self, at: int, late: bool) -> None:
        self.left, self.late = at, late

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kind_of(func).may_be_op:
            self.left -= 1
        hit = self.left == 0 and kind_of(func).may_be_op
        if hit and not self.late:
            raise OverflowError("before an op")
        result = func(*args, **(kwargs or {}))
        if hit:
            raise OverflowError("after an op")
        return result


class Programs:
    """A training whose steps run programs of `programs.py`, one after the other or as a schedule has it.

    Parameters
    ----------
    programs : list of Program
    schedule : list of int
        Which program step k runs; the last one from there on.
    happens : dict of int to str
        What comes before step k: `no grad`, `inference`, `collect`, `read`.
    bombs : dict of int to (int, bool)
        In step k the op of a number fails, before or after it ran; the loop catches that and goes on.
    below : bool
        Whether an op fails as if its kernel did, below the manager.
    """

    def __init__(
        self,
        programs: list[Program],
        optimizer: str = "sgd",
        *,
        schedule: list[int] | None = None,
        twice: bool = False,
        clears: str = "last",
        keeps: bool = False,
        happens: dict[int, str] | None = None,
        bombs: dict[int, tuple[int, bool]] | None = None,
        below: bool = False,
    ) -> None:
        self.programs, self.optimizer, self.schedule = programs, optimizer, schedule or [0]
        self.twice, self.clears, self.keeps = twice, clears, keeps
        self.happens, self.bombs, self.below = happens or {}, bombs or {}, below
        self.bomb = Bomb()

    def __repr__(self) -> str:
        named = ("optimizer", "schedule", "twice", "clears", "keeps", "happens", "bombs", "below")
        return f"Programs({self.programs}, {', '.join(f'{name}={getattr(self, name)!r}' for name in named)})"

    def start(self) -> None:
        torch.manual_seed(0)
        self.weights = [torch.randn(N, N, requires_grad=True) for _ in range(2)]
        self.opt = OPTIMIZERS[self.optimizer](self.weights)
        self.said: list[Any] = []
        self.kept: list[torch.Tensor] = []

    def step(self, k: int) -> None:
        self.between(self.happens.get(k, ""))
        if k not in self.bombs:
            self.train(k)
            return
        self.bomb.arm(*self.bombs[k])
        with nullcontext() if self.below else self.bomb:
            try:
                self.train(k)
            except OverflowError as error:
                self.said.append(str(error))
        self.bomb.arm(-1, False)
        self.opt.zero_grad()

    def between(self, what: str) -> None:
        if what in ("no grad", "inference"):
            with torch.no_grad() if what == "no grad" else torch.inference_mode():
                score = F.linear(torch.randn(N, N), self.weights[0]).softmax(0) @ self.weights[1]
                self.said.append(score.sum().item().hex())
        elif what == "collect":
            gc.collect()
        elif what == "read":
            self.said += [str(x) for x in [*self.kept, *self.weights]]

    def train(self, k: int) -> None:
        if self.clears == "first":
            self.opt.zero_grad()
        x = [torch.randn(N, N), self.weights[0] * 1]
        program = self.programs[self.schedule[min(k, len(self.schedule) - 1)]]
        for line, (what, i, j) in enumerate(program):
            x[i] = WHAT[what](x[i], x[j], self.weights[line % 2])
        loss = (x[0] * self.weights[1] + x[1]).tanh().mean()  # bounded, or all is infinite soon
        if self.keeps:
            self.kept.append(x[k % 2].detach())
        del x
        loss.backward(retain_graph=self.twice)
        if self.twice:
            loss.backward()
        self.opt.step()
        self.said.append(loss.item().hex())
        if self.clears == "last":
            self.opt.zero_grad()

    def left(self) -> Left:
        grads = {f"grad {k}": w.grad for k, w in enumerate(self.weights) if w.grad is not None}
        states = {
            f"{k}": x
            for k, x in enumerate(y for s in self.opt.state.values() for y in s.values() if torch.is_tensor(y))
        }
        kept = {f"kept {k}": x for k, x in enumerate(self.kept)}
        return left({**{f"weight {k}": w for k, w in enumerate(self.weights)}, **grads, **states, **kept}, self.said)


def same(lesson: Any, limit: int | str, steps: int = FEW, cold: int = 1, **how: Any) -> Any:
    """Hold a lesson under a memory limit against the lesson as it is; return the report."""
    with lesson.bomb if isinstance(lesson, Programs) and lesson.below else nullcontext():
        theirs, _ = taught(lesson, steps=steps)
    before, peaks = world(), []
    with ExitStack() as outer:
        resident = outer.enter_context(Resident())
        if isinstance(lesson, Programs) and lesson.below:
            outer.enter_context(lesson.bomb)
        lesson.start()
        for x in lesson.weights if isinstance(lesson, Programs) else lesson.model.parameters():
            resident.see(x)
        lasts = SLACK + sum(len(x[-1]) for x in theirs.values() if isinstance(x[-1], bytes)) - RANDOM
        where = "device" if isinstance(limit, int) and limit >= lasts else "host"
        with managed(limit, **{**HOW, "on_exit": where, **how}) as manager:
            for k in range(steps):
                resident.peak = 0
                lesson.step(k)
                peaks.append(resident.peak)
    assert not differences(before, world())
    mine = lesson.left()
    assert [name for name in theirs if mine[name] != theirs[name]] == [] and list(mine) == list(theirs)
    report = manager.report()
    assert max(peaks[cold:], default=0) <= report.limit, peaks
    return report


PROGRAM = st.lists(st.tuples(st.sampled_from(BARE), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=8)
HAPPENS = st.dictionaries(
    st.integers(1, FEW - 1), st.sampled_from(["no grad", "inference", "collect", "read"]), max_size=3
)
LESSONS = st.builds(
    Programs,
    st.lists(PROGRAM, min_size=1, max_size=1),
    st.sampled_from(sorted(OPTIMIZERS)),
    twice=st.booleans(),
    clears=st.sampled_from(["first", "last"]),
)


@FEWER
@given(LESSONS, st.data())
def test_any_plan_is_carried_out(lesson: Programs, data: st.DataObject) -> None:
    trace = trace_of(lesson)
    kinds = data.draw(st.sampled_from([(Swap,), (Recompute, Hold), (Swap, Recompute, Hold)]))
    plan = data.draw(plans(trace, kinds=kinds))
    limit = max(plan.apply(trace).peak_live_bytes, least(trace)[0]) + data.draw(st.sampled_from([0, 64, 1000]))
    report = same(lesson, limit, plan=(trace, plan))
    assert report.iterations[-1].ops == trace.n


@FEWER
@given(LESSONS, st.data())
def test_any_plan_within_less_than_it_takes(lesson: Programs, data: st.DataObject) -> None:
    trace = trace_of(lesson)
    plan = data.draw(plans(trace))
    low = least(trace)[0]
    # what is recomputed holds what it reads and makes beside what the op after it needs, so the plan gives way
    same(lesson, low + data.draw(st.integers(0, max(trace.peak_live_bytes - low, 1))), plan=(trace, plan))


@FEWER
@given(LESSONS, HAPPENS, st.booleans(), st.floats(0, 1))
def test_evaluation_and_kept_tensors_come_in_between(
    lesson: Programs, happens: dict[int, str], keeps: bool, where: float
) -> None:
    trace = trace_of(lesson)
    lesson.happens, lesson.keeps = happens, keeps
    low = least(trace)[0]
    same(lesson, low + int(where * (trace.peak_live_bytes - low)), planner="on-demand")


@FEWER
@given(st.lists(PROGRAM, min_size=2, max_size=3), st.lists(st.integers(0, 1), min_size=FEW, max_size=12), st.data())
def test_deviations(programs: list[Program], schedule: list[int], data: st.DataObject) -> None:
    lesson = Programs(programs, data.draw(st.sampled_from(["sgd", "adam"])))
    traces = []
    for k in (0, 1):
        lesson.schedule = [k]
        traces.append(trace_of(lesson))
    lesson.schedule = schedule
    low, high = max(least(trace)[0] for trace in traces), min(trace.peak_live_bytes for trace in traces)
    limit = max(low, data.draw(st.integers(min(low, high), high)))
    how: dict[str, Any] = {"planner": "on-demand"}
    if data.draw(st.booleans()):
        how = {"plan": (traces[0], data.draw(plans(traces[0])))}
    first_of_each = max(schedule.index(k) for k in {*schedule}) + 1
    same(lesson, limit, steps=len(schedule), cold=first_of_each, **how)


@FEWER
@given(
    LESSONS,
    st.dictionaries(st.integers(1, FEW - 2), st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_an_op_fails_and_the_loop_goes_on(
    lesson: Programs, bombs: dict[int, tuple[int, bool]], below: bool, data: st.DataObject
) -> None:
    whole = lesson.optimizer == "adamw" or any(what == "inference" for what, _, _ in lesson.programs[0])
    assume(not (below and whole))  # calls on lists, and those of inference, are several ops below the manager
    trace = trace_of(lesson)
    lesson.bombs, lesson.below = bombs, below
    how: dict[str, Any] = {"planner": "on-demand"}
    if data.draw(st.booleans()):
        how = {"plan": (trace, data.draw(plans(trace)))}
    low = least(trace)[0]
    cold = 1 + min({*range(FEW)} - {*bombs})
    same(lesson, data.draw(st.integers(low, max(trace.peak_live_bytes, low))), cold=cold, **how)


def at_each_op(lesson: Programs, late: bool, below: bool) -> None:
    trace = trace_of(lesson)
    limit = max(trace.peak_live_bytes * 7 // 10, least(trace)[0])
    found = same(lesson, limit)
    lesson.below = below
    for op in range(1, trace.n + 1):
        lesson.bombs = {2: (op, late)}
        report = same(lesson, limit, 5, plan=(found.trace, found.plan))
        assert report.iterations[-1].state == "planned", op


LONG: Program = [
    ("linear", 0, 0),
    ("dropout", 1, 0),
    ("rows", 0, 1),
    ("cube", 1, 1),
    ("slope", 0, 1),
    ("in place", 1, 0),
]


@pytest.mark.parametrize("late", [False, True])
def test_each_op_fails_once(late: bool) -> None:
    at_each_op(Programs([LONG[:4]], "sgd"), late, below=late)


@pytest.mark.slow
@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_op_of_longer_steps_fails_once(optimizer: str, late: bool, below: bool) -> None:
    at_each_op(Programs([LONG], optimizer), late, below)


@pytest.mark.parametrize("what", [what for what in WHAT if what != "cycle"])
def test_each_thing_that_a_step_does(what: str) -> None:
    lesson = Programs([[(what, 0, 1), ("tanh", 1, 0), (what, 1, 1)]], "adam")
    trace = trace_of(lesson)
    same(lesson, (trace.peak_live_bytes + least(trace)[0]) // 2)


def test_what_a_collector_frees_comes_off_the_books() -> None:
    lesson = Programs([[("cycle", 0, 1)]], "sgd", happens=dict.fromkeys(range(20), "collect"))
    trace = trace_of(lesson)
    same(lesson, trace.peak_live_bytes, steps=20)


def test_an_exception_leaves_the_block() -> None:
    lesson = Lesson("unet", "adam")
    theirs, _ = taught(lesson, steps=7)
    before = world()
    lesson.start()
    with pytest.raises(OverflowError, match="enough"), managed("60%", **HOW):
        for k in range(7):
            lesson.step(k)
        raise OverflowError("enough")
    assert not differences(before, world())
    assert lesson.left() == theirs


def test_it_is_entered_again() -> None:
    lesson = Lesson("unet", "adam")
    theirs, _ = taught(lesson, steps=14)
    limit = trace_of(lesson).peak_live_bytes * 7 // 10
    lesson.start()
    manager = managed(limit, **HOW)
    for k in (0, 7):
        with manager:
            for j in range(7):
                lesson.step(k + j)
    assert lesson.left() == theirs


def copies() -> int:
    """Bytes of NumPy's that the run has made; `tracemalloc` is on."""
    gc.collect()
    of_numpy = [t for t in tracemalloc.take_snapshot().traces if t.domain]
    return sum(t.size for t in of_numpy if "gpumem/torch/run" in t.traceback[0].filename)


def test_nothing_is_left_behind() -> None:
    def run() -> Any:
        lesson = Lesson("unet", "adam")
        _, manager = taught(lesson, lambda: managed("60%", **HOW), 8)
        assert sum(x.moved_out for x in manager.report().iterations) > 0
        del lesson
        return manager

    run()  # what is made once
    before = storages()
    tracemalloc.start(1)
    try:
        manager = run()
        assert storages() == before
        assert copies() == 0
    finally:
        tracemalloc.stop()
    manager.report()


def test_while_it_runs_the_host_has_what_is_away_and_no_more() -> None:
    lesson = Lesson("lstm", "adam")
    trace = trace_of(lesson)
    lesson.start()
    tracemalloc.start(1)
    try:
        with managed(trace.peak_live_bytes * 6 // 10, **HOW):
            sizes = []
            for k in range(12):
                lesson.step(k)
                sizes.append(copies())
        assert len({*sizes[6:]}) == 1
        assert 0 < sizes[-1] <= trace.peak_live_bytes
    finally:
        tracemalloc.stop()
