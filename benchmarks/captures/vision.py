"""Classifiers of torchvision and timm, for images of few pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from gpumem.torch.zoo.vision import models_of

Step = Callable[[], None]
SMALL, FIXED, LARGE = 64, 224, 299
COUNT = 60  # of timm's families, each by a small net
LITTLE = ("atto", "femto", "pico", "nano", "tiny", "xs", "_s", "small", "b0", "18", "26", "050", "base")


def size_of(source: str, name: str) -> int:
    """Pixels of an image: few where the net takes any."""
    if name.startswith("inception"):
        return LARGE
    if source == "torchvision":
        return FIXED if name.startswith(("vit", "maxvit", "swin")) else SMALL
    return 0


def training(source: str, name: str, batch: int = 2, device: str = "cpu") -> Step:
    """A step of SGD on random images."""
    import timm

    size = size_of(source, name) or int(timm.get_pretrained_cfg(name).input_size[-1])
    model = build(source, name).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        x, y = torch.randn(batch, 3, size, size, device=device), torch.randint(10, (batch,), device=device)
        found = model(x)
        outputs = found if isinstance(found, (tuple, list)) else [found]
        sum(F.cross_entropy(out, y) for out in outputs if out is not None).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()

    return step


def build(source: str, name: str) -> Any:
    """A net as its library makes it."""
    if source == "timm":
        import timm

        return timm.create_model(name)
    options: dict[str, Any] = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    import torchvision

    return getattr(torchvision.models, name)(**options)


def names(source: str) -> list[str]:
    """All classifiers of torchvision, and of timm a small one of each of its files."""
    if source == "torchvision":
        return sorted(models_of(source))
    import timm

    found = [_little(sorted(timm.list_models(module=module))) for module in timm.list_modules()]
    return sorted({name for name in found if name})[:COUNT]


def _little(names: list[str]) -> str:
    return next((name for part in LITTLE for name in names if part in name), names[0] if names else "")


def cases(source: str) -> Iterator[tuple[str, Callable[..., Step]]]:
    """What trains each of them."""
    for name in names(source):
        yield name, partial(training, source, name)


def constructors(source: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What builds each classifier that a library has."""
    for name in sorted(models_of(source)):
        yield name, partial(build, source, name)
