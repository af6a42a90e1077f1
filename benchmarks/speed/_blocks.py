"""The net whose step `_growing.blocks` restates: plain blocks of a transformer and AdamW. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind a norm."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def make(blocks: int) -> Callable[[], None]:
    """One iteration of training."""
    net = nn.Sequential(*[Block() for _ in range(blocks)])
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 512, 256)).square().mean().backward()
        optimizer.step()

    return step
