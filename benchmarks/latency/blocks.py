"""What the nets are made of, and how one is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Make = Callable[..., Callable[[], None]]
F = nn.functional


def trained(
    build: Callable[[], nn.Module],
    inputs: Callable[[int], Sequence[Any]],
    loss: Callable[..., Any],
    how: str,
    batch: int,
) -> Make:
    """Return a workload: it trains a net on one batch, by the optimizer `how`."""

    def make(batch: int = batch) -> Callable[[], None]:
        torch.manual_seed(0)
        net = build().train()
        *given, target = inputs(batch)
        optimizer = OPTIMIZERS[how](net.parameters())

        def step() -> None:
            loss(net(*given), target).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return make


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-4),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True),
}


def image(size: int, classes: int = 10, channels: int = 3) -> Callable[[int], Sequence[Any]]:
    """A batch of images and their labels."""
    return lambda n: (torch.randn(n, channels, size, size), torch.randint(classes, (n,)))


def tokens(length: int, words: int) -> Callable[[int], Sequence[Any]]:
    """A batch of texts, and of the words to predict."""
    return lambda n: (torch.randint(words, (n, length)), torch.randint(words, (n, length)))


def labelled(length: int, words: int, classes: int) -> Callable[[int], Sequence[Any]]:
    """A batch of texts and a label of each."""
    return lambda n: (torch.randint(words, (n, length)), torch.randint(classes, (n,)))


def texts(length: int, source: int, target: int) -> Any:
    """Batches of pairs of texts."""

    def batch(n: int) -> Sequence[torch.Tensor]:
        return (
            torch.randint(source, (n, length)),
            torch.randint(target, (n, length)),
            torch.randint(target, (n, length)),
        )

    return batch


def word_loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each word."""
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def conv(
    before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1, act: type | None = nn.ReLU
) -> nn.Sequential:
    """A convolution, batch norm, an activation."""
    layers = [nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, *([act()] if act else []))


def head(width: int, classes: int = 10) -> nn.Sequential:
    """Global pooling and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Residual(nn.Module):
    """A branch, added to what comes in."""

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None, act: bool = False) -> None:
        super().__init__()
        self.branch, self.skip, self.act = branch, skip or nn.Identity(), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        y = self.branch(x) + self.skip(x)
        return F.relu(y) if self.act else y


class Each(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        """Call it."""
        return self.function(*x)


class Branches(nn.Module):
    """Branches side by side, their channels joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Join what they make."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=not rotary), nn.Linear(width, width, bias=not rotary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = _rotated(q), _rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


def _rotated(x: torch.Tensor) -> torch.Tensor:
    length, width = x.shape[-2:]
    angle = torch.outer(torch.arange(length), 10_000 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def transformer(width: int, heads: int, *, causal: bool = False) -> nn.Sequential:
    """A layer with its norms first."""
    attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal=causal))
    forward = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return nn.Sequential(Residual(attention), Residual(forward))


class Embedded(nn.Module):
    """Words and their places, then layers, then a logit for each word."""

    def __init__(self, words: int, length: int, width: int, layers: nn.Module, *, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(1, length, width))
        self.layers, self.out = layers, nn.Linear(width, words, bias=False)
        if tied:
            self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.out(self.layers(self.words(x) + self.places[:, : x.shape[1]]))


class Recurrent(nn.Module):
    """Words through recurrent layers."""

    def __init__(self, words: int, width: int, out: int, layer: nn.Module, *, last: bool, hidden: int) -> None:
        super().__init__()
        self.words, self.layer, self.out, self.last = nn.Embedding(words, width), layer, nn.Linear(hidden, out), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits: of each word, or of the text."""
        y, _ = self.layer(self.words(x))
        return self.out(y[:, -1] if self.last else y)
