"""Nets to learn from: of many families, each at three batches, by several optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import (
    Attention,
    Branches,
    Each,
    Embedded,
    F,
    Make,
    Recurrent,
    Residual,
    conv,
    head,
    image,
    labelled,
    tokens,
    trained,
    transformer,
    word_loss,
)
from benchmarks.latency.odd_nets import ODD

Layers = nn.Sequential


def mlp(*widths: int, act: type = nn.ReLU, norm: bool = False) -> nn.Module:
    """Linear layers."""
    between = [
        m for a, b in zip(widths, widths[1:-1])
        for m in (nn.Linear(a, b), *([nn.LayerNorm(b), nn.Dropout(0.1)] if norm else []), act())
    ]
    return Layers(*between, nn.Linear(widths[-2], widths[-1]))


def alexnet() -> nn.Module:
    """Large kernels, then linear layers."""
    return Layers(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(True), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(True),
        nn.MaxPool2d(3, 2), nn.Conv2d(192, 256, 3, padding=1), nn.ReLU(True), nn.Conv2d(256, 192, 3, padding=1),
        nn.ReLU(True), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(), nn.Linear(1728, 1024), nn.ReLU(True),
        nn.Dropout(), nn.Linear(1024, 10),
    )


def vgg(norm: bool) -> nn.Module:
    """Convolutions of 3 by 3."""
    layers: list[nn.Module] = []
    before = 3
    for width, count in ((32, 1), (64, 1), (128, 2), (256, 2)):
        for _ in range(count):
            layers += [conv(before, width) if norm else Layers(nn.Conv2d(before, width, 3, padding=1), nn.ReLU(True))]
            before = width
        layers.append(nn.MaxPool2d(2))
    return Layers(*layers, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))


def resnet18() -> nn.Module:
    """Basic blocks."""
    layers, before = [conv(3, 32)], 32
    for width, stride in ((32, 1), (64, 2), (128, 2), (256, 2)):
        for k in range(2):
            step = stride if k == 0 else 1
            skip = conv(before, width, 1, step, act=None) if before != width else None
            branch = Layers(conv(before, width, 3, step), conv(width, width, act=None))
            layers.append(Residual(branch, skip, act=True))  # type: ignore[arg-type]
            before = width
    return Layers(*layers, head(before))


def resnext() -> nn.Module:
    """Bottlenecks of grouped convolutions."""
    layers, before = [conv(3, 48)], 48
    for width, stride in ((96, 1), (192, 2), (384, 2)):
        for k in range(2):
            step, inner = stride if k == 0 else 1, width // 2
            branch = Layers(
                conv(before, inner, 1), conv(inner, inner, 3, step, inner // 12), conv(inner, width, 1, act=None)
            )
            layers.append(Residual(branch, conv(before, width, 1, step, act=None) if k == 0 else None, act=True))  # type: ignore[arg-type]
            before = width
    return Layers(*layers, head(before))


def preact() -> nn.Module:
    """Residuals whose norms come first, wide."""

    def block(a: int, b: int, stride: int) -> nn.Module:
        branch = Layers(
            nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 3, stride, 1, bias=False),
            nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1, bias=False),
        )
        return Residual(branch, nn.Conv2d(a, b, 1, stride) if a != b else None)

    blocks = [block(a, b, s) for a, b, s in ((20, 80, 1), (80, 80, 1), (80, 160, 2), (160, 160, 1), (160, 320, 2))]
    return Layers(nn.Conv2d(3, 20, 3, 1, 1), *blocks, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(320 * 4, 10))


def squeezenet() -> nn.Module:
    """Fire modules."""

    def fire(a: int, s: int, e: int) -> nn.Module:
        wide = (Layers(nn.Conv2d(s, e, k, padding=k // 2), nn.ReLU(True)) for k in (1, 3))
        return Layers(nn.Conv2d(a, s, 1), nn.ReLU(True), Branches(*wide))

    fires = [fire(64, 16, 64), fire(128, 16, 64), nn.MaxPool2d(3, 2), fire(128, 32, 128), fire(256, 48, 192)]
    return Layers(nn.Conv2d(3, 64, 3, 2), nn.ReLU(True), nn.MaxPool2d(3, 2), *fires, nn.Dropout(), head(384))


def inception() -> nn.Module:
    """Four branches a block."""

    def block(a: int, w: int) -> nn.Module:
        pool = Layers(nn.MaxPool2d(3, 1, 1), conv(a, w, 1))
        return Branches(
            conv(a, w, 1), Layers(conv(a, w, 1), conv(w, 2 * w)), Layers(conv(a, w // 2, 1), conv(w // 2, w, 5)), pool
        )

    return Layers(
        conv(3, 32, 3, 2), conv(32, 64), block(64, 24), block(120, 32), nn.MaxPool2d(3, 2, 1), block(160, 48), head(240)
    )


def shufflenet() -> nn.Module:
    """Grouped convolutions, channels shuffled between them."""

    def unit(a: int, b: int, stride: int) -> nn.Module:
        shuffle = Each(lambda x: x.view(len(x), 4, -1, *x.shape[2:]).transpose(1, 2).flatten(1, 2))
        branch = Layers(
            conv(a, b, 1, groups=4), shuffle, conv(b, b, 3, stride, b, act=None), conv(b, b, 1, groups=4, act=None)
        )
        return Residual(branch, act=True) if a == b and stride == 1 else branch

    units = [unit(32, 64, 2), unit(64, 64, 1), unit(64, 128, 2), unit(128, 128, 1), unit(128, 256, 2), unit(256, 256, 1)]
    return Layers(conv(3, 32), *units, head(256))


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Layers(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.SiLU(), nn.Conv2d(width // 4, width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x).sigmoid()


def efficientnet() -> nn.Module:
    """Depthwise convolutions, squeeze and excitation."""
    layers, before = [conv(3, 24, 3, 2, act=nn.SiLU)], 24
    for width, size, stride in ((24, 3, 1), (40, 5, 2), (40, 5, 1), (80, 3, 2), (80, 3, 1), (112, 5, 1)):
        inner = 4 * before
        branch = Layers(
            conv(before, inner, 1, act=nn.SiLU), conv(inner, inner, size, stride, inner, act=nn.SiLU),
            _Squeeze(inner), conv(inner, width, 1, act=None),
        )
        layers.append(Residual(branch) if before == width and stride == 1 else branch)  # type: ignore[arg-type]
        before = width
    return Layers(*layers, conv(before, 448, 1, act=nn.SiLU), head(448))


def mobilenet_v1() -> nn.Module:
    """Depthwise and pointwise convolutions in turn."""
    pairs = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    layers = [Layers(conv(a, a, 3, s, a), conv(a, b, 1)) for a, b, s in pairs]
    return Layers(conv(3, 32, 3, 2), *layers, head(512))


def convnext() -> nn.Module:
    """Depthwise convolutions of 7 by 7, linear layers over channels."""

    def block(w: int) -> nn.Module:
        swap, back = Each(lambda x: x.permute(0, 2, 3, 1)), Each(lambda x: x.permute(0, 3, 1, 2))
        inner = [nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w)]
        return Residual(Layers(nn.Conv2d(w, w, 7, padding=3, groups=w), swap, *inner, back))

    return Layers(
        nn.Conv2d(3, 48, 4, 4), block(48), block(48), nn.Conv2d(48, 96, 2, 2), block(96), block(96),
        nn.Conv2d(96, 192, 2, 2), block(192), head(192),
    )


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
        self.gate, self.up, self.down = (nn.Linear(*pair, bias=False) for pair in ((width, inner),) * 2 + ((inner, width),))

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


def texts(length: int, source: int, target: int) -> Any:
    """Batches of pairs of texts."""

    def batch(n: int) -> Sequence[torch.Tensor]:
        return torch.randint(source, (n, length)), torch.randint(target, (n, length)), torch.randint(target, (n, length))

    return batch


def flat(width: int, classes: int) -> Any:
    """Batches of vectors and labels."""
    return lambda n: (torch.randn(n, width), torch.randint(classes, (n,)))


ce = F.cross_entropy
LEARN: dict[str, tuple[Any, Any, Any, str, int]] = {
    "mlp": (partial(mlp, 784, 1024, 512, 10), flat(784, 10), ce, "sgd", 128),
    "mlp_deep": (partial(mlp, 256, *[384] * 6, 20, act=nn.Tanh, norm=True), flat(256, 20), ce, "adam", 192),
    "mlp_gelu": (partial(mlp, 512, 2048, 512, 100, act=nn.GELU), flat(512, 100), ce, "adamw", 64),
    "alexnet": (alexnet, image(112), ce, "momentum", 16),
    "vgg": (partial(vgg, False), image(32), ce, "sgd", 32),
    "vgg_bn": (partial(vgg, True), image(32), ce, "adam", 24),
    "resnet18": (resnet18, image(40), ce, "momentum", 12),
    "resnext": (resnext, image(32), ce, "sgd", 12),
    "preact": (preact, image(32), ce, "momentum", 8),
    "squeezenet": (squeezenet, image(96), ce, "rmsprop", 12),
    "inception": (inception, image(64), ce, "adam", 8),
    "shufflenet": (shufflenet, image(48), ce, "sgd", 16),
    "efficientnet": (efficientnet, image(80), ce, "rmsprop", 8),
    "mobilenet_v1": (mobilenet_v1, image(80), ce, "momentum", 12),
    "convnext": (convnext, image(64), ce, "adamw", 8),
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
    for name, (*given, batch) in (LEARN | ODD).items()
    for size in (batch // 2 + 1, batch, 2 * batch)
}
