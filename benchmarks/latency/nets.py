"""Nets to learn from: of many families, each at three batches, by several optimizers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import (
    Attention,
    Embedded,
    F,
    Make,
    Recurrent,
    Residual,
    image,
    labelled,
    texts,
    tokens,
    trained,
    transformer,
    word_loss,
)
from benchmarks.latency.conv_nets import CONVOLUTIONAL
from benchmarks.latency.image_nets import IMAGES
from benchmarks.latency.odd_nets import ODD

Layers = nn.Sequential


def mlp(*widths: int, act: type = nn.ReLU, norm: bool = False) -> nn.Module:
    """Linear layers."""
    between = [
        m
        for a, b in pairwise(widths[:-1])
        for m in (nn.Linear(a, b), *([nn.LayerNorm(b), nn.Dropout(0.1)] if norm else []), act())
    ]
    return Layers(*between, nn.Linear(widths[-2], widths[-1]))


class Mixer(nn.Module):
    """Linear layers over patches and over channels in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.layers, self.out = nn.ModuleList(self._layer() for _ in range(4)), nn.Linear(128, 10)

    def _layer(self) -> nn.ModuleList:
        across = Layers(nn.Linear(36, 64), nn.GELU(), nn.Linear(64, 36))
        return nn.ModuleList([nn.LayerNorm(128), across, nn.LayerNorm(128), mlp(128, 512, 128, act=nn.GELU)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        for norm, across, other, within in self.layers:  # type: ignore[misc]
            x = x + across(norm(x).transpose(1, 2)).transpose(1, 2)
            x = x + within(other(x))
        return self.out(x.mean(1))


def bert(width: int, heads: int, words: int, length: int, layers: int) -> nn.Module:
    """PyTorch's own encoder layers."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True)
    inner = Layers(nn.LayerNorm(width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))
    return Embedded(words, length, width, inner)


class Translator(nn.Module):
    """PyTorch's own transformer from one language to another."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(2000, 128), nn.Embedding(3000, 128)
        self.inner = nn.Transformer(128, 4, 2, 2, 384, batch_first=True)
        self.out = nn.Linear(128, 3000)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        return self.out(self.inner(self.source(x), self.target(y), tgt_mask=mask))


class _Swiglu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(*pair, bias=False) for pair in ((width, inner),) * 2 + ((inner, width),)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def llama(width: int, layers: int, words: int, length: int) -> nn.Module:
    """RMS norms, rotary places, gated layers."""
    each = [
        Layers(
            Residual(Layers(nn.RMSNorm(width), Attention(width, width // 32, causal=True, rotary=True))),
            Residual(Layers(nn.RMSNorm(width), _Swiglu(width, 5 * width // 2))),
        )
        for _ in range(layers)
    ]
    return Embedded(words, length, width, Layers(*each, nn.RMSNorm(width)))


def encoder(width: int, length: int, words: int) -> nn.Module:
    """Attention with all words, norms first."""
    return Embedded(words, length, width, Layers(transformer(width, 4), transformer(width, 4), nn.LayerNorm(width)))


def bi(layer: type, width: int, hidden: int, words: int, out: int, *, last: bool = False) -> nn.Module:
    """Recurrent layers in both directions."""
    inner = layer(width, hidden, batch_first=True, bidirectional=True)
    return Recurrent(words, width, out, inner, last=last, hidden=2 * hidden)


def flat(width: int, classes: int) -> Any:
    """Batches of vectors and labels."""
    return lambda n: (torch.randn(n, width), torch.randint(classes, (n,)))


ce = F.cross_entropy
LEARN: dict[str, tuple[Any, Any, Any, str, int]] = {
    "mlp": (partial(mlp, 784, 1024, 512, 10), flat(784, 10), ce, "sgd", 128),
    "mlp_deep": (partial(mlp, 256, *[384] * 6, 20, act=nn.Tanh, norm=True), flat(256, 20), ce, "adam", 192),
    "mlp_gelu": (partial(mlp, 512, 2048, 512, 100, act=nn.GELU), flat(512, 100), ce, "adamw", 64),
    "mixer": (Mixer, image(48), ce, "foreach", 24),
    "bert": (partial(bert, 192, 6, 3000, 64, 3), tokens(64, 3000), word_loss, "adamw", 6),
    "bert_wide": (partial(bert, 320, 5, 1500, 48, 2), tokens(48, 1500), word_loss, "adam", 6),
    "translator": (Translator, texts(40, 2000, 3000), word_loss, "adam", 8),
    "llama": (partial(llama, 192, 3, 4000, 80), tokens(80, 4000), word_loss, "adamw", 4),
    "llama_small": (partial(llama, 128, 4, 2000, 128), tokens(128, 2000), word_loss, "foreach", 4),
    "encoder": (partial(encoder, 224, 56, 2500), tokens(56, 2500), word_loss, "sgd", 8),
    "encoder_long": (partial(encoder, 128, 200, 1000), tokens(200, 1000), word_loss, "adamw", 4),
    "bilstm": (partial(bi, nn.LSTM, 128, 160, 2000, 40), tokens(40, 40), word_loss, "adam", 16),
    "gru": (partial(bi, nn.GRU, 128, 128, 3000, 8, last=True), labelled(32, 3000, 8), ce, "adagrad", 24),
    "rnn": (partial(bi, nn.RNN, 96, 192, 1000, 1000), tokens(24, 1000), word_loss, "rmsprop", 16),
}
NETS: dict[str, Make] = {
    f"{name}_b{size}": trained(*given, size)
    for name, (*given, batch) in (LEARN | CONVOLUTIONAL | IMAGES | ODD).items()
    for size in (batch // 2 + 1, batch, 2 * batch)
}
