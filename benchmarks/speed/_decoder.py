"""A decoder of seven billion parameters, in the form of LLaMA 7B, with Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, HIDDEN, HEADS, BLOCKS = 32_000, 4096, 11_008, 32, 32


class Block(nn.Module):
    """Attention with rotated queries and keys, and a gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Any, angle: Any) -> Any:
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(turned(q, angle), turned(k, angle), v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def turned(x: Any, angle: Any) -> Any:
    """Rotate pairs of features by their place's angle."""
    left, right = x.chunk(2, 3)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], 3)


class Decoder(nn.Module):
    """Takes words, returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Any) -> Any:
        half = WIDTH // HEADS // 2
        angle = torch.arange(words.shape[1])[:, None] * 10_000 ** (-torch.arange(half) / half)
        x = self.words(words)
        for block in self.blocks:
            x = block(x, angle)
        return self.head(self.norm(x))


def make(batch: int = 1, words: int = 2048) -> Callable[[], None]:
    """One iteration of training in single precision, parameter by parameter."""
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        text = torch.randint(WORDS, (batch, words + 1))
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
