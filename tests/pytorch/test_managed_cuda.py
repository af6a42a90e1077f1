"""A run within a limit beside a double of a GPU: every wait of the engine is needed, and none is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import torch

from gpumem.machine import Link, Machine
from gpumem.swap.gaps import gaps
from gpumem.swap.plan import Decision, Plan, Recompute, Swap
from gpumem.torch import WorkloadError, managed, record
from gpumem.torch.run import memory as memory_module
from gpumem.torch.run.engines import SWAPS, pointer
from gpumem.torch.run.managed import Managed
from gpumem.torch.run.memory import Memory, _disable_current_modes
from gpumem.torch.run.on_cuda import OnCuda, machine_of
from gpumem.trace import Trace
from tests.pytorch.card import FakeCard, Kernels, Stream, Touch
from tests.pytorch.order import Unordered, check_order
from tests.pytorch.programs import OPTIMIZERS, WHAT, Step

pytestmark = [pytest.mark.skipif(not SWAPS, reason="PyTorch cannot swap pointers here")]
ROOM = 2**30


@contextmanager
def beside(card: FakeCard, run: Managed) -> Iterator[None]:
    """Let a run have a card's memory and copies; the card sees its kernels, those that run again as well."""
    run.memory.engine, run.memory.pointers = OnCuda(card), card.pointers
    kernels = Kernels(card)

    @contextmanager
    def but_kernels() -> Iterator[None]:
        with _disable_current_modes(), kernels:
            yield

    with kernels, patch.object(memory_module, "_disable_current_modes", but_kernels):
        with run:
            yield
        card.touch("after the run", [s for w in card.watched.values() if (s := w()) is not None], [])


def state(step: Callable[[], None]) -> list[torch.Tensor]:
    """What a step of a program leaves behind."""
    kept = inspect.getclosurevars(step).nonlocals
    weights, optimizer = kept["weights"], kept["optimizer"]
    found = [*weights, *(w.grad for w in weights if w.grad is not None), *kept["losses"], torch.get_rng_state()]
    for w in weights:
        found += [x for x in optimizer.state[w].values() if isinstance(x, torch.Tensor)]
    return [x.detach().clone() for x in found]


def drawn(random: Random) -> tuple[Step, Trace]:
    """A program that can be recorded, and its trace."""
    while True:
        lines = [(random.choice(sorted(WHAT)), random.randint(0, 1), random.randint(0, 1)) for _ in range(6)]
        optimizer, clears = random.choice(sorted(OPTIMIZERS)), random.choice(["first", "last", "never"])
        program = Step(lines, optimizer, random.random() < 0.2, clears, random.random() < 0.5)
        try:
            return program, record(program, device="cpu", warmup=1).trace
        except WorkloadError:
            continue


def some_plan(random: Random, trace: Trace) -> Plan:
    """Swaps and values made again, at random."""
    found, chosen = gaps(trace), list[Decision]()
    share, again = random.choice([0.1, 0.3, 1.0]), 0
    for b, after, before in zip(found.buffer.tolist(), found.after.tolist(), found.before.tolist()):
        if random.random() > share:
            continue
        if before < trace.n and again < 5 and random.random() < 0.2:
            again += 1
            more: list[Decision] = [*chosen, Recompute(b, after, before, random.randint(after + 1, before))]
            try:
                Plan.of(trace, more).apply(trace)
                chosen = more
                continue
            except ValueError:
                pass  # it cannot be made again
        release = random.randint(after + 1, before)
        chosen.append(Swap(b, after, before, release, random.randint(release, before), random.randint(after, release - 1)))
    return Plan.of(trace, chosen)


def planned(program: Step, trace: Trace, plan: Plan, card: FakeCard, tight: bool) -> tuple[Managed, bool]:
    """Run two iterations as they are, then four by the plan; return the run, and whether every bit is as without it."""
    step = program()
    for _ in range(6):
        step()
    expected = state(step)
    step = program()
    for _ in range(2):
        step()
    limit = plan.apply(trace).peak_load if tight else ROOM
    run = managed(limit, (trace, plan), device="cpu", chunk=ROOM)
    with beside(card, run):
        for _ in range(4):
            step()
    return run, all(map(same, state(step), expected))


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bytes(x.contiguous().numpy()) == bytes(y.contiguous().numpy())


def rehearse(seed: int, broken: tuple[str, ...] = ()) -> None:
    random = Random(seed)
    program, trace = drawn(random)
    card = FakeCard(seed, broken)
    try:
        plan = some_plan(random, trace)
    except ValueError:
        return
    run, right = planned(program, trace, plan, card, random.random() < 0.5)
    check_order(card.log, card.now.name)
    assert right and not card.strays


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 1100), marks=pytest.mark.slow)], ids=["few", "many"])
def test_any_plan_keeps_the_order_and_the_bits(seeds: range) -> None:
    for seed in seeds:
        try:
            rehearse(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
