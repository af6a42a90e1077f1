"""Nets that need nothing but PyTorch: a multilayer perceptron, the VGG of CIFAR, a U-Net."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from gpumem.torch.internals import torch
from gpumem.torch.zoo.recipe import Input, Net

nn, F = torch.nn, torch.nn.functional
CIFAR = (Input((3, 32, 32)), Input((), 10))
STAGES = {  # convolutions in each stage
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
WIDTHS = (64, 128, 256, 512, 512)  # of VGG: Simonyan and Zisserman 2015, table 1
LEVELS = (64, 128, 256, 512, 1024)  # of the U-Net: Ronneberger et al. 2015, figure 1


def cross_entropy(net: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a classifier; auxiliary logits count as their papers weigh them."""
    out = net(x)
    if not isinstance(out, tuple):
        return F.cross_entropy(out, labels)
    logits, *others = out
    weight = 0.3 if len(others) > 1 else 0.4  # GoogLeNet, Inception v3
    loss = F.cross_entropy(logits, labels)
    for other in others:
        loss = loss + weight * F.cross_entropy(other, labels)
    return loss


def mlp(layers: int) -> Net:
    """Linear layers with ReLUs between them: 784, 4096, ..., 10."""
    widths = (784, *[4096] * (layers - 1))

    def build() -> torch.nn.Module:
        between = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*between, nn.Linear(widths[-1], 10))

    return Net(build, (Input((784,)), Input((), 10)), cross_entropy, 128)


def cifar_vgg(depth: int, *, inplace: bool = True) -> Net:
    """The VGG of torch.ch (2015), with batch norm and dropout."""
    return Net(partial(_cifar_vgg, depth, inplace), CIFAR, cross_entropy, 100)


def _cifar_vgg(depth: int, inplace: bool) -> torch.nn.Module:
    modules: list[torch.nn.Module] = []
    before = 3
    for width, convolutions in zip(WIDTHS, STAGES[depth]):
        for k in range(convolutions):
            if k:
                modules.append(nn.Dropout(0.3 if width == 64 else 0.4))
            modules += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace)]
            before = width
        modules.append(nn.MaxPool2d(2))
    head = [nn.Dropout(0.5), nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU(inplace), nn.Dropout(0.5)]
    return nn.Sequential(*modules, nn.Flatten(), *head, nn.Linear(512, 10))


def unet(*, size: int = 256) -> Net:
    """A U-Net of five levels; binary cross entropy."""
    return Net(UNet, (Input((3, size, size)), Input((1, size, size))), _binary, 16)


def _binary(net: torch.nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(net(x), mask)


class UNet(torch.nn.Module):
    """Two convolutions a level on the way down and on the way up, which joins what the way down has left."""

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip(LEVELS[::-1], LEVELS[-2::-1]))
        self.down = nn.ModuleList([_twice(a, b) for a, b in zip((3, *LEVELS), LEVELS)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs])
        self.join = nn.ModuleList([_twice(a, b) for a, b in pairs])
        self.out = nn.Conv2d(LEVELS[0], 1, 1)

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


def _twice(before: int, after: int) -> torch.nn.Module:
    first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(True), second, nn.ReLU(True))
