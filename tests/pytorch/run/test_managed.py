"""What `managed` takes and refuses: arguments, given plans, what a step may not do, limits; and its report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.runtime.residency.background_planning import Planning
from gpumem.swap import Plan, Swap, Variant
from gpumem.torch import LimitError, WorkloadError, fit, managed
from gpumem.torch.run import managed as managed_module
from gpumem.torch.run.engines import Resized
from gpumem.torch.run.on_cuda import advice
from tests.pytorch.managing import HOW, Lesson, differences, least, scalars, taught, trace_of, world
from tests.pytorch.small_runs import KIB, QUICK, pair

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
        ({"on_demand": "belady"}, ValueError, "on_demand.*'belady'"),
        ({"on_demand": None}, TypeError, "on_demand"),
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


def test_a_folder_that_fit_wrote_is_a_plan(tmp_path: Path) -> None:
    def make(device: str = "cpu") -> Callable[[], None]:
        net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            net(torch.randn(4096, 64)).square().mean().backward()
            optimizer.step()

        return step

    found = fit(make, "rtx4090", device="cpu", limit="10MiB", planner="tensile")
    assert found.planned is not None
    found.save(tmp_path)
    step = make()
    step()
    with managed("10MiB", tmp_path, device="cpu") as run:
        for _ in range(2):
            step()
    rows = run.report().iterations
    assert [(row.state, row.misses, row.peak) for row in rows[1:]] == [("planned", 0, run.report().planned_peak)]
    with pytest.raises(ValueError, match=r"plan: .*captured.json.gz is not there; `gpumem fit ... --out .*nowhere`"):
        managed("10MiB", tmp_path / "nowhere")
    with pytest.raises(TypeError, match=r"plan: 3 is none"):
        managed("10MiB", 3)  # type: ignore[arg-type]


def test_a_plan_with_variants_is_refused() -> None:
    trace, _ = pair()
    with pytest.raises(ValueError, match="no other implementations of an op"):
        managed("1MiB", (trace, Plan.of(trace, [Variant(0, "faster", 1, 0)])), device="cpu")


def test_a_given_plan_brings_its_limit_as_a_part_of_its_peak() -> None:
    trace, plan = pair()
    assert managed("50%", (trace, plan), device="cpu").report().limit == trace.peak_live_bytes // 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"limit": "7 apples"}, "7 apples"),
        ({"limit": 0}, "at least 1"),
        ({"limit": "0%"}, "0%"),
        ({"limit": "1MiB", "planner": "best"}, "best"),
        ({"limit": "1MiB", "boundary": "often"}, "often"),
        ({"limit": "1MiB", "on_exit": "disk"}, "disk"),
        ({"limit": "1MiB", "device": "tpu"}, "tpu"),
        ({"limit": "1MiB", "chunk": "5%"}, "5%"),
        ({"limit": "1MiB", "machine": "abacus"}, "abacus"),
        ({"limit": "1MiB", "seconds": -1.0}, "-1"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        managed(**wrong)


def test_reports_are_tables() -> None:
    with managed("1MiB", device="cpu") as run:
        torch.ones(8) + 1
        run.boundary()
        for _ in range(3):
            torch.ones(9) + 1
            run.boundary()
    assert repr(run) == "Managed(limit 1.00 MiB on cpu, iterations 4)"
    text = str(run.report())
    assert text.startswith("limit 1.00 MiB") and "recorded" in text
    assert [row.number for row in run.report().iterations] == [0, 1, 2, 3]
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["iteration", "0", "1-2", "3"]  # alike but for time
    assert repr(run.report()).startswith("ManagedReport(limit 1.00 MiB")


def test_a_decorated_step_may_have_a_plan_that_knows_nothing_of_calls() -> None:
    trace, _ = pair()
    y = trace.ops.writes.tolist()[0][0]
    run = managed("1MiB", (trace, Plan.of(trace, [Swap(y, 1, 3, 2, 3)])), device="cpu")
    x = torch.rand(64, 64)

    @run
    def step() -> torch.Tensor:
        y = torch.relu(x)
        z = y * 2
        z.add_(1)
        return y + z

    found = [step() for _ in range(3)]
    assert all(torch.equal(x, found[0]) for x in found)
    assert [(row.state, row.ops) for row in run.report().iterations] == [("planned", 4)] * 3


def test_a_step_is_decorated_and_all_is_back_when_it_returns() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    run = managed("60%", **QUICK)

    @run
    def step(batch: int) -> torch.Tensor:
        """Train."""
        optimizer.zero_grad()
        loss = net(torch.randn(batch, 32)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(6):
        assert float(step(128)) > 0
        assert all(bool(p.isfinite().all()) for p in net.parameters())
    report = run.report()
    assert step.__doc__ == "Train." and [row.state for row in report.iterations] == ["recorded"] * 3 + ["planned"] * 3
    assert {row.peak for row in report.iterations[3:]} == {report.planned_peak}
    assert max(row.misses for row in report.iterations[3:]) == 0


def test_who_has_an_allocator_that_leaves_holes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert "expandable_segments:True" in advice()[0]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8, expandable_segments: True")
    assert advice() == []


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
            assert limit < named <= trace.peak_live_bytes
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


def test_a_pytorch_whose_storages_lose_their_size_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed_module, "POINTERS", Resized)
    with pytest.warns(UserWarning, match=r"PyTorch \S+: .* torch.save .* writes a wrong file"):
        assert managed("1GiB", **HOW).memory.pointers is Resized


def test_an_iteration_that_is_as_large_as_the_limit_needs_no_plan() -> None:
    trace, _ = pair()
    peak = trace.peak_live_bytes
    whole = managed("100%", **QUICK)
    assert whole.mode.chunk is None and whole._on_iteration(trace) is None and whole.memory.limit == peak
    assert managed(peak, **QUICK)._on_iteration(trace) is None
    job = managed(peak - 1, **QUICK)._on_iteration(trace)
    assert isinstance(job, Planning) and (job.trace, job.limit, job.seconds) == (trace, peak - 1, QUICK["seconds"])


@pytest.mark.parametrize(("limit", "chunk"), [(8 * KIB, KIB), (17, 2), (16, 2), (15, 1), (7, 1)])
def test_calls_on_lists_are_split_by_an_eighth_of_the_limit(limit: int, chunk: int) -> None:
    assert managed(limit, **QUICK).mode.chunk == chunk
    assert managed(limit, chunk=5, **QUICK).mode.chunk == 5


def test_what_lasts_is_as_much_as_the_limit() -> None:
    run = managed(100, **QUICK)
    run._lasts(100)
    with pytest.raises(LimitError, match=r"101 B last .* the limit is 100 B, .* is 101 bytes"):
        run._lasts(101)
    managed(100, on_exit="host", **QUICK)._lasts(101)


def test_boundary_that_is_told() -> None:
    lesson = Lesson("unet", "adam")
    limit = trace_of(lesson).peak_live_bytes * 6 // 10
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
