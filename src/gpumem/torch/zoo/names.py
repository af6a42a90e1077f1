"""How a name of the zoo is read: a net, what it is like, its batch, how it is trained."""

from __future__ import annotations

import re
from functools import cache, partial
from inspect import signature
from typing import Any

from gpumem.base.arguments import strict
from gpumem.base.names import meant, one_of
from gpumem.torch.zoo.libraries import check, installed
from gpumem.torch.zoo.recipe import OPTIMIZERS, Recipe
from gpumem.torch.zoo.table import ZOO, Family
from gpumem.torch.zoo.vision import SOURCES, classifier, models_of

# The parts of a name, in order: with numbers, then plain words.
NUMBERS = {
    ("size",): "{}",
    ("layers", "hidden"): "{}l{}",
    ("sequence",): "s{}",
    ("frames",): "t{}",
    ("batch",): "b{}",
    ("cold",): "cold{}",
}
WORDS: dict[str, tuple[str, Any]] = {
    "noinplace": ("inplace", False),
    "bf16": ("dtype", "bfloat16"),
    "fp16": ("dtype", "float16"),
    **{name: ("optimizer", name) for name in OPTIMIZERS},
    "foreach": ("foreach", True),
    "checkpoint": ("checkpoint", True),
}
COMMON = ("batch", "optimizer", "foreach", "cold")  # what any net takes


@strict
def recipe(name: str, **options: object) -> Recipe:
    """Read a name of the zoo.

    Parameters
    ----------
    name : str
        `NET[_SIZE][_LAYERSlWIDTH][_sLENGTH][_tFRAMES][_bBATCH]`, then any of `_noinplace`, `_bf16`, `_sgd`, `_adam`,
        `_foreach`, `_checkpoint`, `_coldN`. `NET` is a key of `ZOO`, or a classifier of torchvision or timm, as in
        `torchvision:convnext_tiny`; the library may be left out. `_coldN`: N iterations, none before, with Adam.
    **options
        In place of what the name says: `size` (pixels), `layers`, `hidden`, `sequence`, `frames`, `batch`, `inplace`,
        `dtype`, `optimizer`, `foreach`, `checkpoint`, `cold`. None is as if left out.

    Raises
    ------
    ValueError
        An unknown name, what this net does not take, a library that is not there.

    Examples
    --------
    >>> made = recipe("vgg16_cifar_adam", batch=32)
    >>> made.name, made.batch, made.optimizer
    ('vgg16_cifar_b32_adam', 32, 'adam')
    >>> made.record().trace.n
    547
    """
    net_name, family, parts = _parsed(name)
    stated = {key: value for part in parts for key, value in (_read(part) or {}).items()}
    stated |= {key: value for key, value in options.items() if value is not None}
    _check(name, family, stated)
    own = {key: stated[key] for key in stated if key not in COMMON}
    net = family(**own)
    check(name, net.needs)
    stated.setdefault("batch", net.batch)
    cold = stated.get("cold", 0)
    return Recipe(
        _spelled(net_name, stated),
        net,
        stated["batch"],
        stated.get("optimizer") or ("adam" if cold else net.optimizer),
        stated.get("foreach", False),
        warmup=0 if cold else 1,
        iterations=cold or 2,
    )


def _parsed(name: str) -> tuple[str, Family, list[str]]:
    """Split a name into the longest net that there is, and parts that can be read."""
    words = name.split("_")
    splits = [("_".join(words[:k]), words[k:]) for k in range(len(words), 0, -1)]
    for known in (ZOO.get, _of_a_library):
        for net, parts in splits:
            if all(_read(part) is not None for part in parts) and (family := known(net)):
                return net, family, parts
    for net, parts in splits:
        if net in ZOO:
            wrong = next(part for part in parts if _read(part) is None)
            raise ValueError(f"{name}: {wrong!r:.40} is no part of a name{meant(wrong, WORDS)}")
    source, _, model = name.rpartition(":")
    known_names = _models(source).values() if source else ZOO
    raise ValueError(f"{source or 'zoo'}: {model!r:.60} is unknown{meant(model, known_names)} (--list shows the zoo)")


def _of_a_library(net: str) -> Family | None:
    source, _, model = net.rpartition(":")
    if source:
        one_of(f"{net}: library", source, SOURCES)
        check(net, [source])
    for library in SOURCES:
        if source in ("", library) and installed(library) and (match := _models(library).get(model.replace("_", ""))):
            return partial(classifier, library, match)
    return None


@cache
def _models(library: str) -> dict[str, str]:
    """The classifiers of a library, by their names without underscores."""
    return {name.replace("_", ""): name for name in models_of(library)}


def _read(part: str) -> dict[str, Any] | None:
    """What a part of a name says; None where it says nothing."""
    if part in WORDS:
        key, value = WORDS[part]
        return {key: value}
    for keys, pattern in NUMBERS.items():
        if match := re.fullmatch(pattern.replace("{}", "([0-9]{1,9})"), part):
            return {key: int(value) for key, value in zip(keys, match.groups())}
    return None


def _check(name: str, family: Family, stated: dict[str, Any]) -> None:
    takes = [key for key, p in signature(family).parameters.items() if p.kind is p.KEYWORD_ONLY]
    for key, value in stated.items():
        if key not in (*takes, *COMMON):
            raise ValueError(f"{name}: takes no {key}; it takes {', '.join((*takes, *COMMON))}")
        if type(value) is int and value < 1:
            raise ValueError(f"{name}: {key} {value} is below 1")
    one_of(f"{name}: optimizer", stated.get("optimizer") or OPTIMIZERS[0], OPTIMIZERS)


def _spelled(net: str, stated: dict[str, Any]) -> str:
    """Write the name out, with its batch, in the order of its parts."""
    parts = [net.rpartition(":")[2]]
    numbers = [
        p.format(*(stated[key] for key in keys)) for keys, p in NUMBERS.items() if all(key in stated for key in keys)
    ]
    cold = [part for part in numbers if part.startswith("cold")]
    words = [word for word, (key, value) in WORDS.items() if key in stated and stated[key] == value]
    return "_".join([*parts, *(part for part in numbers if part not in cold), *words, *cold])
