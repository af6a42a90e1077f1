"""Sizes that depend on values: as on the host where these are known, refused or as told where the net computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpumem.torch import Captured, WorkloadError, record

Body = Callable[[torch.Tensor, torch.Tensor], Any]


def recorded(body: Body, device: str, **how: Any) -> Captured:
    """Record a step that trains on what `body(features, labels)` returns."""

    def make(device: str) -> Callable[[], None]:
        net = nn.Linear(8, 4, device=device)
        labels = torch.tensor([0, 1, 3, 1, -1, 0, 0, 2], device=device)

        def step() -> None:
            body(net(torch.randn(8, 8, device=device)), labels).sum().backward()

        return step

    return record(make, device, **how)


def described(captured: Captured) -> list[Any]:
    """Names of the ops, and the sizes of what they read and write."""
    ops, size = captured.trace.ops, captured.trace.buffers.size
    return [
        (name, sorted(size[ops.reads[i]].tolist()), sorted(size[ops.writes[i]].tolist()))
        for i, name in enumerate(ops.name)
    ]


def packed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([4, 3], device="cpu")
    return nn.utils.rnn.pack_padded_sequence(x.reshape(2, 4, 4), lengths, batch_first=True).data


def put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(x)
    made[y > 0] = x[y > 0]
    return made


def ctc(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    log_probs = x.reshape(8, 1, 4).log_softmax(-1)
    return F.ctc_loss(log_probs, y[1:4].reshape(1, 3), torch.tensor([8]), torch.tensor([2]))


KNOWN: dict[str, Body] = {
    "index": lambda x, y: x[y >= 0],
    "index of two": lambda x, y: x[y >= 0, :][:, torch.tensor([True, False, True, True], device=y.device)],
    "mask of all": lambda x, y: x[(y >= 0)[:, None].expand(8, 4)],
    "nonzero": lambda x, y: x[(y > 0).nonzero().squeeze(1)],
    "where": lambda x, y: x[torch.where(y == 1)[0]],
    "masked_select": lambda x, y: x.masked_select((y > 0)[:, None]),
    "unique": lambda x, y: x[: y.unique().numel()],
    "unique with counts": lambda x, y: x[: int(torch.unique(y, return_counts=True)[1].max())],
    "unique_consecutive": lambda x, y: x[: torch.unique_consecutive(y).numel()],
    "repeat_interleave": lambda x, y: x.repeat_interleave(y.clamp(min=0), 0),
    "bincount": lambda x, y: x[: torch.bincount(y[y >= 0]).numel()],
    "put": put,
    "ignored labels": lambda x, y: F.cross_entropy(x[y >= 0], y[y >= 0]),
    "ctc": ctc,
    "item": lambda x, y: x[: int(y.max())],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_sizes_are_those_on_the_host(name: str) -> None:
    mine, theirs = recorded(KNOWN[name], "meta"), recorded(KNOWN[name], "cpu")
    assert not mine.assumptions
    assert described(mine) == described(theirs)


def test_packed_sequences() -> None:
    """But for the lengths and the sizes of the batches, which are on the host."""
    hosts = "empty.memory_format"
    mine, theirs = ([row for row in described(recorded(packed, d)) if row[0] != hosts] for d in ("meta", "cpu"))
    assert mine[2] == ("_pack_padded_sequence.default", [128], [112])
    assert theirs[2] == ("_pack_padded_sequence.default", [16, 128], [32, 112])
    assert [row[0] for row in mine] == [row[0] for row in theirs]


def experts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Two of four for each row, in a loop over the experts."""
    chosen = F.one_hot(x.softmax(-1).topk(2, -1).indices, 4)
    found = [x[torch.where(chosen[:, :, k].sum(1))[0]] for k in range(4)]
    return torch.cat([rows * (1 + k) for k, rows in enumerate(found) if rows.numel()])


LEARNED: dict[str, tuple[Body, dict[str, int]]] = {  # how many rows there are, by what is assumed
    "mask": (lambda x, y: x[x[:, 0] > 0.5], {"balanced": 4, "worst": 8}),
    "nonzero": (lambda x, y: x[(x[:, 0] > 0.5).nonzero()[:, 0]], {"balanced": 4, "worst": 8}),
    "class": (lambda x, y: x[x.argmax(-1) == 0], {"balanced": 2, "worst": 8}),
    "experts": (experts, {"balanced": 16, "worst": 16}),
    "unique": (lambda x, y: x[: x.argmax(-1).unique().numel()], {"balanced": 4, "worst": 1}),
}


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("assume", ["balanced", "worst"])
def test_sizes_that_the_net_computes_are_as_told(name: str, assume: str) -> None:
    body, rows = LEARNED[name]
    seen = []

    def watched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = body(x, y)
        seen.append(made.shape[0])
        return made

    with pytest.raises(WorkloadError, match=r"test_sizes.py, line .* depends on what the net computes; say"):
        recorded(body, "meta")
    found = recorded(watched, "meta", assume=assume)
    assert seen == [rows[assume]] * 3
    assert found.assumptions and {one.answer for one in found.assumptions} == {assume}


def test_balanced_experts_take_turns_and_the_worst_take_all() -> None:
    seen: list[list[int]] = []

    def counted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chosen = x.topk(2, -1).indices
        seen.append([int((chosen == k).sum()) for k in range(4)])
        return x

    for assume, counts in (("balanced", [4] * 4), ("worst", [8, 8, 0, 0])):
        recorded(counted, "meta", assume=assume, iterations=1, warmup=0)
        assert seen.pop() == counts
