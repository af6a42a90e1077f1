"""A trace at another batch size is what is recorded at that size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn import functional as F

from gpumem import Trace
from gpumem.torch import capture
from gpumem.trace.batch import rebatch

SMALL, LARGE = 13, 37  # no other dimension is a multiple of either


class Attention(nn.Module):
    """With positions and a mask, which no sample has of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 16), nn.Embedding(5, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x.argmax(-1)) + self.places(torch.arange(5))
        mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        return self.block(h, src_mask=mask).mean(1)


class Cells(nn.Module):
    """Two LSTM layers over three steps; the batch is the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(5, 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(x.transpose(0, 1))[0][-1]


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)), (6,)),
    "conv": (conv, (3, 8, 8)),
    "attention": (Attention, (5, 11)),
    "lstm": (Cells, (3, 5)),
}


def training(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[..., Callable[[], None]]:
    def make(batch: int) -> Callable[[], None]:
        net = build()
        optimizer = torch.optim.AdamW(net.parameters())

        def step() -> None:
            labels = torch.zeros(batch, dtype=torch.long)
            F.cross_entropy(net(torch.randn(batch, *shape)), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


def agrees(found: Trace, recorded: Trace) -> None:
    a, b = found.buffers, recorded.buffers
    assert found.ops.name == recorded.ops.name and a.kind == b.kind and a.shape == b.shape
    for x, y in ((a.size, b.size), (a.start, b.start), (a.end, b.end), (found.ops.flops, recorded.ops.flops)):
        np.testing.assert_array_equal(x, y)
    assert found.ops.reads.tolist() == recorded.ops.reads.tolist()
    assert found.ops.writes.tolist() == recorded.ops.writes.tolist()


@pytest.mark.parametrize("name", NETS)
def test_it_is_what_is_recorded_at_that_size(name: str) -> None:
    make = training(*NETS[name])
    small, large = (capture(make, batch=batch) for batch in (SMALL, LARGE))
    for a, b, factor, batch in ((small, large, LARGE / SMALL, SMALL), (large, small, SMALL / LARGE, LARGE)):
        found = rebatch(a, factor, batch=batch)
        agrees(found, b)
        np.testing.assert_allclose(found.ops.moved, b.ops.moved, rtol=0.25)
        assert found.ops.moved.sum() == pytest.approx(b.ops.moved.sum(), rel=0.03)
    blind = rebatch(small, LARGE / SMALL)
    assert (blind.buffers.size >= large.buffers.size).all()  # kinds alone take too large what does not grow
    assert large.peak_live_bytes <= blind.peak_live_bytes <= 1.25 * large.peak_live_bytes


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": nn.Linear,
    "normal": lambda a, b: nn.Sequential(nn.LayerNorm(a), nn.Linear(a, b, bias=False)),
    "batch": lambda a, b: nn.Sequential(nn.BatchNorm1d(a), nn.GELU(), nn.Linear(a, b)),
    "dropped": lambda a, b: nn.Sequential(nn.Dropout(0.2), nn.Tanh(), nn.Linear(a, b)),
}


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    st.lists(st.integers(2, 12), min_size=5, max_size=5),
    st.sampled_from([17, 29]),
)
def test_small_nets(layers: list[str], widths: list[int], batch: int) -> None:
    def build() -> nn.Module:
        return nn.Sequential(*(LAYERS[kind](a, b) for kind, a, b in zip(layers, widths, widths[1:])))

    make: Any = training(build, (widths[0],))
    agrees(rebatch(capture(make, batch=SMALL), batch / SMALL, batch=SMALL), capture(make, batch=batch))
