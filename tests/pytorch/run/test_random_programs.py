"""Random programs under a limit leave every bit that they leave without one, and so do those that once did not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from torch.utils.data import DataLoader, Dataset

from gpumem.torch import managed
from tests.pytorch.bits import at_least, bits
from tests.pytorch.managing import Manage
from tests.pytorch.random_programs import LEAST, LIMITS, PROGRAMS, Program, differences, own, run
from tests.pytorch.random_training import OPTIMIZERS

SEARCHED = "70% searched"
DRAWN = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],  # `random_programs.smaller` is quicker than shrinking
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}
NAMES = st.sampled_from([*({*LIMITS} - {SEARCHED}), LEAST, LEAST])


def same(program: Program, *names: str) -> None:
    """Hold a program within limits against the bare one."""
    found = differences(program, *names)
    assert not found, f"{program!r}: {found}; under a mode that does nothing: {own(program) or 'as bare'}"


@settings(max_examples=54, derandomize=True, **DRAWN)  # type: ignore[arg-type]
@given(PROGRAMS, NAMES)
def test_a_program_leaves_what_it_leaves_without_a_limit(program: Program, name: str) -> None:
    same(program, name)


@settings(max_examples=6, derandomize=True, **DRAWN)  # type: ignore[arg-type]
@given(PROGRAMS)
def test_a_program_under_a_plan_that_was_searched_for(program: Program) -> None:
    same(program, SEARCHED)


@pytest.mark.slow
@settings(max_examples=500, **DRAWN)  # type: ignore[arg-type]
@given(PROGRAMS)
def test_many_programs_within_all_limits(program: Program) -> None:
    same(program)


def test_programs_are_the_same_each_time() -> None:
    program = Program((("hook", 0, 1, 0), ("random", 1, 0, 0), ("keep", 0, 0, 1)), shape=(4, 4))
    assert run(program) == run(program)
    assert eval(repr(program)) == program
    assert not own(program)


# once each: what did not leave the same bits


def alike(step: Callable[[], Any], times: int = 4) -> None:
    """Hold what a step returns, several times over, against the bare one: unlimited, and within the least limit."""

    def left(manage: Manage = nullcontext) -> Any:
        torch.manual_seed(0)
        with manage():
            found = [step() for _ in range(times)]
        return [[bits(x) if isinstance(x, torch.Tensor) else x for x in values] for values in found]

    how: dict[str, Any] = {"device": "cpu", "wait": True, "planner": "on-demand"}
    theirs = left()
    assert left(lambda: managed("64GiB", **how)) == theirs
    assert at_least(lambda limit: left(lambda: managed(limit, **how)), 1000)[0] == theirs


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("index", [3, slice(1, 9), [0, 7, 5]], ids=str)
def test_a_gradient_of_what_is_assigned_into_a_view(index: Any) -> None:
    def step() -> Any:
        h, w = leaf(64, 49), torch.randn(64, 49)
        b = h * 2
        z = b.view(49, 64)
        e = leaf(*z[index].shape)
        z[torch.tensor(index) if isinstance(index, list) else index] = e
        (b * w).sum().backward()
        assert e.grad is not None and torch.equal(e.grad, w.view(49, 64)[index])
        return h.grad, e.grad

    alike(step)


def test_a_hook_keeps_the_gradient_that_it_replaces() -> None:
    def step() -> Any:
        kept: list[torch.Tensor] = []
        h, c = leaf(49, 64), torch.randn(49, 64)
        x = h * 3
        x.register_hook(lambda g: (kept.append(g), g + c)[1])
        (x * x + x).sum().backward()
        return kept[0], h.grad, x

    alike(step)


@pytest.mark.filterwarnings("ignore:index_reduce")  # it is in beta
@pytest.mark.parametrize("how", ["amin", "amax", "mean"])
def test_gradients_of_index_reduce(how: str) -> None:
    def step() -> Any:
        x, y, index = leaf(49, 64), leaf(30, 64), torch.randint(49, (30,))
        torch.index_reduce(x, 0, index, y, how, include_self=True).square().sum().backward()
        return x.grad, y.grad

    alike(step)


@pytest.mark.parametrize(
    "write",
    [
        lambda z, e: z.put_(torch.tensor([3, 70, 5]), e[0, :3]),
        lambda z, e: z.put_(torch.tensor([3, 70, 3]), e[0, :3], accumulate=True),
        lambda z, e: z.index_fill_(0, torch.tensor([1, 5]), 0.5),
        lambda z, e: z.index_fill_(0, torch.tensor([1, 5]), e[0, 0]),
        lambda z, e: z.index_copy_(0, torch.tensor([1, 5]), e[:2]),
        lambda z, e: z.index_add_(0, torch.tensor([1, 5]), e[:2]),
        lambda z, e: z.scatter_(1, torch.tensor([[1, 5]]), e[:1, :2]),
        lambda z, e: z.masked_scatter_(z.detach() > 0, e),
        lambda z, e: z.index_put_((torch.tensor([1, 5]),), e[:2]),
        lambda z, e: z[1:].copy_(e[1:]),
    ],
    ids=["put", "put_more", "fill", "fill_by", "copy", "add", "scatter", "masked", "index_put", "slice"],
)
@pytest.mark.parametrize("view", [lambda b: b.view(49, 64), lambda b: b.t(), lambda b: b.view(49, 64)[::2]])
def test_gradients_of_writes_in_place_of_a_view(write: Any, view: Any) -> None:
    def step() -> Any:
        h, w = leaf(64, 49), torch.randn(64, 49)
        b = h * 2
        z = view(b)
        e = leaf(*z.shape)
        write(z, e)
        (b * w).sum().backward()
        return h.grad, e.grad, b

    alike(step)


def test_an_optimizer_whose_state_holds_a_number() -> None:
    same(Program((("linear", 0, 0, 1),), optimizer="counting"), *LIMITS, LEAST)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "by hand", "never"])
def test_a_small_training(optimizer: str) -> None:
    program = Program((("linear", 0, 0, 1), ("module", 4, 0, 0), ("loss", 5, 0, 1)), optimizer=optimizer)
    same(program, "60%", LEAST)


@pytest.mark.parametrize("name", [None, torch.sin], ids=["several", "one"])
def test_a_loop_without_an_optimizer(name: Any) -> None:
    functions = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.relu] if name is None else [name]
    x = torch.randn(49, 64)
    alike(lambda: [f(x).sum().item().hex() for f in functions], times=60)


def test_gradients_that_are_zeros_without_memory() -> None:
    """As the second derivative of `abs`: such a tensor says that it has bytes, and has none."""

    def step() -> Any:
        x = leaf(49, 64)
        (grad,) = torch.autograd.grad((x.abs() ** 2).sum(), x, create_graph=True)
        (grad * x.sign().detach()).square().sum().backward()
        return x.grad, grad

    alike(step)


@pytest.mark.parametrize("on_exit", ["device", "host"])
def test_a_tensor_of_inference_outlasts_the_run(on_exit: str) -> None:
    x = torch.randn(49, 64)
    kept = []
    with managed("64GiB", device="cpu", planner="on-demand", wait=True, on_exit=on_exit):
        for k in range(3):
            with torch.inference_mode():
                kept.append(x * k)
    assert [bits(y) for y in kept] == [bits(x * k) for k in range(3)]
    assert all(y.is_inference() for y in kept)


class Ones(Dataset[torch.Tensor]):
    """Numbers of one kind each."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.ones(8) * i


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader(workers: int) -> None:
    """Its workers are forks, which have no limit."""
    weight = torch.ones(8, requires_grad=True)
    found = []
    with managed("1MiB", device="cpu", planner="on-demand", wait=True):
        for _ in range(3):
            for x in DataLoader(Ones(), batch_size=4, num_workers=workers):
                (x @ weight).sum().backward()
                found.append(x.tolist())
    batches = [[[float(i)] * 8 for i in range(at, at + 4)] for at in (0, 4, 8)]
    assert found == batches * 3
    assert weight.grad is not None and weight.grad.tolist() == [3.0 * sum(range(12))] * 8
