"""What a step asks of the GPU that seems to be there is answered, and then nothing has changed; forms of attention."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.utils.checkpoint import checkpoint

from gpumem.torch import capture
from gpumem.torch.capture.fake_cuda import fake_cuda
from gpumem.torch.capture.one_gpu import there
from tests.pytorch.nets import OPTIMIZERS

cuda, accelerator = torch.cuda, torch.accelerator
CUDA = torch.device("cuda")


def seed_of(state: torch.Tensor) -> int:
    return int.from_bytes(bytes(state.tolist()[:8]), "little")


def ranges() -> None:
    cuda.nvtx.range_push("forward")
    cuda.nvtx.mark("here")
    cuda.nvtx.range_pop()
    cuda.nvtx.range_end(cuda.nvtx.range_start("backward"))
    with cuda.nvtx.range("step {}", 1):
        cuda.nvtx.range("as a decorator")(ranges_within)()


def ranges_within() -> None:
    cuda.nvtx.range_push("within")
    cuda.nvtx.range_pop()


def states() -> None:
    """As the docs of CUDA's generator: 8 bytes of the seed, 8 of how much was drawn, on the host."""
    state = cuda.get_rng_state()
    assert (state.dtype, state.device.type, tuple(state.shape)) == (torch.uint8, "cpu", (16,))
    cuda.manual_seed(7)
    cuda.seed()
    cuda.seed_all()
    cuda.set_rng_state(state)
    cuda.set_rng_state(state, "cuda:0")
    assert cuda.get_rng_state(0).tolist() == state.tolist() == cuda.get_rng_state(CUDA).tolist()
    (only,) = cuda.get_rng_state_all()
    assert only.tolist() == state.tolist()
    cuda.set_rng_state_all([only])
    cuda.random.set_rng_state(cuda.random.get_rng_state())


def seeds() -> None:
    torch.manual_seed(11)
    assert cuda.initial_seed() == 11 == seed_of(cuda.get_rng_state())
    cuda.manual_seed_all(-1)
    assert cuda.initial_seed() == 2**64 - 1 == seed_of(cuda.get_rng_state())
    before = cuda.get_rng_state()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert cuda.initial_seed() == 5
    assert cuda.get_rng_state().tolist() == before.tolist()


def wrong_states() -> None:
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        cuda.set_rng_state(torch.zeros(16, device="cpu"))
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        cuda.set_rng_state(torch.get_rng_state())
    with pytest.raises(IndexError):  # there is one GPU
        cuda.get_rng_state(1)


def generators() -> None:
    mine, host = torch.Generator("cuda").manual_seed(3), torch.Generator().manual_seed(3)
    assert seed_of(mine.get_state()) == 3 and mine.get_state().shape == (16,)
    mine.set_state(cuda.get_rng_state())
    assert host.get_state().shape == torch.get_rng_state().shape
    host.set_state(torch.get_rng_state())
    torch.randn(2, generator=mine)
    (default,) = cuda.default_generators
    assert default.initial_seed() == mine.initial_seed()


def initialized() -> None:
    cuda.init()
    assert cuda.is_initialized() and cuda.is_available()


def streams() -> None:
    for where in (cuda, accelerator):
        now = where.current_stream()
        assert isinstance(now, torch.Stream) and now.query() and now.synchronize() is None
        assert not getattr(now, "is_capturing", lambda: False)()
        where.set_stream(now)
        where.synchronize()
    event = cuda.current_stream().record_event()
    cuda.Stream().wait_event(event)
    assert event.query() and event.elapsed_time(event) == 0
    for kinds in (torch, cuda):
        begin, end = kinds.Event(enable_timing=True), kinds.Event(enable_timing=True)
        begin.record(), end.record(kinds.Stream()), end.wait(), end.synchronize()
        assert begin.elapsed_time(end) == 0


def accelerated() -> None:
    assert accelerator.is_available() and accelerator.device_count() == 1
    assert accelerator.current_accelerator() == CUDA == accelerator.current_accelerator(check_available=True)
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    for device in (None, 0, "cuda", CUDA, torch.device("meta")):  # the last is what `make` is told
        accelerator.synchronize(device)
        accelerator.current_stream(device)
    index = getattr(accelerator, "device_index", nullcontext)
    with index(0), index(None):
        pass
    assert torch.get_device_module() is cuda


def made_there() -> None:
    assert torch.ones(2, device=accelerator.current_accelerator()).is_meta


def accelerated_memory() -> None:
    for name in ("empty_cache", "empty_host_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats"):
        getattr(accelerator, name, lambda: None)()
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        for where in (accelerator, getattr(accelerator, "memory", None)):
            assert getattr(where, name, lambda: 0)() == 0
    assert not any(getattr(accelerator, "memory_stats", dict)().values())
    free, total = getattr(accelerator, "get_memory_info", cuda.mem_get_info)()
    assert 0 < free <= total == cuda.get_device_properties(0).total_memory
    known = getattr(accelerator, "get_device_capability", lambda: {"supported_dtypes": {torch.bfloat16}})()
    assert torch.bfloat16 in known["supported_dtypes"]


def accelerated_seeds() -> None:
    random = getattr(accelerator, "random", None)  # since 2.14
    if random is not None:
        torch.manual_seed(13)
        assert random.initial_seed() == 13 == seed_of(random.get_rng_state(CUDA))
        assert [seed_of(state) for state in random.get_rng_state_all()] == [13]


QUESTIONS: list[Callable[[], None]] = [
    ranges,
    states,
    seeds,
    wrong_states,
    generators,
    initialized,
    streams,
    accelerated,
    made_there,
    accelerated_memory,
    accelerated_seeds,
]


def asking(ask: Callable[[], None]) -> Callable[[], Callable[[], None]]:
    """A workload that asks while it is made, and in each step."""

    def make() -> Callable[[], None]:
        net = nn.Linear(4, 2)
        ask()

        def step() -> None:
            ask()
            net(torch.randn(8, 4)).sum().backward()

        return step

    return make


@pytest.mark.parametrize("ask", QUESTIONS)
def test_what_a_step_asks_of_a_gpu_is_answered_as_by_one(ask: Callable[[], None]) -> None:
    before = torch.get_rng_state()
    try:
        names = capture(asking(ask)).ops.name
    finally:
        torch.set_rng_state(before)
    assert "addmm.default" in names and not {"clone.default", "frombuffer.default"} & {*names}


@pytest.mark.parametrize("ask", [ranges, states, seeds, initialized, streams, accelerated])
def test_the_top_of_a_file_asks_as_well(ask: Callable[[], None]) -> None:
    before = torch.get_rng_state()
    try:
        with there():
            ask()
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_optimizers_ask_whether_a_graph_is_captured(optimizer: str) -> None:
    def make() -> Callable[[], None]:
        net = nn.Linear(4, 2)
        optimize = OPTIMIZERS[optimizer](net.parameters())

        def step() -> None:
            net(torch.randn(8, 4)).sum().backward()
            optimize.step()
            optimize.zero_grad()

        return step

    assert "addmm.default" in capture(make).ops.name


def test_a_checkpoint_keeps_the_state_of_the_generator() -> None:
    def make() -> Callable[[], None]:
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

        def step() -> None:
            checkpoint(net, torch.randn(8, 4, requires_grad=True), use_reentrant=False).sum().backward()

        return step

    assert capture(make).ops.name.count("native_dropout.default") == 2


def spied() -> dict[tuple[str, str], object]:
    """All that the modules hold, one by one."""
    modules: list[ModuleType] = [torch, cuda, cuda.nvtx, cuda.random, cuda.memory, accelerator, torch.random]
    modules += [module for name in ("memory", "random") if (module := getattr(accelerator, name, None)) is not None]
    return {(module.__name__, name): value for module in modules for name, value in vars(module).items()}


@pytest.mark.parametrize("world", [fake_cuda, there])
def test_afterwards_all_is_as_before(world: Any) -> None:
    capture(asking(accelerated))  # what is imported once is
    before = spied()
    with world():
        inside = spied()
        assert sum(inside[at] is not before[at] for at in before) > 40
    after = spied()
    assert after.keys() == before.keys() and all(after[at] is before[at] for at in before)


def test_a_real_generator_keeps_its_seed_and_nothing_is_queued_for_one() -> None:
    queued = len(cuda._queued_calls)
    with there():
        cuda.manual_seed_all(17)
    assert len(cuda._queued_calls) == queued


def test_a_state_without_values_is_taken() -> None:
    """Made without a device, or loaded: a checkpoint's values are no matter."""

    def ask() -> None:
        cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))

    assert "addmm.default" in capture(asking(ask)).ops.name


def test_what_a_file_imports_keeps_no_stand_in(tmp_path: Path) -> None:
    """An optimizer at the top of a file imports TorchDynamo, which remembers `torch.cuda.Event` and others for good."""
    (tmp_path / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(2, 2)\noptimizer = torch.optim.AdamW(net.parameters())\n"
        "def make():\n    return lambda: net(torch.ones(1, 2)).sum().backward()\n"
    )
    asked = (
        "import torch; from gpumem.torch import load; load('train.py'); import torch._dynamo.device_interface as d; "
        "assert d.CudaInterface.Event is torch.cuda.Event, d.CudaInterface.Event"
    )
    subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, check=True)


FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


def ops(call: Callable[..., torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...] = (2, 4, 32, 16)) -> list[str]:
    def make() -> Callable[[], None]:
        q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))

        def step() -> None:
            result = call(q, k, v)
            assert result.shape == q.shape and result.dtype == dtype
            torch.autograd.grad(result, (q, k, v), torch.ones_like(result))

        return step

    return [name.partition(".")[0] for name in capture(make).ops.name]


def masked(rows: int, columns: int) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: attend(q, k, v, torch.ones(rows, columns, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_take_flash(dtype: torch.dtype) -> None:
    assert ops(attend, dtype) == [FLASH, "ones_like", f"{FLASH}_backward"]


@pytest.mark.parametrize(
    ("call", "dtype", "shape"),
    [
        (attend, torch.float32, (2, 4, 32, 16)),
        (masked(32, 32), torch.bfloat16, (2, 4, 32, 16)),
        (attend, torch.bfloat16, (2, 4, 32, 264)),
        (lambda q, k, v: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)(attend)(q, k, v), torch.float16, (2, 4, 32, 16)),
    ],
)
def test_others_take_the_efficient_form(call: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = ops(call, dtype, shape)
    assert EFFICIENT in found and f"{EFFICIENT}_backward" in found


def test_masks_of_truths_become_numbers() -> None:
    found = ops(masked(20, 20), torch.float32, (2, 4, 20, 16))
    assert found[:5] == ["ones", "scalar_tensor", "scalar_tensor", "where", EFFICIENT]  # as PyTorch does on the host


@pytest.mark.parametrize(
    ("call", "dtype", "shape"),
    [
        (attend, torch.float64, (2, 4, 32, 16)),
        (attend, torch.float16, (4, 32, 16)),
        (lambda q, k, v: sdpa_kernel(SDPBackend.MATH)(attend)(q, k, v), torch.float16, (2, 4, 32, 16)),
    ],
)
def test_what_no_form_takes_is_many_ops(call: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = ops(call, dtype, shape)
    assert "bmm" in found and "_safe_softmax" in found and not {FLASH, EFFICIENT} & set(found)


def test_heads_of_keys_are_shared_by_flash_alone() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k[:, :2], v[:, :2], enable_gqa=True)

    assert ops(grouped, torch.bfloat16)[0] == FLASH
    assert "_safe_softmax" in ops(grouped, torch.float32)


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((8, 16), (3, 16, 32), [2, 5, 8]),  # rows by groups
        ((3, 8, 16), (16, 24), [8, 16, 24]),  # columns by groups
        ((8, 16), (16, 32), [4, 8, 16]),  # what is summed by groups
        ((3, 8, 16), (3, 16, 32), None),
    ],
)
def test_a_product_by_groups_is_as_large_as_on_the_host(
    a: tuple[int, ...], b: tuple[int, ...], ends: list[int] | None
) -> None:
    """In full precision: PyTorch's own kernel without values takes half precision alone."""
    x, y = torch.randn(a), torch.randn(b)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    host = torch._grouped_mm(x, y, offs)
    with fake_cuda():
        mine = torch._grouped_mm(x.to("meta"), y.to("meta"), None if offs is None else offs.to("meta"))
    assert (mine.shape, mine.stride(), mine.dtype) == (host.shape, host.stride(), host.dtype)
