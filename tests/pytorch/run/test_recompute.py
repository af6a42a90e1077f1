"""Calls that recomputed: a value is dropped and made once more, of what it was made of, or it is not dropped."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpumem.runtime.residency.environment import Where
from gpumem.swap import Plan, Recompute, Swap
from gpumem.torch import managed, record
from gpumem.torch.run import recompute
from tests.pytorch.small_runs import pair

CALLED = [0]
NOISY = torch.library.Library("gpumem_noise", "DEF")  # it draws from a generator that nobody knows of
NOISY.define("noise(Tensor x) -> Tensor")
NOISY.impl("noise", lambda x: (CALLED.__setitem__(0, CALLED[0] + 1), x * CALLED[0])[1], "CPU")


def test_an_op_of_somebodys_own_is_never_called_again() -> None:
    """A plan may want its value made once more; it goes to the host instead."""
    weight = torch.ones(64, 64)

    def step() -> torch.Tensor:
        x = torch.ops.gpumem_noise.noise(weight)
        total = x.sum()
        weight.sin().cos()
        return (x * total).sum()

    trace = record(lambda: step, "cpu").trace
    (value,) = trace.ops.writes.tolist()[0]
    uses = trace.accesses().op.tolist()[value]
    plan = Plan([Recompute(value, after=uses[1], before=uses[2], at=uses[2])])
    CALLED[0] = 0
    bare = [step().item() for _ in range(3)]
    CALLED[0] = 0
    with managed("1MiB", device="cpu", plan=(trace, plan)) as run:
        assert [step().item() for _ in range(3)] == bare
    assert {row.recomputed for row in run.report().iterations} == {0}


def test_what_is_made_on_the_way_takes_room_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(64, 64)  # 16 KiB

    def step() -> torch.Tensor:
        z = torch.cat([x, x]).exp()
        total = z.sum()
        x.sin()
        return z * total

    trace = record(lambda: step, "cpu").trace
    (z,) = trace.ops.writes.tolist()[1]
    plan = Plan([Recompute(z, after=2, before=4, at=4)])
    needs = []

    class Seen(recompute.StorageRecipe):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            needs.append(self.needs)

    monkeypatch.setattr(recompute, "StorageRecipe", Seen)
    with managed("1MiB", device="cpu", plan=(trace, plan)) as run:
        step()
        step()
    assert needs == [2 * 32 * 1024] * 2  # the cat of both beside its exponential, not x and the cat
    assert [row.recomputed for row in run.report().iterations] == [2, 2]


def test_a_value_is_dropped_and_made_again() -> None:
    x = torch.rand(64, 64) - 0.5
    expected = torch.relu(x) * 3 + 1
    with managed("1MiB", pair(), device="cpu") as run:
        found = []
        for _ in range(3):
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            found.append(y + z)
    assert all(torch.equal(x, expected) for x in found)
    assert [(row.state, row.recomputed, row.moved_out) for row in run.report().iterations] == [("planned", 1, 0)] * 3


def test_whoever_writes_what_a_dropped_value_is_made_of_makes_it_first() -> None:
    x = torch.rand(64, 64) - 0.5
    y = torch.relu(x)
    expected = y.clone()
    with managed("1MiB", pair(), device="cpu") as run:
        memory, loop = run.memory, run.loop
        y = torch.relu(x)
        z = y * 2
        (cell,) = memory.of([y])
        assert loop.phase.follower is not None and loop.phase.follower.position == 2
        z.add_(1)  # planned: here y is dropped
        assert cell.where is Where.RECIPE and cell.recipe is not None and cell.copy is None
        x.add_(1)  # not planned: y would become another
        assert cell.where is Where.DEVICE and cell.recipe is None
        assert torch.equal(y, expected)
    assert run.report().held == sum(t.nbytes for t in (x, y, z, expected))


def test_what_a_dropped_value_is_made_of_lives_as_long_as_it_does() -> None:
    x = torch.rand(64, 64) - 0.5
    expected = torch.relu(x)
    with managed("1MiB", pair(), device="cpu") as run:
        y = torch.relu(x)
        z = y * 2
        z.add_(1)
        (cell,) = run.memory.of([y])
        assert cell.where is not Where.DEVICE
        (source,) = run.memory.of([x])
        del x
        assert source.storage is not None
        assert torch.equal(y, expected)
        del z, y
    assert source.storage is None


def test_nothing_is_made_again_of_bytes_whose_address_somebody_has() -> None:
    numbers = np.full((64, 64), -1, np.float32)
    x = torch.from_numpy(numbers)
    with managed("1MiB", pair(), device="cpu") as run:
        y = torch.relu(x)
        z = y * 2
        z.add_(1)
        (cell,) = run.memory.of([y])
        assert cell.where is Where.DEVICE
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
    assert [(row.state, row.recomputed, row.moved_out) for row in run.report().iterations] == [("planned", 1, 0)] * 3
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, self.norm.state_dict().values(), statistics.values()))


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
