"""DTR's rule on demand: what is dropped is recomputed, bit for bit, from what it was made of, or it is copied."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpumem.runtime.residency.environment import Where
from gpumem.torch.run.managed import Managed
from tests.pytorch.managing import there
from tests.pytorch.small_runs import KIB, SLOW, away, demanded, dropped

DTR: dict[str, Any] = {"on_demand": "dtr", "machine": SLOW}
ROOM = 2**20


def where(run: Managed, *tensors: torch.Tensor) -> list[Where]:
    return [cell.where for cell in run.memory.of(tensors)]


def counted(run: Managed, what: str) -> int:
    """A column of a report, summed up; the iteration under way is in it."""
    return sum(getattr(row, what) for row in run.loop.report(open_row=True).iterations)


# what may be dropped


def test_a_value_is_dropped_and_comes_back_with_its_bits() -> None:
    x = torch.rand(64, 64)
    with demanded(ROOM) as run:
        y = x.exp()
        dropped(run, y)
        assert not there(y.untyped_storage()) and run.memory.held == x.nbytes
        z = y * 1
        assert where(run, y) == [Where.DEVICE] and run.memory.of([y])[0].recipe is None
    assert torch.equal(y, x.exp()) and torch.equal(y, z)
    assert [counted(run, name) for name in ("recomputed", "misses", "moved_out", "moved_in")] == [1, 1, 0, 0]


OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "random": lambda x: torch.rand(64, 64),
    "mask": torch.bernoulli,
    "dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "second result": lambda x: x.sort(dim=1)[1],
    "of its shape": lambda x: torch.full_like(x, 3),
    "of a list": lambda x: torch.cat([x, x.t()]),
    "batch norm": lambda x: F.batch_norm(x, torch.zeros(64), torch.ones(64), training=True),
    "view of a part": lambda x: x[1:].t() + 1,
    "list of results": lambda x: torch._foreach_mul([x, x[1:]], 2)[1],
}


@pytest.mark.parametrize("name", OPS)
def test_it_draws_and_reads_what_it_did(name: str) -> None:
    found = []
    for drops in (False, True):
        torch.manual_seed(0)
        x = torch.rand(64, 64)
        with demanded(ROOM) as run:
            y = OPS[name](x)
            if drops:
                dropped(run, y)
            after = torch.rand(8)
        found.append((y, after))
    assert all(map(torch.equal, *found)) and counted(run, "recomputed") == 1


def test_statistics_are_taken_once() -> None:
    norm, x = nn.BatchNorm1d(64), torch.rand(64, 64)
    with demanded(ROOM) as run, torch.no_grad():
        y = norm(x)
        mean = norm.running_mean.clone()
        dropped(run, y)
        y.sum()
    assert torch.equal(norm.running_mean, mean) and torch.equal(y, norm(x))


def is_kept(run: Managed, x: torch.Tensor) -> bool:
    (cell,) = run.memory.of([x])
    assert run.mode.on_demand is not None
    return not run.mode.on_demand.drop(cell)


def in_place(run: Managed, x: torch.Tensor) -> torch.Tensor:
    return x.exp().add_(1)


def source_written(run: Managed, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    x.add_(1)
    return y


def source_dead(run: Managed, x: torch.Tensor) -> torch.Tensor:
    return (x + 1).exp()


def source_pinned(run: Managed, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    x.numpy()
    return y


def on_the_host(run: Managed, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    away(run, y)
    y.sum()
    return y


def written_unseen(run: Managed, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.untyped_storage().fill_(1)
    return y


def uninitialised(run: Managed, x: torch.Tensor) -> torch.Tensor:
    return torch.empty(64, 64, dtype=torch.int32)  # no NaN


def given(run: Managed, x: torch.Tensor) -> torch.Tensor:
    return x


def into_another(run: Managed, x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x, out=torch.zeros(64, 64))


KEPT = [in_place, source_written, source_dead, source_pinned, on_the_host, written_unseen, uninitialised, given]


@pytest.mark.parametrize("how", [*KEPT, into_another], ids=lambda how: how.__name__)
def test_what_cannot_be_made_again_is_copied(how: Callable[[Managed, torch.Tensor], torch.Tensor]) -> None:
    x = torch.rand(64, 64)
    with demanded(ROOM) as run:
        y = how(run, x)
        expected = y.clone()
        assert is_kept(run, y) and where(run, y) == [Where.DEVICE]
        if how is not written_unseen:
            away(run, y)
        assert torch.equal(y, expected)
    assert counted(run, "recomputed") == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")  # it is in beta
@pytest.mark.parametrize("how", ["to_sparse", "to_sparse_csr"])
def test_other_layouts_are_copied(how: str) -> None:
    x = torch.eye(64)
    with demanded(40 * KIB) as run:
        parts = getattr(x, how)()
        cells = run.memory.of([parts])
        assert cells and run.mode.on_demand is not None and not any(map(run.mode.on_demand.drop, cells))
        y = parts @ x
        assert torch.equal(y, x)
        z = y + 1
    assert torch.equal(z, x + 1) and counted(run, "evictions") and not counted(run, "recomputed")


def test_what_is_made_again_is_made_within_the_limit_or_copied() -> None:
    x = torch.rand(64, 64)
    with demanded(48 * KIB) as run:
        y = torch.cat([x, x])
        assert where(run, x, y) == [Where.DEVICE] * 2
        run.memory.limit = 47 * KIB  # it takes 16 for x, 32 for y
        assert is_kept(run, y)


# who writes, reads and keeps


def test_whoever_writes_what_a_dropped_value_is_made_of_makes_it_first() -> None:
    x = torch.rand(64, 64)
    expected = x.exp()
    with demanded(ROOM) as run:
        y = x.exp()
        dropped(run, y)
        x.add_(1)
        assert where(run, y) == [Where.DEVICE]
    assert torch.equal(y, expected)


def test_room_for_a_write_is_not_made_of_what_is_written() -> None:
    """The one that goes is made of x, which has its bytes yet, and will not have them when it is to be recomputed."""
    x = torch.rand(64, 64)
    expected = x.exp()
    with demanded(48 * KIB) as run:
        y = x.exp()
        other = torch.rand(64, 64)
        away(run, other)
        z = torch.ones(64, 64)
        x.add_(other)  # one of y and z goes, and y was not used for longer
        assert run.memory.held <= run.memory.limit
    assert torch.equal(y, expected) and z.sum() == 64 * 64


def test_what_is_made_for_an_op_stays_while_the_rest_is_made() -> None:
    """All that goes meanwhile goes to the host: an op cannot wait for two that send each other away."""
    x, y = torch.rand(64, 64), torch.rand(64, 64)
    expected = x.exp() + y.cos()
    with demanded(ROOM) as run:
        a, b = x.exp(), y.cos()
        dropped(run, a, b)
        run.memory.limit, run.memory.peak = 48 * KIB, 0
        total = a + b
        assert run.memory.peak <= 48 * KIB and counted(run, "recomputed") == 2
    assert torch.equal(total, expected)


def test_what_needs_more_room_than_is_left_is_made_before_others_are_pinned() -> None:
    x, big = torch.rand(64, 64), torch.rand(96, 64)  # 16 and 24 KiB
    expected = torch.cat([x, x])
    with demanded(64 * KIB) as run:
        y = torch.cat([x, x])
        dropped(run, y)
        big.sum()
        assert big.numpy().shape == (96, 64)  # 48 of 64 are too many to make y from now on
        y.sum()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("read", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.tolist()])
def test_a_read_past_the_dispatcher_makes_it_first(read: Callable[[torch.Tensor], Any]) -> None:
    x = torch.rand(64, 64)
    with demanded(ROOM) as run:
        y = x.exp()
        dropped(run, y)
        found = read(y)
    assert torch.equal(torch.as_tensor(found), x.exp())


def test_a_file_has_what_was_dropped() -> None:
    x, file = torch.rand(64, 64), io.BytesIO()
    with demanded(ROOM) as run:
        y = x.exp()
        dropped(run, y)
        torch.save({"y": y}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["y"], x.exp())


@pytest.mark.parametrize("on_exit", ["device", "host"])
def test_leaving_brings_back_what_was_dropped(on_exit: str) -> None:
    x = torch.rand(64, 64)
    with demanded(ROOM, on_exit=on_exit) as run:
        y = x.exp()
        z = y.cos()
        dropped(run, y, z)
    assert there(y.untyped_storage()) and torch.equal(y, x.exp()) and torch.equal(z, x.exp().cos())


def test_what_is_written_between_two_runs_makes_nothing_again() -> None:
    x = torch.rand(64, 64)
    run = demanded(ROOM)
    with run:
        y = x.exp()
    expected = y.clone()
    x.add_(1)  # which nobody sees
    with run:
        assert is_kept(run, y)
    assert torch.equal(y, expected)
