"""Nets to learn from: signals, points, graphs, recommenders, and other losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import Each, F, Residual, conv

Layers = nn.Sequential


def tcn() -> nn.Module:
    """Dilated convolutions over time."""

    def block(a: int, b: int, d: int) -> nn.Module:
        branch = Layers(nn.Conv1d(a, b, 3, padding=d, dilation=d), nn.ReLU(), nn.Dropout(0.1), nn.Conv1d(b, b, 1))
        return Residual(branch, nn.Conv1d(a, b, 1) if a != b else None)

    blocks = [block(a, b, d) for a, b, d in ((8, 64, 1), (64, 64, 2), (64, 128, 4), (128, 128, 8))]
    return Layers(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 6))


class WaveNet(nn.Module):
    """Gated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 48, 1)
        self.gates = nn.ModuleList(nn.Conv1d(48, 96, 2, padding=2**k, dilation=2**k) for k in range(5))
        self.out = nn.Conv1d(48, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each moment."""
        y = self.first(x)
        for gate in self.gates:
            a, b = gate(y)[..., : y.shape[-1]].chunk(2, 1)
            y = y + torch.tanh(a) * torch.sigmoid(b)
        return self.out(F.relu(y))


def pointnet() -> nn.Module:
    """Points one by one, then their maximum."""
    layers = [
        m for a, b in ((3, 64), (64, 128), (128, 512)) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
    ]
    return Layers(*layers, Each(lambda x: x.max(-1)[0]), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class GCN(nn.Module):
    """Messages along edges, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 7)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return logits of each node."""
        for k, layer in enumerate(self.layers):
            h = layer(x)
            x = torch.zeros_like(h).index_add(0, edges[1], h.index_select(0, edges[0]))
            x = F.relu(x) if k < 2 else F.log_softmax(x, -1)
        return x


class NCF(nn.Module):
    """Users and items: a product of embeddings beside linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(6000, 64), nn.Embedding(4000, 64)
        self.layers, self.out = Layers(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()), nn.Linear(128, 1)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        u, i = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.out(torch.cat([u * i, self.layers(torch.cat([u, i], 1))], 1)).squeeze(1)


class WideDeep(nn.Module):
    """Bags of words beside dense features."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.wide = nn.EmbeddingBag(8000, 64, mode="mean"), nn.EmbeddingBag(8000, 16, mode="sum")
        self.deep = Layers(nn.Linear(64 + 20, 256), nn.ReLU(), nn.BatchNorm1d(256), nn.Linear(256, 64), nn.ReLU())
        self.out = nn.Linear(80, 5)

    def forward(self, words: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        deep = self.deep(torch.cat([self.bag(words), dense], 1))
        return self.out(torch.cat([deep, self.wide(words)], 1))


class Machines(nn.Module):
    """Factorisation machine: all pairs of fields interact."""

    def __init__(self) -> None:
        super().__init__()
        self.fields, self.out = nn.Embedding(10_000, 24), nn.Linear(66, 1)
        self.register_buffer("pairs", torch.triu_indices(12, 12, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        e = self.fields(x)
        products = torch.matmul(e, e.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.out(products)[:, 0]


class Reader(nn.Module):
    """Lines of text: convolutions, a recurrent layer, logits of each column."""

    def __init__(self) -> None:
        super().__init__()
        self.see = Layers(conv(1, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d((8, 1)))
        self.read, self.out = nn.GRU(128, 96, batch_first=True), nn.Linear(96, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return log probabilities, columns first."""
        y, _ = self.read(self.see(x).flatten(1, 2).transpose(1, 2))
        return F.log_softmax(self.out(y), -1).transpose(0, 1)


class Triplet(nn.Module):
    """Embeddings of length one, and their distances."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Layers(nn.Linear(256, 512), nn.SELU(), nn.Linear(512, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all similarities."""
        e = F.normalize(self.net(x), dim=-1)
        return (e @ e.t()) / 0.1


class Highway(nn.Module):
    """Gates between layers and what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.gates = (nn.ModuleList(nn.Linear(320, 320) for _ in range(4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's."""
        for layer, gate in zip(self.layers, self.gates):
            t = torch.sigmoid(gate(x))
            x = t * F.softplus(layer(x)) + (1 - t) * x
        return x


def _graph(n: int) -> Sequence[torch.Tensor]:
    return torch.randn(n, 64), torch.randint(n, (2, 8 * n)), torch.randint(7, (n,))


def _ctc(log: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    columns = torch.full((len(words),), len(log))
    return F.ctc_loss(log, words, columns, torch.full((len(words),), words.shape[1]))


ce = F.cross_entropy
ODD: dict[str, tuple[Any, Any, Any, str, int]] = {
    "tcn": (tcn, lambda n: (torch.randn(n, 8, 256), torch.randint(6, (n,))), ce, "adam", 24),
    "wavenet": (WaveNet, lambda n: (torch.randn(n, 1, 512), torch.randint(64, (n, 512))), ce, "sgd", 8),
    "pointnet": (pointnet, lambda n: (torch.randn(n, 3, 256), torch.randint(10, (n,))), ce, "adam", 16),
    "gcn": (GCN, _graph, F.nll_loss, "adam", 2000),
    "ncf": (
        NCF,
        lambda n: (torch.randint(4000, (n, 2)), torch.rand(n)),
        F.binary_cross_entropy_with_logits,
        "adagrad",
        512,
    ),
    "wide_deep": (
        WideDeep,
        lambda n: (torch.randint(8000, (n, 20)), torch.randn(n, 20), torch.randint(5, (n,))),
        ce,
        "sgd",
        256,
    ),
    "machines": (
        Machines,
        lambda n: (torch.randint(10_000, (n, 12)), torch.rand(n)),
        F.binary_cross_entropy_with_logits,
        "adam",
        256,
    ),
    "reader": (Reader, lambda n: (torch.randn(n, 1, 32, 64), torch.randint(1, 30, (n, 10))), _ctc, "adam", 12),
    "triplet": (Triplet, lambda n: (torch.randn(n, 256), torch.arange(n)), ce, "momentum", 192),
    "highway": (Highway, lambda n: (torch.randn(n, 320), torch.randn(n, 320)), F.huber_loss, "rmsprop", 160),
}
