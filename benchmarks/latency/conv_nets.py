"""Nets to learn from: convolutional classifiers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.latency.blocks import Branches, Each, F, Residual, conv, head, image

Layers = nn.Sequential


def alexnet() -> nn.Module:
    """Large kernels, then linear layers."""
    return Layers(
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 256, 3, padding=1),
        nn.ReLU(True),
        nn.Conv2d(256, 192, 3, padding=1),
        nn.ReLU(True),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(1728, 1024),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(1024, 10),
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
            nn.BatchNorm2d(a),
            nn.ReLU(),
            nn.Conv2d(a, b, 3, stride, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.Conv2d(b, b, 3, 1, 1, bias=False),
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

    units = [
        unit(32, 64, 2),
        unit(64, 64, 1),
        unit(64, 128, 2),
        unit(128, 128, 1),
        unit(128, 256, 2),
        unit(256, 256, 1),
    ]
    return Layers(conv(3, 32), *units, head(256))


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Layers(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.SiLU(), nn.Conv2d(width // 4, width, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x).sigmoid()


def efficientnet() -> nn.Module:
    """Depthwise convolutions, squeeze and excitation."""
    layers, before = [conv(3, 24, 3, 2, act=nn.SiLU)], 24
    for width, size, stride in ((24, 3, 1), (40, 5, 2), (40, 5, 1), (80, 3, 2), (80, 3, 1), (112, 5, 1)):
        inner = 4 * before
        branch = Layers(
            conv(before, inner, 1, act=nn.SiLU),
            conv(inner, inner, size, stride, inner, act=nn.SiLU),
            _Squeeze(inner),
            conv(inner, width, 1, act=None),
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
        nn.Conv2d(3, 48, 4, 4),
        block(48),
        block(48),
        nn.Conv2d(48, 96, 2, 2),
        block(96),
        block(96),
        nn.Conv2d(96, 192, 2, 2),
        block(192),
        head(192),
    )


ce = F.cross_entropy
CONVOLUTIONAL: dict[str, tuple[Any, Any, Any, str, int]] = {
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
}
