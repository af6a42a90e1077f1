"""What cannot be managed is refused in one sentence, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.swap.plan import Plan, Swap
from gpumem.torch import LimitError, WorkloadError, managed
from tests.pytorch.managing import HOW, Lesson, differences, least, scalars, taught, trace_of, world

Steps = Callable[[Any], object]
RUNS = 5  # steps, of which the last is planned


@contextmanager
def refused(what: str, kind: type[Exception] = WorkloadError) -> Iterator[None]:
    """Expect one sentence that matches, and the world as it was."""
    before = world()
    with pytest.raises(kind, match=what) as caught:
        yield
    said = str(caught.value)
    assert "\n" not in said and 20 < len(said) < 420, said
    assert differences(before, world()) == []


def lesson_in(run: Callable[[Lesson], object], at: int = 1, limit: int | str = "60%", **how: Any) -> Lesson:
    """Do something in step `at` of a managed lesson."""
    lesson = Lesson("unet", "sgd", between=lambda lesson, k: run(lesson) if k == at else None)
    taught(lesson, lambda: managed(limit, **{**HOW, **how}), RUNS)
    return lesson


def goes_on(lesson: Lesson) -> None:
    """All tensors are there, and another run is right."""
    state = [x.clone() for x in [*lesson.model.parameters(), *lesson.model.buffers()]]
    assert all(torch.isfinite(x).all() for x in state)
    lesson.between = lambda lesson, k: None
    theirs, _ = taught(lesson, steps=RUNS)
    mine, _ = taught(lesson, lambda: managed("70%", **HOW), RUNS)
    assert mine == theirs


# arguments


@pytest.mark.parametrize(
    ("how", "kind", "what"),
    [
        ({"limit": 0}, ValueError, "limit"),
        ({"limit": -5}, ValueError, "limit"),
        ({"limit": "much"}, ValueError, "limit.*'much'"),
        ({"limit": "0%"}, ValueError, "limit"),
        ({"limit": "-10%"}, ValueError, "limit"),
        ({"limit": 1.5}, TypeError, "limit"),
        ({"limit": None}, TypeError, "limit"),
        ({"device": "meta"}, ValueError, "device.*'meta'"),
        ({"device": "cuda"}, ValueError, "device.*cuda"),
        ({"on_exit": "disk"}, ValueError, "on_exit.*'disk'"),
        ({"boundary": "never"}, ValueError, "boundary.*'never'"),
        ({"boundary": 3}, TypeError, "boundary"),
        ({"planner": "tensil"}, ValueError, "tensil.*tensile"),
        ({"planner": ()}, ValueError, "planner"),
        ({"planner": 3}, TypeError, "planner"),
        ({"seconds": -1.0}, ValueError, "seconds"),
        ({"machine": "gtx"}, ValueError, "machine|gtx"),
        ({"chunk": "10%"}, ValueError, "chunk"),
        ({"chunk": -1}, ValueError, "chunk"),
        ({"plan": 3}, TypeError, "plan"),
    ],
)
def test_arguments(how: dict[str, Any], kind: type[Exception], what: str) -> None:
    if how.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with refused(what, kind):
        managed(**{"limit": 1000, **HOW, **how})


def test_a_plan_that_does_not_fit_its_trace() -> None:
    trace, other = trace_of(Lesson("unet", "sgd")), trace_of(Lesson("lstm", "sgd"))
    with refused("plan", ValueError):
        managed(40_000, plan=(trace, Plan.of(other, [])), device="cpu")
    with refused("plan|consecutive", ValueError):
        managed(40_000, plan=(trace, Plan.of(trace, [Swap(0, 1, 2, 2, 2)])), device="cpu")


# what a step may not do


class Log(torch.Tensor):
    """Decides for itself what an op does."""

    @staticmethod
    def __torch_dispatch__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*args, **(kwargs or {}))


def subclass(lesson: Lesson) -> None:
    x = torch.Tensor._make_wrapper_subclass(Log, (3,), dtype=torch.float32)  # type: ignore[attr-defined]
    torch.add(x, 1)


def fake(lesson: Lesson) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        lesson.model(torch.ones(1, 3, 8, 8))


def data_parallel(lesson: Lesson) -> None:
    nn.DataParallel(lesson.model)(torch.ones(1, 3, 8, 8))


def other_run(lesson: Lesson) -> None:
    with managed("50%", **HOW):
        lesson.model(torch.ones(1, 3, 8, 8))


def another_thread(lesson: Lesson) -> None:
    """It waits for what a second thread does with the model."""
    found: list[BaseException] = []

    def work() -> None:
        try:
            lesson.model(torch.ones(1, 3, 8, 8))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if found:
        raise found[0]


def other_run_in_a_thread(lesson: Lesson) -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            with managed("50%", **HOW):
                pass
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise found[0]


class DistributedDataParallel(nn.Module):
    """As PyTorch's is called, which needs several processes."""

    __module__ = "torch.nn.parallel.distributed"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


REFUSED: dict[str, tuple[Callable[[Lesson], object], str]] = {
    "compile of a model": (lambda lesson: torch.compile(lesson.model), "torch.compile"),
    "compile of a function": (lambda lesson: torch.compile(lambda x: x + 1)(torch.ones(2)), "torch.compile"),
    "compile of a module in place": (lambda lesson: compiled_in_place(lesson), "torch.compile"),
    "CUDA graph": (lambda lesson: torch.cuda.CUDAGraph(), "CUDA graph"),
    "CUDA graph of a block": (lambda lesson: torch.cuda.graph(None), "CUDA graph"),
    "DataParallel": (data_parallel, "DataParallel"),
    "DDP": (lambda lesson: DistributedDataParallel(lesson.model)(torch.ones(1, 3, 8, 8)), "DistributedDataParallel"),
    "subclass": (subclass, "Log"),
    "FakeTensor": (fake, "[Ff]ake"),
    "a run in a run": (other_run, "managed run"),
    "a run beside a run": (other_run_in_a_thread, "thread|managed run"),
    "another thread": (another_thread, "thread"),
}


def compiled_in_place(lesson: Lesson) -> None:
    lesson.model.middle.compile()
    try:
        lesson.model(torch.ones(1, 3, 8, 8))
    finally:
        lesson.model.middle._compiled_call_impl = None


@pytest.mark.filterwarnings("ignore:.*DataParallel")
@pytest.mark.parametrize("at", [1, RUNS - 1], ids=["recorded", "planned"])
@pytest.mark.parametrize("what", REFUSED)
def test_in_a_step(what: str, at: int) -> None:
    run, said = REFUSED[what]
    kept: list[Lesson] = []
    with refused(said):
        lesson_in(lambda lesson: (kept.append(lesson), run(lesson)), at)
    goes_on(kept[0])


@pytest.mark.filterwarnings("ignore:.*DataParallel")
@pytest.mark.parametrize("what", [what for what in REFUSED if what not in ("a run in a run",)])
def test_a_loop_that_catches_it_goes_on_within_the_run(what: str) -> None:
    def attempt(lesson: Lesson, k: int) -> None:
        if k in (1, 4, 6):
            with suppress(WorkloadError):
                REFUSED[what][0](lesson)

    lesson = Lesson("unet", "adam", between=lambda lesson, k: None)
    theirs, _ = taught(lesson, steps=10)
    lesson.between = attempt
    before = world()
    mine, _ = taught(lesson, lambda: managed("70%", **HOW, on_exit="host"), 10)
    assert not differences(before, world())
    # a forward pass that is refused half-way changes nothing that counts, without dropout in training before it
    assert list(mine) == list(theirs)
    if what not in ("DataParallel", "DDP", "FakeTensor", "another thread", "compile of a module in place"):
        assert mine == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_what_was_compiled_before() -> None:
    model = torch.compile(nn.Linear(4, 4), backend="eager")
    model(torch.ones(2, 4))
    with refused("torch.compile"), managed(10_000, **HOW):
        model(torch.ones(2, 4))
    assert torch.equal(model(torch.ones(2, 4)), model._orig_mod(torch.ones(2, 4)))
    torch._dynamo.reset()


def test_within_a_mode_of_fake_tensors() -> None:
    with FakeTensorMode(), refused("[Ff]ake"), managed(1000, **HOW):
        pass


# limits


def test_an_op_that_alone_holds_more() -> None:
    lesson = Lesson("unet", "sgd")
    trace = trace_of(lesson)
    needs, name = least(trace)
    with refused(f"{name.partition('.')[0]}.*least limit", LimitError):
        taught(lesson, lambda: managed(needs - 1000, **HOW), RUNS)
    theirs, _ = taught(lesson, steps=RUNS)
    mine, _ = taught(lesson, lambda: managed(needs, **HOW), RUNS)
    assert mine == theirs


def test_the_least_limit_that_is_named_does() -> None:
    lesson = Lesson("unet", "sgd")
    trace, limit = trace_of(lesson), 1000
    for _ in range(60):
        try:
            taught(lesson, partial(managed, limit, **HOW), RUNS)
            break
        except LimitError as error:
            named = int(str(error).rpartition("bytes")[0].split()[-1].strip("("))
            assert limit < named <= trace.peak_load
            limit = named
    assert least(trace)[0] - scalars(trace) <= limit <= least(trace)[0]


def test_calls_on_lists_that_alone_hold_more() -> None:
    lesson = Lesson("gpt", "adamw")
    trace = trace_of(lesson)
    needs, name = least(trace)
    assert "_foreach" in name
    with refused("_foreach_.*least limit.*foreach=False", LimitError):
        taught(lesson, lambda: managed(needs - 2000, **HOW, chunk="1GiB", on_exit="host"), RUNS)
    theirs, _ = taught(lesson, steps=RUNS)
    mine, _ = taught(lesson, lambda: managed(needs - 2000, **HOW, on_exit="host"), RUNS)
    assert mine == theirs


def test_what_lasts_is_more() -> None:
    lesson = Lesson("gpt", "adam")
    theirs, _ = taught(lesson, steps=RUNS)
    with refused("last.*least limit.*on_exit", LimitError):
        taught(lesson, lambda: managed(20_000, **HOW), RUNS)
    mine, _ = taught(lesson, lambda: managed(20_000, **HOW, on_exit="host"), RUNS)
    assert mine == theirs


def test_an_op_that_cannot_be_served_changes_nothing() -> None:
    """The loop catches it, gives the op less to do, and goes on."""
    found = []
    for limit in (10**9, 9000):
        torch.manual_seed(0)
        w = torch.randn(32, 32)
        with managed(limit, **HOW):
            for k in range(6):
                if k % 2:
                    with suppress(LimitError):
                        torch.zeros(64, 64) + 1
                w = (w @ w.t()).tanh()
        found.append(w)
    assert torch.equal(*found)


# boundaries


def test_boundary_that_is_told() -> None:
    lesson = Lesson("unet", "adam")
    limit = trace_of(lesson).peak_load * 6 // 10
    theirs, _ = taught(lesson, steps=8)
    lesson.start()
    with managed(limit, **HOW, boundary="told") as run:
        for k in range(8):
            lesson.step(k)
            run.boundary()
    assert lesson.left() == theirs
    assert [x.state for x in run.report().iterations][-3:] == ["planned"] * 3


def test_a_mode_that_the_step_enters_is_left_as_it_was() -> None:
    class Shout(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    before = world()
    with Shout(), managed("60%", **HOW), Shout():
        torch.ones(3) + 1
    assert not differences(before, world())
