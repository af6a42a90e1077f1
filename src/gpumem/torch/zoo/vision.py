"""Classifiers of torchvision and timm, by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from gpumem.torch.internals import torch
from gpumem.torch.zoo.libraries import library
from gpumem.torch.zoo.plain import CIFAR, cross_entropy
from gpumem.torch.zoo.recipe import Input, Net

nn = torch.nn
SIZES = {"inception_v3": 299, "inception_v4": 299, "nasnetalarge": 331}
AUXILIARY = ("inception_v3", "googlenet")  # their own initial weights take minutes
SOURCES = ("torchvision", "timm")


def classifier(source: str, model: str, *, size: int | None = None) -> Net:
    """A classifier as its library makes it, for images of its own size."""
    torchvision = source == "torchvision"
    own = SIZES.get(model) or (224 if torchvision else timm_size(model))
    size = size or own
    build = partial(_torchvision if torchvision else _timm, model, size, size != own)
    return Net(build, (Input((3, size, size)), Input((), 1000)), cross_entropy, 32, needs=(source,))


def cifar_resnet(model: str) -> Net:
    """A ResNet for small images: first convolution of stride 1, no pooling."""
    return Net(partial(_cifar_resnet, model), CIFAR, cross_entropy, 100, needs=("torchvision",))


def models_of(source: str) -> Iterable[str]:
    """The names of the classifiers that a library has."""
    if source == "timm":
        return cast(Iterable[str], library("timm").list_models())
    models = library("torchvision").models
    return cast(Iterable[str], models.list_models(module=models))


def timm_size(model: str) -> int:
    """The size of the images that timm trains a net on."""
    known = library("timm").get_pretrained_cfg(model)
    return int(known.input_size[-1]) if known is not None else 224


def _torchvision(model: str, size: int, other: bool) -> Any:
    options: dict[str, Any] = {"init_weights": False} if model in AUXILIARY else {}
    if other and model.startswith("vit"):
        options["image_size"] = size
    if other and model.startswith("maxvit"):
        options["input_size"] = (size, size)
    return getattr(library("torchvision").models, model)(**options)


def _timm(model: str, size: int, other: bool) -> Any:
    create = library("timm").create_model
    try:
        return create(model, **({"img_size": size} if other else {}))
    except TypeError:  # a net that takes any size
        return create(model)


def _cifar_resnet(model: str) -> Any:
    net = getattr(library("torchvision").models, model)(num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool = nn.Identity()
    return net
