"""The parts of a run within a limit, one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.runtime.residency.background_planning import Planning
from gpumem.swap import Plan, Recompute, Swap, Variant
from gpumem.torch import LimitError, WorkloadError, fit, managed, record
from gpumem.torch.run.boundaries import Book, Segment
from gpumem.torch.run.cells import Cell
from gpumem.torch.run.engines import OnHost, Resized, Swapped
from gpumem.torch.run.memory import Memory
from gpumem.torch.run.on_cuda import advice
from gpumem.torch.run.output_sizes import Predicted
from gpumem.torch.step.ops import call_of, tensors
from tests.pytorch.nets import NETS, OPTIMIZERS, data

KIB = 1024
QUICK: dict[str, Any] = {
    "planner": ("tensile", "on-demand-nonblocking"),
    "seconds": 60.0,
    "wait": True,
    "device": "cpu",
}


@pytest.fixture(params=[Swapped, Resized])
def memory(request: Any) -> Memory:
    return Memory("cpu", OnHost(), request.param, 4 * KIB)


def cells(memory: Memory, count: int) -> tuple[list[torch.Tensor], list[Cell]]:
    held = [torch.full((256,), float(k)) for k in range(count)]  # 1 KiB each
    return held, memory.of(held)


def test_what_was_not_used_for_longest_makes_room(memory: Memory) -> None:
    held, (a, b, c, d) = cells(memory, 4)
    memory.ready([a], 0, "")
    memory.ready([d], 2 * KIB, "two more")
    assert [x.here for x in (a, b, c, d)] == [True, False, False, True]
    assert memory.held == 2 * KIB and memory.counts.evictions == 2 and memory.counts.out == 2 * KIB
    memory.ready([b], 0, "")
    assert b.here and memory.counts.misses == 1 and held[1].tolist() == [1.0] * 256


def test_a_copy_is_good_until_it_is_written(memory: Memory) -> None:
    held, (a,) = cells(memory, 1)
    for _ in range(2):
        memory.release(a)
        memory.ready([a], 0, "")
    assert memory.counts.out == KIB and memory.counts.back == 2 * KIB
    held[0].fill_(7)
    memory.wrote([a])
    memory.release(a)
    memory.ready([a], 0, "")
    assert memory.counts.out == 2 * KIB and held[0].tolist() == [7.0] * 256


def test_what_came_back_for_good_and_is_sent_away_again_keeps_its_copy(memory: Memory) -> None:
    held, (a,) = cells(memory, 1)
    memory.release(a)
    a.once = True
    memory.bring(a)
    memory.release(a)  # before anything asked for it
    memory.ready([a], 0, "")
    assert held[0].tolist() == [0.0] * 256 and memory.counts.out == KIB


def test_the_dead_are_off_the_books_here_or_away(memory: Memory) -> None:
    held, (a, b) = cells(memory, 2)
    memory.release(b)
    assert memory.held == KIB
    held.clear()
    memory.bury()
    assert memory.held == 0 and not memory.by_key and not memory.here and b.copy is None and a.storage is None


def test_an_op_that_holds_more_than_the_limit_is_named_with_what_would_do(memory: Memory) -> None:
    _held, mine = cells(memory, 3)
    with pytest.raises(
        LimitError, match=r"_foreach_x holds 5.00 KiB at once, the limit is 4.00 KiB; .* \(5120 bytes"
    ) as told:
        memory.ready(mine, 2 * KIB, "_foreach_x")
    assert "smaller chunk" in str(told.value)
    assert [x.here for x in mine] == [True] * 3


def test_an_op_that_holds_more_than_the_limit_is_said_to_be_of_its_module() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1024), torch.nn.Linear(1024, 8))
    with managed(20 * KIB, device="cpu", on_exit="host"), pytest.raises(LimitError, match=r"^addmm.default in 1 holds"):
        net(torch.ones(4, 8))
    for p in net.parameters():  # NumPy's memory cannot move, so all of it is held beside the gradient
        p.data = torch.from_numpy(p.detach().numpy().copy())
    with managed(60 * KIB, device="cpu", on_exit="host"), pytest.raises(LimitError, match=r"^mm.default in 1 holds"):
        net[:2](torch.ones(4, 8, requires_grad=True)).sum().backward()


def test_what_has_an_address_stays(memory: Memory) -> None:
    numbers = np.zeros(256, np.float32)
    held = [torch.from_numpy(numbers), torch.ones(256)]
    fixed, other = memory.of(held)
    memory.limit = KIB
    memory.room(0)
    assert fixed.here and not other.here
    with pytest.raises(LimitError, match=r"1.00 KiB of it in storages that cannot move"):
        memory.ready([other], 0, "add")


def test_views_of_what_is_away_can_be_made_where_pointers_are_swapped() -> None:
    memory = Memory("cpu", OnHost(), Swapped)
    held, (a,) = cells(memory, 1)
    memory.release(a)
    view = held[0].view(16, 16)[3]
    memory.ready([a], 0, "")
    assert view.tolist() == [0.0] * 16 and view.device.type == "cpu"


class Compared(TorchDispatchMode):
    """Holds what each op makes against what was predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.predicted = Predicted("cpu")
        self.wrong: list[tuple[str, int, int]] = []
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = call_of(func, args, kwargs or {}, "cpu")
        told = self.predicted(func, args, kwargs or {}) if call else 0
        result = func(*args, **(kwargs or {}))
        if call:
            old = {x.untyped_storage()._cdata for x in call.operands}
            storages = [x.untyped_storage() for x in tensors(result if isinstance(result, tuple) else (result,), "cpu")]
            made = {s._cdata: s.nbytes() for s in storages if s._cdata not in old}
            self.ops += 1
            if told != sum(made.values()):
                self.wrong.append((str(func), told, sum(made.values())))
        return result


IMAGES = {3: torch.ones(2, 3, 8), 4: torch.ones(2, 3, 8, 6), 5: torch.ones(2, 3, 4, 6, 2)}
SAMPLED: list[tuple[int, dict[str, Any]]] = [
    *((dims, {"mode": mode}) for dims in IMAGES for mode in ("nearest", "nearest-exact")),
    *((dims, {"mode": mode}) for dims, mode in ((3, "linear"), (4, "bilinear"), (4, "bicubic"), (5, "trilinear"))),
    *((4, {"mode": mode, "antialias": True}) for mode in ("bilinear", "bicubic")),
]


@pytest.mark.parametrize(("dims", "how"), SAMPLED)
def test_what_an_image_takes_that_is_sampled_anew_is_known(dims: int, how: dict[str, Any]) -> None:
    with Compared() as compared:
        for scale in (0.5, 3.0):
            torch.nn.functional.interpolate(IMAGES[dims], scale_factor=scale, **how)
        if dims > 3:
            grid = torch.zeros(2, *(5,) * (dims - 2), dims - 2)
            torch.nn.functional.grid_sample(IMAGES[dims], grid, align_corners=False)
    assert compared.ops >= 2 and not compared.wrong


@pytest.mark.parametrize("net", NETS)
def test_what_ops_will_make_is_known_before_they_run(net: str) -> None:
    torch.manual_seed(0)
    model = NETS[net]()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    state = torch.get_rng_state()
    with Compared() as mode:
        for _ in range(2):
            x, y = data(net, 3)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert mode.ops > 50
    assert [wrong for wrong in mode.wrong if "mkldnn_rnn_layer" not in wrong[0]] == []  # its workspace is a secret
    torch.set_rng_state(state)


@pytest.mark.parametrize("net", ["resnet", "gpt", "unet"])
def test_the_first_iteration_keeps_a_limit_of_bytes_too(net: str) -> None:
    torch.manual_seed(0)
    model = NETS[net]()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with managed(32 * KIB if net != "unet" else 26 * KIB, **QUICK) as run:
        for _ in range(5):
            x, y = data(net, 3)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = run.report()
    assert max(row.peak for row in report.iterations) <= report.limit
    assert report.iterations[0].evictions and report.iterations[-1].state == "planned"


# values that are made again


def test_a_value_is_dropped_and_made_again() -> None:
    x = torch.rand(64, 64) - 0.5
    expected = torch.relu(x) * 3 + 1
    with managed("1MiB", _pair(), device="cpu") as run:
        found = []
        for _ in range(3):
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            found.append(y + z)
    assert all(torch.equal(x, expected) for x in found)
    assert [(row.state, row.again, row.moved_out) for row in run.report().iterations] == [("planned", 1, 0)] * 3


def test_whoever_writes_what_a_dropped_value_is_made_of_makes_it_first() -> None:
    x = torch.rand(64, 64) - 0.5
    y = torch.relu(x)
    expected = y.clone()
    with managed("1MiB", _pair(), device="cpu") as run:
        memory, course = run.memory, run.course
        y = torch.relu(x)
        z = y * 2
        (cell,) = memory.of([y])
        assert course.follower is not None and course.follower.i == 2
        z.add_(1)  # planned: here y is dropped
        assert not cell.here and cell.again is not None and cell.copy is None
        x.add_(1)  # not planned: y would become another
        assert cell.here and cell.again is None
        assert torch.equal(y, expected)
    assert run.report().held == sum(t.nbytes for t in (x, y, z, expected))


def test_what_a_dropped_value_is_made_of_lives_as_long_as_it_does() -> None:
    x = torch.rand(64, 64) - 0.5
    expected = torch.relu(x)
    with managed("1MiB", _pair(), device="cpu") as run:
        y = torch.relu(x)
        z = y * 2
        z.add_(1)
        (cell,) = run.memory.of([y])
        assert not cell.here
        (source,) = run.memory.of([x])
        del x
        assert source.storage is not None
        assert torch.equal(y, expected)
        del z, y
    assert source.storage is None


def test_nothing_is_made_again_of_bytes_whose_address_somebody_has() -> None:
    numbers = np.full((64, 64), -1, np.float32)
    x = torch.from_numpy(numbers)
    with managed("1MiB", _pair(), device="cpu") as run:
        y = torch.relu(x)
        z = y * 2
        z.add_(1)
        (cell,) = run.memory.of([y])
        assert cell.here
        numbers[:] = 1
        assert float(y.sum()) == 0


def test_a_batch_norm_runs_again_without_its_statistics() -> None:
    def make() -> Callable[[], torch.Tensor]:
        x, self.norm = torch.arange(64.0).view(16, 4), torch.nn.BatchNorm1d(4)

        def step() -> torch.Tensor:
            with torch.no_grad():
                y = self.norm(x)
            z = y * 2
            z.add_(1)
            return y + z

        return step

    self = SimpleNamespace()
    trace = record(make, "cpu", name="normed").trace
    norm = trace.ops.name.index("native_batch_norm.default")
    y = trace.ops.writes.tolist()[norm][0]
    step = make()
    expected, statistics = [step() for _ in range(3)], self.norm.state_dict()
    step = make()
    with managed("1MiB", (trace, Plan.of(trace, [Recompute(y, norm + 1, norm + 3, norm + 3)])), device="cpu") as run:
        found = [step() for _ in range(3)]
    assert [(row.state, row.again, row.moved_out) for row in run.report().iterations] == [("planned", 1, 0)] * 3
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, self.norm.state_dict().values(), statistics.values()))


def _pair() -> tuple[Any, Plan]:
    """`y = relu(x); z = y * 2; z += 1; y + z`, and a plan that drops y in between."""

    def make() -> Callable[[], torch.Tensor]:
        x = torch.rand(64, 64)

        def step() -> torch.Tensor:
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            return y + z

        return step

    trace = record(make, "cpu", name="pair").trace
    y = trace.ops.writes.tolist()[0][0]
    return trace, Plan.of(trace, [Recompute(y, 1, 3, 3)])


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


# iterations


def test_an_iteration_may_have_several_boundaries() -> None:
    def book(codes: str) -> Book:
        found = Book()
        found.segments = [Segment(ord(c), k, k + 1) for k, c in enumerate(codes)]
        return found

    assert [book(c).period() for c in ("", "a", "ab", "aa", "baa", "abab", "aab", "cabcabc")] == [
        0,
        0,
        0,
        1,
        1,
        2,
        0,
        3,
    ]


def test_a_run_that_strays_is_planned_for_anew() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(batch: int) -> None:
        optimizer.zero_grad()
        net(torch.randn(batch, 32)).square().mean().backward()
        optimizer.step()

    with managed(100 * KIB, **QUICK) as run:
        for batch in (128,) * 5 + (144,) * 8:
            step(batch)
    rows = run.report().iterations
    states = [row.state for row in rows]
    assert states == ["recorded"] * 2 + ["planned"] * 3 + ["on demand"] * 3 + ["recorded"] * 2 + ["planned"] * 3
    assert all("of other sizes" in row.deviation for row in rows[5:8])
    assert max(row.peak for row in rows) <= 100 * KIB


def test_planning_that_fails_leaves_the_run_on_demand() -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("a planner's defect")

    trace, _ = _pair()
    job = Planning(trace, 1000, broken)
    job.run()
    assert job.best is None and "ZeroDivisionError: a planner's defect" in job.notes[0]


def test_a_plan_with_variants_is_refused() -> None:
    trace, _ = _pair()
    with pytest.raises(ValueError, match="no other implementations of an op"):
        managed("1MiB", (trace, Plan.of(trace, [Variant(0, "faster", 1, 0)])), device="cpu")


def test_a_given_plan_brings_its_limit_as_a_part_of_its_peak() -> None:
    trace, plan = _pair()
    assert managed("50%", (trace, plan), device="cpu").report().limit == trace.peak_load // 2


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


# others


def test_threads_that_a_run_starts_may_not_touch_what_it_manages() -> None:
    weight, errors = torch.ones(8), []

    def touch() -> None:
        try:
            weight + 1
        except WorkloadError as error:
            errors.append(str(error))

    with managed("1MiB", device="cpu"):
        weight * 2
        thread = threading.Thread(target=touch, name="loader")
        thread.start()
        thread.join()
    assert len(errors) == 1 and "thread 'loader'" in errors[0] and "(8,)" in errors[0]


def test_what_lasts_must_fit_or_be_left_on_the_host() -> None:
    def run(**how: Any) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(8)])
        optimizer = torch.optim.Adam(net.parameters(), foreach=True)
        with managed(98 * KIB, **QUICK, **how) as found:
            for _ in range(5):
                net(torch.randn(64, 32)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return found, [p.detach().clone() for p in net.parameters()]

    with pytest.raises(LimitError, match=r'last from one iteration to the next, .* on_exit="host"'):
        run()
    found, kept = run(on_exit="host")
    assert max(row.peak for row in found.report().iterations) <= 98 * KIB
    assert len(kept) == 16 and found.report().iterations[-1].state == "planned"


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


def test_swaps_of_a_given_plan_are_followed_without_recording() -> None:
    trace, _ = _pair()
    y = trace.ops.writes.tolist()[0][0]
    plan = Plan.of(trace, [Swap(y, 1, 3, 2, 3)])
    x = torch.rand(64, 64)
    with managed("1MiB", (trace, plan), device="cpu", boundary="told") as run:
        for _ in range(3):
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            y + z
    rows = run.report().iterations
    assert [row.state for row in rows] == ["planned"] * 3 and [row.moved_in for row in rows] == [x.nbytes] * 3
    assert rows[-1].peak == plan.apply(trace).peak_load


def test_a_decorated_step_may_have_a_plan_that_knows_nothing_of_calls() -> None:
    trace, _ = _pair()
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


def test_a_plan_made_beside_the_run_is_followed_from_the_end_of_an_iteration_on() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(128, 32)).square().mean().backward()
        optimizer.step()

    with managed(100 * KIB, **{**QUICK, "wait": False}) as run:
        step()
        step()
        assert run.course.job is not None
        run.course.job.stop()
        step()
        step()
    assert [row.state for row in run.report().iterations][2:] == ["on demand", "planned"]
    assert max(row.peak for row in run.report().iterations) <= 100 * KIB


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


def test_all_of_the_peak_is_a_limit_at_which_a_step_is_idle() -> None:
    net = torch.nn.Linear(32, 32)
    with managed("100%", **QUICK) as run:
        for _ in range(4):
            net(torch.randn(8, 32)).sum().backward()
            net.zero_grad()
            run.boundary()
    assert run.report().iterations[-1].state == "idle" and run.report().limit == run.report().trace.peak_load


@pytest.mark.parametrize("index", [0, slice(0, 4)])
def test_bytes_written_to_a_storage_itself_are_the_ones_that_come_back(index: Any) -> None:
    x = torch.ones(256, dtype=torch.uint8)
    with managed("1MiB", device="cpu") as run:
        x + 1
        (cell,) = run.memory.of([x])
        run.memory.release(cell)
        run.memory.ready([cell], 0, "")
        assert cell.copy is not None  # what the host has is good until it is written
        x.untyped_storage()[index] = 7
        run.memory.release(cell)
        assert int(x[0]) == 7


def test_a_sum_that_is_planned_in_place_and_runs_out_of_place_is_what_the_plan_goes_on_with() -> None:
    """A capture writes gradients down as they are summed up unwatched; a run makes a new storage of each sum."""
    weight = torch.ones(64, 64, requires_grad=True)

    def step() -> None:
        x = weight * 1
        last = x.tanh().sigmoid().sin()  # its gradient comes last, so the sum of the other two waits for it
        (last + x.cos() + x.exp()).sum().backward()
        weight.grad = None

    trace = record(lambda: step, "cpu").trace
    first, second = (op for op, name in enumerate(trace.ops.name) if name == "add_.Tensor")
    (total,) = trace.ops.writes.tolist()[first]
    plan = Plan([Swap(total, after=first, before=second, release=first + 2, prefetch=second - 1)])
    with managed("1MiB", device="cpu", plan=(trace, plan)) as run:
        for _ in range(3):
            step()
    for row in run.report().iterations:
        assert (row.state, row.moved_out, row.moved_in, row.misses) == ("planned", weight.nbytes, weight.nbytes, 0)
