"""Small workloads for the tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def mlp3(batch: int = 128) -> Any:
    """The bundled trace `mlp3`, as its file was made."""
    net = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        x, y = torch.empty(batch, 784), torch.empty(batch, dtype=torch.int64)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.BatchNorm2d(m)
        self.conv2, self.bn2 = nn.Conv2d(m, m, 3, 1, 1, bias=False), nn.BatchNorm2d(m)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Conv2d(n, m, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
    """A ResNet of two blocks; takes (batch, 3, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.layer1, self.layer2 = Residual(4, 4, 1), Residual(4, 8, 2)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 10))

    def forward(self, x: Any) -> Any:
        return self.head(self.layer2(self.layer1(self.stem(x))))


class UNet(nn.Module):
    """A U-Net of one level, with a skip connection; takes (batch, 3, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Dropout2d(0.1))
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 10, 1)

    def forward(self, x: Any) -> Any:
        left = self.down(x)
        return self.out(torch.cat([left, self.up(self.middle(left))], 1)).mean((2, 3))


class Lstm(nn.Module):
    """An LSTM of two layers over 4 steps of 6 features."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    """A block of GPT-2."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.out = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n), nn.Dropout(0.1))

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """GPT-2 of two blocks, with tied embeddings; `again` makes each block again in the backward pass."""

    def __init__(self, n: int = 8, words: int = 10, again: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, n), nn.Embedding(6, n)
        self.blocks = nn.ModuleList(Attention(n, 2) for _ in range(2))
        self.ln, self.head, self.again = nn.LayerNorm(n), nn.Linear(n, words, bias=False), again
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        x = F.dropout(self.words(x) + self.places.weight, 0.1, self.training)
        for block in self.blocks:
            x = block(x) if self.again is None else checkpoint(block, x, **self.again)
        return self.head(self.ln(x))[:, -1]


REENTRANT, NOT_REENTRANT = ({"use_reentrant": flag} for flag in (True, False))
NETS: dict[str, Callable[[], nn.Module]] = {"resnet": ResNet, "unet": UNet, "lstm": Lstm, "gpt": Gpt}
SHAPES: dict[str, tuple[int, ...]] = {"resnet": (3, 8, 8), "unet": (3, 8, 8), "lstm": (4, 6)}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False),
    "adam": partial(torch.optim.Adam, lr=1e-2, foreach=False),
    "adamw": partial(torch.optim.AdamW, lr=1e-2, foreach=True),
}


def data(net: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random batch for a net: what it takes, and the classes."""
    x = torch.randn(batch, *SHAPES[net]) if net in SHAPES else torch.randint(10, (batch, 6))
    return x, torch.randint(10, (batch,))
