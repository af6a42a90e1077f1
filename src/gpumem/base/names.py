"""Names out of a table, and what was perhaps meant by one that is not there."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def nearest(given: object, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to `given`, None where none is near.

    >>> nearest("Tensil", ["autoswap", "tensile"])
    'tensile'
    """
    low = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(given).lower(), low, 1)
    return low[near[0]] if near else None


def meant(given: object, known: Iterable[str]) -> str:
    """Return a question after the known name that is nearest to `given`, or nothing where none is near.

    >>> meant("autoswop", ["tensile", "autoswap"]), meant("x", ["tensile"])
    ("; did you mean 'autoswap'?", '')
    """
    near = nearest(given, known)
    return "" if near is None else f"; did you mean {near!r}?"


def unknown(given: object, known: Iterable[str], what: str) -> ValueError:
    """Return the error for a name that is none of the known ones.

    >>> print(unknown("p1000", ["p40", "p100"], "machine"))
    machine: 'p1000' is unknown; there are p40, p100; did you mean 'p100'?
    """
    names = list(known)
    return ValueError(f"{what}: {given!r:.60} is unknown; there are {', '.join(names)}{meant(given, names)}")


def one_of(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is unknown."""
    known = list(known)
    if name not in known:
        raise unknown(name, known, what)


def choice(text: str, table: Mapping[str, T], what: str) -> T:
    """Look up one name."""
    one_of(what, text, table)
    return table[text]


def choices(text: str, table: Mapping[str, object], what: str) -> list[str]:
    """Read a comma-separated list of names, or `all`."""
    names = list(table) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        choice(name, table, what)
    return list(dict.fromkeys(names))


def chosen(text: str, table: Mapping[str, T], what: str) -> dict[str, T]:
    """Return the part of a table that a list of names, or `all`, asks for."""
    return {name: table[name] for name in choices(text, table, what)}


def function_of(given: str | Callable[..., T], table: Mapping[str, Callable[..., T]], what: str) -> Callable[..., T]:
    """Look up a function by name; a function is what it is."""
    if isinstance(given, str):
        return choice(given, table, what)
    return given


def taken(planner: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that the planner has a keyword for.

    >>> taken(lambda trace, machine, limit, *, seed=0: None, {"seed": 3, "seconds": 2.0})
    {'seed': 3}
    """
    known = inspect.signature(planner).parameters.values()
    everything = any(p.kind is p.VAR_KEYWORD for p in known)
    names = {p.name for p in known if p.kind is p.KEYWORD_ONLY}
    return {name: value for name, value in options.items() if everything or name in names}


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function, that of the function inside a `functools.partial`, a record's, or `planner`."""
    inner = getattr(getattr(function, "func", None), "__name__", None)
    return str(getattr(function, "__name__", None) or inner or getattr(function, "name", "planner"))
