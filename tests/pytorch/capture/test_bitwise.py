"""Recording changes no bit: 20 recorded steps on the host against 20 unrecorded ones."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from gpumem.torch import WorkloadError, record
from gpumem.torch.zoo import recipe
from tests.pytorch.nets import NETS, NOT_REENTRANT, OPTIMIZERS, REENTRANT, Gpt, data
from tests.pytorch.world import world

STEPS = 20


class Training:
    """A workload that keeps a fingerprint of all that a step may change, taken where no mode looks."""

    def __init__(self, net: str, build: Callable[[], nn.Module], optimizer: str, **how: Any) -> None:
        self.net, self.build, self.optimizer, self.how = net, build, optimizer, how
        self.seen: list[str] = []

    def __call__(self) -> Callable[[], None]:
        torch.manual_seed(0)
        self.model = self.build()
        self.opt = OPTIMIZERS[self.optimizer](self.model.parameters())
        return self.step

    def step(self) -> None:
        accumulate = self.how.get("accumulate", 1)
        for _ in range(accumulate):
            x, y = data(self.net, 3)
            self.survived()
            with torch.autocast("cpu", torch.bfloat16) if self.how.get("autocast") else nullcontext():
                loss = F.cross_entropy(self.model(x).float(), y) / accumulate
            loss.backward()
        self.note(loss)
        self.opt.step()
        self.opt.zero_grad()
        self.note(loss)

    def survived(self) -> None:
        """An exception in a forward pass that the step itself catches."""
        if self.how.get("raises"):
            with pytest.raises(RuntimeError):
                self.model(torch.randn(2, 5, 7))

    def note(self, loss: torch.Tensor) -> None:
        with _disable_current_modes():
            state = [x for s in self.opt.state.values() for x in s.values() if isinstance(x, torch.Tensor)]
            grads = [p.grad for p in self.model.parameters() if p.grad is not None]
            everything = [loss, *self.model.parameters(), *self.model.buffers(), *grads, *state, torch.get_rng_state()]
            found = hashlib.sha256()
            for x in everything:
                found.update(x.detach().contiguous().view(-1).view(torch.uint8).numpy())
            self.seen.append(f"{len(everything)} {found.hexdigest()}")


def bare(training: Training, steps: int = STEPS) -> list[str]:
    """The fingerprints of unrecorded steps."""
    step = training()
    for _ in range(steps):
        step()
    return training.seen


def same(net: str, build: Callable[[], nn.Module], optimizer: str, **how: Any) -> None:
    try:
        expected = bare(Training(net, build, optimizer, **how))
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):
            raise
        pytest.skip("oneDNN has no LSTM in bfloat16 for this processor, recorded or not")
    recorded = Training(net, build, optimizer, **how)
    record(recorded, "cpu", iterations=STEPS, warmup=0)
    assert recorded.seen == expected
    assert len(set(recorded.seen)) == 2 * STEPS


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_training(net: str, optimizer: str) -> None:
    same(net, NETS[net], optimizer)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("how", ["autocast", "accumulate", "raises"])
def test_a_step_that_does_more(net: str, how: str) -> None:
    same(net, NETS[net], "adam", **{how: 3})


@pytest.mark.parametrize("again", [REENTRANT, NOT_REENTRANT], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("how", ["plain", "autocast", "accumulate"])
def test_checkpointing(again: dict[str, Any], how: str) -> None:
    same("gpt", lambda: Gpt(again=again), "adamw", **{how: 2})


def trained(name: str, run: Callable[[Any], object]) -> tuple[list[str], list[torch.Tensor]]:
    """Train a net of the zoo on the host: its losses, and all that is left."""
    found, losses, models = recipe(name), [], []

    def loss(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        value = found.net.loss(model, *batch)
        models.append(model)
        losses.append(value.item().hex())
        return value

    def make() -> Callable[[], None]:
        torch.manual_seed(0)
        return replace(found, net=replace(found.net, loss=loss)).make(device="cpu")

    run(make)
    grads = [p.grad for p in models[0].parameters() if p.grad is not None]
    return losses, [*models[0].state_dict().values(), *grads, torch.get_rng_state()]


def unrecorded(make: Callable[[], Callable[[], None]]) -> None:
    step = make()
    for _ in range(STEPS):
        step()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("name", ["resnet18_cifar_b2", "unet_32_b2_adam", "gpt2_2l64_s16_b2", "resnet18_64_b2_foreach"])
def test_nets_of_libraries(name: str) -> None:
    mine, theirs = (
        trained(name, run) for run in (lambda make: record(make, "cpu", iterations=STEPS, warmup=0), unrecorded)
    )
    assert mine[0] == theirs[0] and len(mine[0]) == STEPS
    assert len(mine[1]) == len(theirs[1]) and all(map(torch.equal, mine[1], theirs[1]))


class Failing(Training):
    """Fails in the middle of its third forward pass."""

    def step(self) -> None:
        if len(self.seen) == 4 and not self.how.get("mended"):
            handle = self.model.blocks[1].mlp[1].register_forward_hook(self.fail)
            try:
                super().step()
            finally:
                handle.remove()
        super().step()

    def fail(self, *_: Any) -> None:
        raise OverflowError("too much")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_exception_ends_the_recording_and_leaves_nothing_behind(device: str) -> None:
    failing = Failing("gpt", Gpt, "adam")
    if device == "meta":
        failing.note = lambda loss: failing.seen.append("")  # type: ignore[method-assign]
    gc.enable()
    before = world()
    with pytest.raises(WorkloadError, match=r"iteration 2: OverflowError: too much \(.*test_bitwise.py, line \d+\)"):
        record(failing, device, iterations=STEPS, warmup=0)
    assert world() == before
    if device == "cpu":
        failing.how["mended"] = True
        torch.manual_seed(1)
        for _ in range(2):
            failing.step()
        assert failing.seen == half_way()


def half_way() -> list[str]:
    """What an unrecorded training comes to that fails at the same place and goes on."""
    training = Failing("gpt", Gpt, "adam")
    step = training()
    for _ in range(2):
        step()
    with pytest.raises(OverflowError):
        step()
    training.how["mended"] = True
    torch.manual_seed(1)
    for _ in range(2):
        step()
    return training.seen
