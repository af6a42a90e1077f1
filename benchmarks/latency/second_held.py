"""The second eight nets that are held out whole: written when the first had been judged by, before any was measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import Embedded, F, Make, Residual, conv, head, image, texts, tokens, trained, word_loss

Layers = nn.Sequential


class _Gate(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Layers(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.gate(x))


def regnet() -> nn.Module:
    """Grouped bottlenecks of one width, with gates: RegNetY."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2)]
    before = 32
    for width, count in ((72, 1), (168, 3), (408, 4)):
        for k in range(count):
            step = 2 if k == 0 else 1
            branch = Layers(
                conv(before, width, 1),
                conv(width, width, 3, step, width // 24),
                _Gate(width),
                conv(width, width, 1, act=None),
            )
            layers.append(Residual(branch, conv(before, width, 1, step, act=None) if k == 0 else None, act=True))
            before = width
    return Layers(*layers, head(before))


def xception() -> nn.Module:
    """Separable convolutions: depthwise, then pointwise."""

    def separable(a: int, b: int) -> Layers:
        return Layers(
            nn.ReLU(), nn.Conv2d(a, a, 3, 1, 1, groups=a, bias=False), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)
        )

    def block(a: int, b: int) -> nn.Module:
        return Residual(Layers(separable(a, b), separable(b, b), nn.MaxPool2d(3, 2, 1)), nn.Conv2d(a, b, 1, 2))

    middle = [Residual(Layers(separable(364, 364), separable(364, 364), separable(364, 364))) for _ in range(2)]
    return Layers(
        conv(3, 32, 3, 2), conv(32, 64), block(64, 128), block(128, 364), *middle, separable(364, 728), head(728)
    )


class DeepLab(nn.Module):
    """A backbone without its last strides, and dilated convolutions side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.see = Layers(conv(3, 32, 3, 2), conv(32, 64, 3, 2), conv(64, 128), conv(128, 256))
        self.sides = nn.ModuleList(
            [nn.Conv2d(256, 64, 1), *(nn.Conv2d(256, 64, 3, padding=d, dilation=d) for d in (2, 4, 6))]
        )
        self.out = Layers(conv(256, 64, 1), nn.Conv2d(64, 12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each pixel."""
        y = self.see(x)
        y = self.out(torch.cat([F.relu(side(y)) for side in self.sides], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class _Heads(nn.Module):
    """Attention to words, or to other words, with fewer heads of keys and values."""

    def __init__(self, width: int, heads: int, shared: int = 1, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.shared, self.causal = heads, shared, causal
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * width // shared, bias=False)
        self.bias: Any = None

    def forward(self, x: torch.Tensor, to: torch.Tensor | None = None) -> torch.Tensor:
        to = x if to is None else to
        n, length, width = x.shape
        each = width // self.heads
        q = self.q(x).view(n, length, self.heads, each).transpose(1, 2)
        k, v = self.kv(to).view(n, to.shape[1], 2, self.heads // self.shared, each).permute(2, 0, 3, 1, 4)
        if self.shared > 1:
            k, v = (y.repeat_interleave(self.shared, 1) for y in (k, v))
        weights = q @ k.transpose(-1, -2) / each**0.5
        if self.causal:
            weights = weights.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -1e9)
        return self.out((weights.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width))


def _ahead(width: int, inner: int, act: type = nn.ReLU) -> nn.Module:
    return Residual(
        Layers(nn.RMSNorm(width), nn.Linear(width, inner, bias=False), act(), nn.Linear(inner, width, bias=False))
    )


class T5(nn.Module):
    """An encoder, and a decoder that attends to it; attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(4000, 192), nn.Linear(192, 4000, bias=False)
        self.read = nn.ModuleList(
            Layers(Residual(Layers(nn.RMSNorm(192), _Heads(192, 6))), _ahead(192, 768)) for _ in range(3)
        )
        self.write = nn.ModuleList(
            nn.ModuleList([_Heads(192, 6, causal=True), _Heads(192, 6), nn.RMSNorm(192), _ahead(192, 768)])
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x, y = self.words(x), self.words(y)
        for layer in self.read:
            x = layer(x)
        for own, other, norm, ahead in self.write:  # type: ignore[misc]
            y = y + own(norm(y))
            y = ahead(y + other(norm(y), x))
        return self.out(y)


def decoder() -> nn.Module:
    """A decoder whose heads share keys and values."""
    layers = [
        Layers(Residual(Layers(nn.RMSNorm(320), _Heads(320, 8, 4, causal=True))), _ahead(320, 880, nn.SiLU))
        for _ in range(3)
    ]
    return Embedded(6000, 72, 320, Layers(*layers, nn.RMSNorm(320)))


class Conformer(nn.Module):
    """Speech: attention and gated convolutions over time in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(40, 160, 3, 2, 1)
        self.attend = nn.ModuleList(Layers(nn.LayerNorm(160), _Heads(160, 4)) for _ in range(3))
        self.ahead = nn.ModuleList(_ahead(160, 640, nn.SiLU) for _ in range(3))
        self.turn = nn.ModuleList(
            Layers(
                nn.Conv1d(160, 320, 1),
                nn.GLU(1),
                nn.Conv1d(160, 160, 15, padding=7, groups=160),
                nn.BatchNorm1d(160),
                nn.SiLU(),
                nn.Conv1d(160, 160, 1),
            )
            for _ in range(3)
        )
        self.out = nn.Linear(160, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each moment."""
        y = self.first(x).transpose(1, 2)
        for attend, ahead, turn in zip(self.attend, self.ahead, self.turn):
            y = ahead(y + attend(y))
            y = y + turn(y.transpose(1, 2)).transpose(1, 2)
        return self.out(y)


class GruAttention(nn.Module):
    """A GRU reads, another writes and attends to what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(2500, 160), nn.Embedding(2500, 160)
        self.read = nn.GRU(160, 224, batch_first=True)
        self.write, self.out = nn.GRU(160, 224, batch_first=True), nn.Linear(448, 2500)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        keys, last = self.read(self.source(x))
        states, _ = self.write(self.target(y), last)
        weights = torch.bmm(states, keys.transpose(1, 2)).softmax(-1)
        return self.out(torch.cat([states, torch.bmm(weights, keys)], -1))


class Crossing(nn.Module):
    """Embeddings through cross layers beside linear ones: DCN."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.Embedding(20_000, 24)
        self.cross = nn.ModuleList(nn.Linear(384, 384) for _ in range(3))
        self.deep = Layers(nn.Linear(384, 320), nn.ReLU(), nn.Linear(320, 160), nn.ReLU())
        self.out = nn.Linear(544, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        first = y = self.fields(x).flatten(1)
        for cross in self.cross:
            y = first * cross(y) + y
        return self.out(torch.cat([y, self.deep(first)], 1)).squeeze(1)


ce = F.cross_entropy
NETS: dict[str, Make] = {
    "regnet": trained(regnet, image(72), ce, "momentum", 10),
    "xception": trained(xception, image(72), ce, "rmsprop", 6),
    "deeplab": trained(DeepLab, lambda n: (torch.randn(n, 3, 96, 96), torch.randint(12, (n, 96, 96))), ce, "adam", 3),
    "conformer": trained(
        Conformer, lambda n: (torch.randn(n, 40, 160), torch.randint(50, (n, 80))), word_loss, "adamw", 6
    ),
    "t5": trained(T5, texts(48, 4000, 4000), word_loss, "adam", 6),
    "decoder": trained(decoder, tokens(72, 6000), word_loss, "adamw", 4),
    "gru_attention": trained(GruAttention, texts(32, 2500, 2500), word_loss, "sgd", 16),
    "dcn": trained(
        Crossing,
        lambda n: (torch.randint(20_000, (n, 16)), torch.rand(n)),
        F.binary_cross_entropy_with_logits,
        "adagrad",
        256,
    ),
}
