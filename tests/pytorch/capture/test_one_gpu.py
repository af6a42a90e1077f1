"""There seems to be one GPU: nothing public of `torch.cuda` or `torch.accelerator` touches the driver, new or not."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpumem.simulator.machine import Machine
from gpumem.torch import capture, fit, record
from gpumem.torch.capture.fake_cuda import fake_cuda
from gpumem.torch.capture.one_gpu import ANSWERS, ANSWERS_OF, MEMORY, STILL, Still, there
from gpumem.torch.internals.redirected import BY_DEVICE, of_families
from tests.pytorch.nets import OPTIMIZERS

cuda, accelerator = torch.cuda, torch.accelerator
FUNCTIONS: dict[str, list[str]] = {}
for each, value in of_families():
    if inspect.isroutine(value) and not each.startswith(("torch.cuda.amp.", "torch.cuda.jiterator.")):
        FUNCTIONS.setdefault(each.rpartition(".")[0], []).append(each)
ARGUMENTS: dict[str, Any] = {  # plausible ones, by the names of parameters
    **{"device": 0, "device_id": 0, "peer_device": 0, "seed": 3, "msg": "here", "range_id": 0, "fraction": 0.5},
    **{"debug_mode": "default", "mode": 0, "size": 16, "mem_ptr": 0, "data_ptr": 0, "value": True, "val": True},
    **{"filename": "x", "res": 0, "output_file": "x", "stream": None, "enabled": True},
}


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever initializes the driver fails, whether there is one or not."""

    def touched(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the driver was touched")

    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    for name in [name for name in vars(torch._C) if name.startswith(("_cuda_init", "_cuda_getDevice", "_cuda_set"))]:
        monkeypatch.setattr(torch._C, name, touched)


def found(name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(sys.modules[owner], last)


def arguments(function: Callable[..., Any]) -> Iterator[Any]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            state = "state" in parameter.name
            states = [cuda.get_rng_state()] if parameter.name.endswith("states") else cuda.get_rng_state()
            yield states if state else ARGUMENTS.get(parameter.name)


@pytest.mark.parametrize("module", sorted(FUNCTIONS))
def test_what_is_public_touches_no_driver(module: str, no_driver: None) -> None:
    failed = {}
    with fake_cuda():
        for name in FUNCTIONS[module]:
            function = found(name)
            try:
                function(*arguments(function))
            except Exception as error:
                failed[name.rpartition(".")[2]] = error
    assert {*failed} <= {"make_graphed_callables", "export_dot", "export_graph_data"}, failed  # graphs are refused


def test_there_are_many() -> None:
    assert sum(map(len, FUNCTIONS.values())) > 150


def test_what_a_new_version_adds_does_nothing(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def brand_new(device: Any) -> Any:
        return torch.cuda._lazy_init()  # type: ignore[no-untyped-call]

    brand_new.__module__ = "torch.cuda.memory"
    for module in (cuda, cuda.memory):
        monkeypatch.setattr(module, "brand_new", brand_new, raising=False)
    with pytest.raises(AssertionError, match="touched"):
        cuda.brand_new(0)  # type: ignore[attr-defined]
    with there():
        assert cuda.brand_new(0) is None and cuda.memory.brand_new("cuda:0") is None  # type: ignore[attr-defined]
    assert cuda.brand_new is brand_new  # type: ignore[attr-defined]


def test_each_answer_is_one_to_a_question_that_there_is() -> None:
    names = {name for name, _ in of_families()}
    last = {name.rpartition(".")[2] for name in names}
    assert {*ANSWERS, *STILL} - last <= {"memory_cached", "max_memory_cached"}  # which are deprecated
    late = {"torch.cuda.nccl.version", "torch.cuda.gds.is_available", "torch.cuda.graph_annotations.is_available"}
    assert {*ANSWERS_OF} - names - late == set()  # modules that not everyone loads


def test_contexts_change_nothing() -> None:
    with there():
        with cuda.device(0), cuda.stream(cuda.Stream()), cuda.device_of(torch.ones(1)):
            assert cuda.current_device() == 0
        with cuda.use_mem_pool(cuda.MemPool()), cuda.profiler.profile(), cuda.StreamContext(None):
            assert cuda.memory_allocated() == 0
        assert isinstance(cuda.current_stream(), Still)


def test_questions_about_memory_agree() -> None:
    with there():
        free, total = cuda.mem_get_info()
        assert free == total == MEMORY == cuda.get_device_properties("cuda:0").total_memory
        assert cuda.memory.mem_get_info(0) == accelerator.memory.get_memory_info() == (MEMORY, MEMORY)
        assert cuda.memory_stats()["active_bytes.all.peak"] == 0 == cuda.memory.max_memory_reserved()
        cuda.memory_stats()["active_bytes.all.peak"] = 1
        assert cuda.memory_stats()["active_bytes.all.peak"] == 0
        cuda.memory._record_memory_history(max_entries=100)
        cuda.memory._dump_snapshot("x.pickle")
        cuda.memory._record_memory_history(enabled=None)


def test_there_is_as_much_memory_as_the_machine_has() -> None:
    seen = []

    def make() -> Callable[[], object]:
        seen.append((*cuda.mem_get_info(), cuda.get_device_name(), accelerator.memory.get_memory_info()[1]))
        net = nn.Linear(2, 2)
        return lambda: net(torch.randn(2, 2)).sum().backward()

    machine = Machine.named("rtx4090")
    found = fit(make, machine)
    assert seen == [(found.limit, machine.capacity, "rtx4090", machine.capacity)]
    record(make)
    assert seen[1][:2] == (MEMORY, MEMORY)


# who asks for the type of a device


def ops(use: Callable[[list[nn.Parameter]], object], optimizer: Any = None) -> list[str]:
    def make() -> Callable[[], None]:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimize = optimizer(net.parameters()) if optimizer else None

        def step() -> None:
            net(torch.randn(8, 4)).sum().backward()
            use([*net.parameters()])
            if optimize:
                optimize.step()
            net.zero_grad()

        return step

    return [name.partition(".")[0] for name in record(make).trace.ops.name]


def test_clipping_works_on_all_at_once() -> None:
    found = ops(lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0))
    assert found.count("_foreach_norm") == found.count("_foreach_mul_") == 1
    assert found.count("linalg_vector_norm") == 1 and "mul_" not in found  # the norm of norms
    found = ops(lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0))
    assert "_foreach_clamp_min_" in found and "_foreach_clamp_max_" in found and "clamp_" not in found
    found = ops(lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False))
    assert "_foreach_norm" not in found and found.count("mul_") == 4


@pytest.mark.parametrize("name", ["Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_optimizers_keep_counters_on_the_device_where_told_to(name: str) -> None:
    kind = getattr(torch.optim, name)
    told, plain = (ops(lambda parameters: None, lambda p, c=c: kind(p, capturable=c)) for c in (True, False))
    assert told != plain and any(op.startswith("_foreach_") for op in told)


def test_counters_that_are_made_at_once_are_on_the_host() -> None:
    def make() -> Callable[[], None]:
        net = nn.Linear(4, 2)
        optimizer = torch.optim.Adagrad(net.parameters())
        assert {state["step"].device.type for state in optimizer.state.values()} == {"cpu"}
        assert all(state["sum"].is_meta for state in optimizer.state.values())

        def step() -> None:
            net(torch.randn(8, 4)).sum().backward()
            optimizer.step()

        return step

    assert record(make).notes == ()


def test_tensors_say_that_they_are_on_a_gpu() -> None:
    seen = []

    def make() -> Callable[[], None]:
        net, host = nn.Linear(4, 2), torch.ones(2, device="cpu")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *args: seen.append(net.weight.is_cuda))
        seen.append((net.weight.is_cuda, torch.ones(2).is_cuda, host.is_cuda))

        def step() -> None:
            net(torch.randn(8, 4)).sum().backward()
            optimizer.step()

        return step

    assert "addmm.default" in record(make).trace.ops.name
    assert seen == [(True, True, False), True, True, True]
    seen.clear()
    record(make, "cpu")
    assert seen == [(False, False, False), False, False, False]


def test_averages_work_on_all_at_once() -> None:
    from torch.optim.swa_utils import get_ema_multi_avg_fn

    def average(parameters: list[nn.Parameter]) -> None:
        get_ema_multi_avg_fn(0.9)([p.detach().clone() for p in parameters], [p.detach() for p in parameters], 1)

    assert "_foreach_lerp_" in ops(average)


def test_everyone_who_asks_for_supported_devices_is_answered() -> None:
    """A new version may ask in another module: its name has to stand in `BY_DEVICE`."""
    OPTIMIZERS["adam"]([nn.Parameter(torch.ones(1))])
    asking = {
        f"{module.__name__}.{name}"
        for module in [*sys.modules.values()]
        if getattr(module, "__name__", "").startswith(("torch.optim.", "torch.utils.", "torch.nn.", "torch.amp."))
        for name in vars(module)
        if name.startswith("_get_") and name.endswith("_supported_devices")
    }
    assert asking == {*BY_DEVICE}


def test_a_tensor_is_on_the_gpu_for_whoever_asks() -> None:
    """`x.device` is what code hands on, compares, and chooses by."""

    def make() -> Callable[[], None]:
        net = nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4), nn.LSTM(4, 4)).train()
        chosen: list[str] = []

        def step() -> None:
            x = torch.randn(8, 4)
            assert x.device == torch.device("cuda", 0) and x.get_device() == 0 and x.is_cuda and x.is_meta
            assert next(net.parameters()).device.type == "cuda" and str(x.device) == "cuda:0"
            assert torch.ones(2, device=x.device).is_meta and x.to(x.device) is x
            assert torch.ones(2, device="cpu").device.type == "cpu" and torch.ones(2, device="cpu").get_device() == -1
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                y = checkpoint(net, x, use_reentrant=False)[0]
            chosen.append("fast" if y.device.type == "cuda" else "slow")
            y.square().sum().backward(torch.ones((), device=y.device))
            net.zero_grad()
            assert {*chosen} == {"fast"}

        return step

    names = capture(make).ops.name
    assert names.count("_to_copy.default") > 2, "autocast is on"
