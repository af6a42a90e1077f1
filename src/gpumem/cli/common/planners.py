"""Which swap planners a command is asked for, ours or a user's own, and their options: `--planner`, `--option`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from gpumem import pool, swap
from gpumem.base.names import meant, taken
from gpumem.cli.common.parser import Option, option
from gpumem.swap.planner import Declared

OWN = "module:name is one of your own, looked for in the current directory as well"
FLAGS = ("seed", "effort", "seconds", "peaks", "threshold", "recompute", "score")  # options that have a flag
OPTION = option(
    "--option",
    action="append",
    default=[],
    metavar="NAME=VALUE",
    help="an option of a planner that has no flag here; may be given several times",
)
TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def planner_flags(usual: str | None, help: str, *, several: bool = True) -> tuple[Option, Option]:
    """Return `--planner`, and `--option` for what has no flag of its own."""
    metavar = "NAME[,NAME]|all" if several else "NAME"
    return option("--planner", default=usual, metavar=metavar, help=f"{help}; {OWN}"), OPTION


def planners_asked(args: argparse.Namespace) -> dict[str, swap.Planner]:
    """Return the swap planners that `--planner` names."""
    return swap.planners_of(args.planner, "--planner")


def planner_options(
    args: argparse.Namespace, planners: Mapping[str, Callable[..., Any]], flags: Collection[str] = FLAGS
) -> dict[str, Any]:
    """Read `--option`: each is one of the planners', of the type that it declares, and in its range.

    `flags` are options that have a flag wherever the command has one of that name.

    Raises
    ------
    ValueError
        An option that no planner has, that has a flag of its own, that is given twice or cannot be read.
    """
    values: dict[str, Any] = {}
    for text in getattr(args, "option", []):
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise ValueError(f"--option: {text!r:.60} is not NAME=VALUE")
        if name in values:
            raise ValueError(f"--option {name}: it is given twice")
        if name in flags and hasattr(args, name):
            flag = "no-recompute" if name == "recompute" else name
            raise ValueError(f"--option {name}: it has a flag of its own, --{flag}")
        of_use(f"--option {name}", name, planners)
        able = [planner for planner in planners.values() if isinstance(planner, swap.Planner) and planner.has(name)]
        values[name] = read(f"--option {name}", value, able[0].declared().get(name, Declared("str", "")))
        for planner in able:
            _tried(planner, name, values[name])
    return values


def _tried(planner: swap.Planner, name: str, value: Any) -> None:
    try:
        planner.with_(**{name: value})
    except ValueError as error:
        raise ValueError(f"--option {error}") from None


def read(what: str, text: str, declared: Declared) -> Any:
    """Read the value of an option by its declared type.

    >>> read("", "3", Declared("int | None", None)), read("", "no", Declared("bool", True))
    (3, False)
    >>> read("", "0.85,0.7", Declared("tuple[float, ...]", ()))
    (0.85, 0.7)
    >>> read("--option queue", "maybe", Declared("bool", True))
    Traceback (most recent call last):
    ValueError: --option queue: 'maybe' is neither true nor false
    """
    kinds = [kind.strip() for kind in declared.kind.split("|")]
    if "None" in kinds and text.lower() == "none":
        return None
    if "bool" in kinds:
        if text.lower() not in TRUTHS:
            raise ValueError(f"{what}: {text!r:.40} is neither true nor false")
        return TRUTHS[text.lower()]
    readers = [READERS[kind] for kind in kinds if kind in READERS]
    if not readers:
        raise ValueError(f"{what}: its value is a {declared.kind}, which cannot be written on the command line")
    for _, reader in readers:
        with suppress(ValueError):
            return reader(text)
    raise ValueError(f"{what}: {text!r:.40} is not {' or '.join(word for word, _ in readers)}")


def _fractions(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "int": ("a whole number", int),
    "float": ("a number", float),
    "tuple[float, ...]": ("a list of numbers with commas between", _fractions),
    "str": ("a text", str),
    "NoneType": ("a text", str),  # neither an annotation nor a default that says more
}


def of_use(option: str, name: str, planners: Mapping[str, Callable[..., Any]]) -> None:
    """Refuse an option that none of the planners has; say which ones have it."""
    if any(_has(planner, name) for planner in planners.values()):
        return
    ours = any(isinstance(planner, swap.Planner) for planner in planners.values())  # pools have a `search` as well
    swapping = ours or not planners.keys() <= pool.PLANNERS.keys()
    table: Mapping[str, Callable[..., Any]] = swap.PLANNERS if swapping else pool.PLANNERS
    others = [other for other, planner in table.items() if _has(planner, name)]
    own = [planner.declared() for planner in planners.values() if isinstance(planner, swap.Planner)]
    near = meant(name, [one for declared in own for one in declared])
    known = f"; it is an option of {', '.join(others)}" if others else near
    raise ValueError(f"{option}: no use to {', '.join(planners)}{known}")


def _has(planner: Callable[..., Any], name: str) -> bool:
    """Whether a planner has an option; placers and schedulers are functions."""
    return planner.has(name) if isinstance(planner, swap.Planner) else bool(taken(planner, {name: 0}))
