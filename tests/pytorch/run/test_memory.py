"""Storages under a memory limit: who makes room, whose copy is good, what is named where it cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpumem.runtime.residency.environment import Where
from gpumem.torch import LimitError, internals, managed
from gpumem.torch.run.engines import OnHost, Resized, Swapped
from gpumem.torch.run.memory import Memory
from gpumem.torch.step.storages import Cell
from tests.pytorch.small_runs import KIB, QUICK

SWAPS = pytest.mark.skipif(not internals.SWAPS, reason="PyTorch cannot swap pointers here")


@pytest.fixture(params=[pytest.param(Swapped, marks=SWAPS), Resized])
def memory(request: Any) -> Memory:
    return Memory("cpu", OnHost(), request.param, 4 * KIB)


def cells(memory: Memory, count: int) -> tuple[list[torch.Tensor], list[Cell]]:
    held = [torch.full((256,), float(k)) for k in range(count)]  # 1 KiB each
    return held, memory.of(held)


def test_what_was_not_used_for_longest_makes_room(memory: Memory) -> None:
    held, (a, b, c, d) = cells(memory, 4)
    memory.ensure_resident([a], 0, "")
    memory.ensure_resident([d], 2 * KIB, "two more")
    assert [x.where is Where.DEVICE for x in (a, b, c, d)] == [True, False, False, True]
    assert memory.held == 2 * KIB and memory.counts.evictions == 2 and memory.counts.out == 2 * KIB
    memory.ensure_resident([b], 0, "")
    assert b.where is Where.DEVICE and memory.counts.misses == 1 and held[1].tolist() == [1.0] * 256


def test_a_copy_is_good_until_it_is_written(memory: Memory) -> None:
    held, (a,) = cells(memory, 1)
    for _ in range(2):
        memory.release(a)
        memory.ensure_resident([a], 0, "")
    assert memory.counts.out == KIB and memory.counts.back == 2 * KIB
    held[0].fill_(7)
    memory.wrote([a])
    memory.release(a)
    memory.ensure_resident([a], 0, "")
    assert memory.counts.out == 2 * KIB and held[0].tolist() == [7.0] * 256


def test_what_came_back_for_good_and_is_sent_away_again_keeps_its_copy(memory: Memory) -> None:
    held, (a,) = cells(memory, 1)
    memory.release(a)
    assert a.copy is not None
    a.copy.drop_copy_on_return = True
    memory.bring(a)
    memory.release(a)  # before anything asked for it
    memory.ensure_resident([a], 0, "")
    assert held[0].tolist() == [0.0] * 256 and memory.counts.out == KIB


def test_the_dead_are_off_the_books_here_or_away(memory: Memory) -> None:
    held, (a, b) = cells(memory, 2)
    memory.release(b)
    assert memory.held == KIB
    held.clear()
    memory.reap()
    assert memory.held == 0 and not memory.by_key and not memory.on_device and b.copy is None and a.storage is None


def test_an_op_that_holds_more_than_the_limit_is_named_with_what_would_do(memory: Memory) -> None:
    _held, mine = cells(memory, 3)
    with pytest.raises(
        LimitError, match=r"_foreach_x holds 5.00 KiB at once, the limit is 4.00 KiB; .* \(5120 bytes"
    ) as told:
        memory.ensure_resident(mine, 2 * KIB, "_foreach_x")
    assert "smaller chunk" in str(told.value)
    assert [x.where is Where.DEVICE for x in mine] == [True] * 3


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
    memory.evict_for(0)
    assert fixed.where is Where.DEVICE and other.where is not Where.DEVICE
    with pytest.raises(LimitError, match=r"1.00 KiB of it in storages that cannot move"):
        memory.ensure_resident([other], 0, "add")


@SWAPS
def test_views_of_what_is_away_can_be_made_where_pointers_are_swapped() -> None:
    memory = Memory("cpu", OnHost(), Swapped)
    held, (a,) = cells(memory, 1)
    memory.release(a)
    view = held[0].view(16, 16)[3]
    memory.ensure_resident([a], 0, "")
    assert view.tolist() == [0.0] * 16 and view.device.type == "cpu"


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
