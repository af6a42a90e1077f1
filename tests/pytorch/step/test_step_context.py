"""Where in a step we are: what following it leaves behind, what is known of models that it builds, drops or swaps."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpumem.torch import WorkloadError, record

Step = Callable[[], object]


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1, momentum=0.9)


def beside() -> Step:
    net = nn.Linear(8, 8)
    optimizer = sgd(net)

    def step() -> None:
        other = nn.Linear(8, 8)
        (net(torch.ones(4, 8)) + other(torch.ones(4, 8))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def anew() -> Step:
    def step() -> None:
        net = nn.Linear(8, 8)
        optimizer = sgd(net)
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("make", [beside, anew])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_what_a_step_builds_dies_with_it(make: Callable[[], Step], device: str) -> None:
    captured = record(make, device, iterations=3)
    loads = [int(captured.recording.iteration(lo, hi).live_bytes()[-1]) for lo, hi in captured.bounds[1:]]
    assert captured.kept == 0 and not captured.notes and len(set(loads)) == 1


def test_the_result_holds_no_model() -> None:
    seen: list[weakref.ref[nn.Module]] = []

    def make() -> Step:
        net = nn.Linear(8, 8)
        optimizer = sgd(net)
        seen.append(weakref.ref(net))

        def step() -> None:
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    captured = record(make)
    gc.collect()
    assert seen[0]() is None
    assert {b.name for b in captured.trace.buffers if b.kind == "param"} == {"weight", "bias"}


def test_models_and_optimizers_have_names_of_their_own() -> None:
    def make() -> Step:
        nets = nn.Linear(8, 4), nn.Linear(4, 2)
        optimizers = [sgd(net) for net in nets]

        def step() -> None:
            nets[1](nets[0](torch.ones(4, 8))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

        return step

    mine = {(b.kind, b.name, b.size) for b in record(make).trace.buffers if b.kind in ("param", "opt_state")}
    state = ".momentum_buffer"
    sizes = {"weight": 128, "bias": 16, "Linear.weight": 32, "Linear.bias": 8}
    assert mine == {("param", n, s) for n, s in sizes.items()} | {("opt_state", n + state, s) for n, s in sizes.items()}


def test_models_of_one_class_are_told_apart_with_an_optimizer_or_without() -> None:
    def make() -> Step:
        first, *others = (nn.Linear(8, 8) for _ in range(4))
        for net in others:
            net.requires_grad_(False)

        def step() -> None:
            x = nn.CrossEntropyLoss()(first(torch.ones(4, 8)), torch.ones(4, 8))
            for net in others:
                x = net(x.expand(4, 8))
            x.sum().backward()
            first.zero_grad()

        return step

    named = [b.name for b in record(make).trace.buffers if b.kind == "param" and b.name.endswith("weight")]
    assert named == ["weight", "Linear.weight", "Linear_2.weight", "Linear_3.weight"]


def test_what_the_first_iteration_alone_leaves_is_not_said_of_each() -> None:
    def make() -> Step:
        net = nn.Linear(8, 8)
        optimizer = sgd(net)

        def step() -> None:
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    captured = record(make, iterations=1, warmup=0)
    assert captured.kept == 288 and captured.notes[0].startswith("the first iteration keeps 288 B")
    assert not record(make, iterations=1, warmup=1).notes


def test_gradients_are_known_without_an_optimizer_and_shapes_of_what_was_there_before() -> None:
    net = nn.Linear(8, 4, device="meta")

    def step() -> None:
        net(torch.ones(2, 8)).sum().backward()

    trace = record(lambda: step).trace
    lasting = {(b.kind, b.name, b.size) for b in trace.buffers if b.persistent}
    assert lasting == {("param", "weight", 128), ("param", "bias", 16), ("gradient", "", 128), ("gradient", "", 16)}
    assert {b.shape for b in trace.buffers if b.kind == "param"} == {(4, 8), (4,)}


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(str(x.shape))


def test_a_module_that_fails_is_left() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.last = Fails(), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with pytest.raises(RuntimeError):
                self.fails(x)
            return self.last(x.relu())

    def make() -> Step:
        net = Net()
        return lambda: net(torch.ones(4, 8)).sum().backward()

    ops = record(make).trace.ops
    modules = dict(zip(ops.name, ops.module))
    assert modules["relu.default"] == "" and modules["addmm.default"] == "last" and modules["sum.default"] == ""


def test_phases_of_a_step_that_makes_again_and_clips() -> None:
    def make() -> Step:
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)

        def step() -> None:
            checkpoint(net, torch.ones(4, 8), use_reentrant=False).sigmoid().sum().backward()
            nn.utils.clip_grad_value_(net.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad()

        return step

    ops = record(make).trace.ops
    found = {(name.partition(".")[0], of["phase"]) for name, of in zip(ops.name, ops.attributes)}
    assert {("addmm", "forward"), ("addmm", "recompute"), ("mm", "backward"), ("clamp_", "optimizer")} <= found
    assert ("add_", "optimizer") in found and ("add_", "backward") not in found


class Places(nn.Module):
    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.last, self.device = nn.Linear(8, 8), device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x + torch.arange(8, device=self.device)).tanh()


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_backward_pass_makes_is_on_the_device_too(device: str | None, reentrant: bool) -> None:
    def make() -> Step:
        net, first = Places(device), nn.Linear(8, 8)
        return lambda: checkpoint(net, first(torch.ones(4, 8)), use_reentrant=reentrant).sum().backward()

    assert record(make).trace.ops.name.count("arange.default") == 2


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x[:2].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4).scatter(0, torch.arange(2), grad)


def test_what_a_formula_does_out_of_place_stays_so() -> None:
    def step() -> None:
        x = torch.ones(4, requires_grad=True)
        torch.nn.functional.mish(Spread.apply(x)).sum().backward()  # whose formula adds once, to what is its own

    names = record(lambda: step).trace.ops.name
    assert "scatter.src" in names and "scatter_.src" not in names
    assert "add.Tensor" in names and "add_.Tensor" not in names


def test_one_thread_records_at_a_time() -> None:
    told: list[str] = []

    def beside_it() -> None:
        with pytest.raises(WorkloadError) as caught:
            record(anew)
        told.append(str(caught.value))

    def make() -> Step:
        thread = threading.Thread(target=beside_it)
        thread.start()
        thread.join()
        return anew()

    record(make)
    assert told == ["a capture beside another thread's: do one after the other, or each in its own process"]


def test_parameters_that_a_transform_wraps_are_those_it_was_given() -> None:
    def make() -> Step:
        net = nn.Linear(8, 8)
        values = {name: p.detach() for name, p in net.named_parameters()}
        gradient = torch.func.grad(lambda p, x: torch.func.functional_call(net, p, (x,)).sum())

        def step() -> None:
            for name, g in gradient(values, torch.ones(4, 8)).items():
                values[name].sub_(g, alpha=0.1)

        return step

    trace = record(make).trace
    assert {b.name for b in trace.buffers if b.kind == "param"} == {"weight", "bias"}


def state() -> tuple[Any, ...]:
    """What recording changes for a while."""
    hooks = nn.modules.module
    return (
        torch.cuda.is_available,
        torch.compile,
        torch.set_default_device,
        torch.get_autocast_dtype("cuda"),
        dict(hooks._global_forward_hooks),
        dict(hooks._global_forward_pre_hooks),
        dict(import_module("torch.optim.optimizer")._global_optimizer_pre_hooks),
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        torch.overrides._get_current_function_mode_stack(),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta"),
        gc.isenabled(),
        bool(gc.get_freeze_count()),
    )


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_failure_leaves_nothing_behind(device: str, when: int) -> None:
    def make() -> Step:
        net, count = nn.Linear(4, 4), [0]
        assert when, "make fails"

        def step() -> None:
            net(torch.ones(2, 4)).sum().backward()
            count[0] += 1
            assert count[0] < when, "step fails"

        return step

    before = state()
    for _ in range(2):
        with pytest.raises(WorkloadError, match="fails"):
            record(make, device)
    assert state() == before
    assert gc.isenabled() and not torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta")
    assert record(beside, device).kept == 0
