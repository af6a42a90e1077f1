"""The first eight nets that are held out whole, chosen before anything was measured.

None of these architectures is among the nets to learn from (`nets.py`); that has others of their families.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.latency.blocks import (
    Embedded,
    F,
    Make,
    Recurrent,
    Residual,
    conv,
    head,
    image,
    tokens,
    trained,
    transformer,
    word_loss,
)


def resnet50() -> nn.Module:
    """Bottlenecks, as ResNet-50 has them."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            step = stride if k == 0 else 1
            branch = nn.Sequential(
                conv(before, width, 1), conv(width, width, 3, step), conv(width, 4 * width, 1, act=None)
            )
            skip = conv(before, 4 * width, 1, step, act=None) if k == 0 else None
            layers.append(Residual(branch, skip, act=True))
            before = 4 * width
    return nn.Sequential(*layers, head(before))


def mobilenet_v2() -> nn.Module:
    """Inverted residuals."""
    layers, before = [conv(3, 32, 3, 2, act=nn.ReLU6)], 32
    for factor, width, count, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for k in range(count):
            step, inner = stride if k == 0 else 1, factor * before
            wide = [conv(before, inner, 1, act=nn.ReLU6)] if factor > 1 else []
            branch = nn.Sequential(
                *wide, conv(inner, inner, 3, step, inner, act=nn.ReLU6), conv(inner, width, 1, act=None)
            )
            layers.append(Residual(branch) if before == width and step == 1 else branch)  # type: ignore[arg-type]
            before = width
    return nn.Sequential(*layers, conv(before, 1280, 1, act=nn.ReLU6), head(1280))


class _Dense(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(),
            nn.Conv2d(before, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.branch(x)], 1)


def densenet() -> nn.Module:
    """Dense blocks, as DenseNet-BC has them."""
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 3, padding=1, bias=False)]
    width, growth = 48, 24
    for k, count in enumerate((6, 8, 8)):
        layers += [_Dense(width + i * growth, growth) for i in range(count)]
        width += count * growth
        if k < 2:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), head(width))


class UNet(nn.Module):
    """Four levels, joined on the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (24, 48, 96, 192)

        def twice(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(*(m for c in (a, b) for m in (nn.Conv2d(c, b, 3, padding=1), nn.ReLU())))

        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *widths), widths))
        pairs = [*zip(widths[:0:-1], widths[-2::-1])]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(twice(a, b) for a, b in pairs)
        self.out = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one channel."""
        left = []
        for k, level in enumerate(self.down):
            x = level(F.max_pool2d(x, 2) if k else x)
            left.append(x)
        left.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([left.pop(), up(x)], 1))
        return self.out(x)


class ViT(nn.Module):
    """Patches through a transformer, classified by a token of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 192, 8, 8), nn.Parameter(torch.zeros(1, 1, 192))
        self.places = nn.Parameter(torch.zeros(1, 65, 192))
        self.layers, self.out = nn.Sequential(*(transformer(192, 3) for _ in range(6))), nn.Linear(192, 10)
        self.norm = nn.LayerNorm(192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.out(self.norm(self.layers(x))[:, 0])


def gpt() -> nn.Module:
    """A decoder whose logits use the words' embedding."""
    layers = nn.Sequential(*(transformer(256, 4, causal=True) for _ in range(4)), nn.LayerNorm(256))
    return Embedded(5000, 96, 256, layers, tied=True)


def lstm_lm() -> nn.Module:
    """A language model of two LSTM layers."""
    return Recurrent(4000, 256, 4000, nn.LSTM(256, 320, 2, batch_first=True, dropout=0.2), last=False, hidden=320)


class DLRM(nn.Module):
    """Bags of embeddings and dense features; all pairs of them interact."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(5000, 32, mode="sum") for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(32 + 36, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.tril_indices(9, 9, -1), persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return a logit."""
        x = self.bottom(dense)
        each = torch.stack([x, *(bag(sparse[:, k]) for k, bag in enumerate(self.bags))], 1)
        products = torch.bmm(each, each.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], 1)).squeeze(1)


NETS: dict[str, Make] = {
    "resnet50": trained(resnet50, image(64), F.cross_entropy, "momentum", 8),
    "mobilenet_v2": trained(mobilenet_v2, image(96), F.cross_entropy, "rmsprop", 8),
    "densenet": trained(densenet, image(32), F.cross_entropy, "sgd", 12),
    "unet": trained(
        UNet,
        lambda n: (torch.randn(n, 3, 96, 96), torch.rand(n, 1, 96, 96)),
        F.binary_cross_entropy_with_logits,
        "adam",
        3,
    ),
    "vit": trained(ViT, image(64), F.cross_entropy, "adamw", 10),
    "gpt": trained(gpt, tokens(96, 5000), word_loss, "adamw", 3),
    "lstm_lm": trained(lstm_lm, tokens(48, 4000), word_loss, "sgd", 12),
    "dlrm": trained(
        DLRM,
        lambda n: (torch.randn(n, 13), torch.randint(5000, (n, 8, 4)), torch.rand(n)),
        F.binary_cross_entropy_with_logits,
        "adagrad",
        384,
    ),
}
