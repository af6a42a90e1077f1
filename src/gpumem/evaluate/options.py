"""What a caller may write: amounts of memory, times, names out of a table, options that some planners take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

T = TypeVar("T")
_TIMES = {"": 1, "NS": 1, "US": 10**3, "MS": 10**6, "S": 10**9}
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def amount(text: str | int, whole: int, what: str, *, least: int = 1) -> int:
    """Read bytes: a number, or a text with bytes, `KiB/MiB/GiB` or `%` of `whole`.

    >>> amount("70%", 1000, "--limit"), amount("1.5KiB", 1000, "--limit"), amount("42", 1000, "--limit")
    (700, 1536, 42)
    """
    value = _bytes(text, whole, what) if isinstance(text, str) else _whole(text, what)
    if value >= 2**62:
        raise ValueError(f"{what}: {text!r} is too large")
    if value < least:
        raise ValueError(f"{what}: {text!r} is {value} bytes, it must be at least {least}")
    return value


def _bytes(text: str, whole: int, what: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*", text)
    if not match:
        raise ValueError(f"{what}: {text!r} is not an amount; write bytes, 300MiB, 1.5GiB or 70%")
    number, unit = match[1], match[2].upper()
    if unit != "%" and unit not in _UNITS:
        raise ValueError(f"{what}: unit {match[2]!r} of {text!r} is unknown; use B, KiB, MiB, GiB or %")
    if len(number) > 40:
        raise ValueError(f"{what}: {text[:40]!r}... has too many digits")
    return int(Fraction(number) * (Fraction(whole, 100) if unit == "%" else _UNITS[unit]))  # 100% is all of it


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{what}: {value!r} is neither a whole number of bytes nor a text such as '300MiB' or '70%'")
    return int(value.__index__())


def moment(text: str, what: str) -> int:
    """Read nanoseconds, or `us`, `ms`, `s`.

    >>> moment("1.5ms", "--arrive"), moment("20", "--arrive")
    (1500000, 20)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _TIMES:
        raise ValueError(f"{what}: {text!r} is not a time; write 20us, 1.5ms, 2s or nanoseconds")
    if len(match[1]) > 40 or (value := int(Fraction(match[1]) * _TIMES[match[2].upper()])) >= 2**53:
        raise ValueError(f"{what}: {text[:40]!r} is too long")
    return value


def choice(text: str, table: Mapping[str, T], what: str) -> T:
    """Look up one name."""
    if text not in table:
        raise ValueError(f"{what}: {text!r} is unknown; there are {', '.join(table)}")
    return table[text]


def function_of(given: str | Callable[..., T], table: Mapping[str, Callable[..., T]], what: str) -> Callable[..., T]:
    """Look up a function by name; a function is what it is."""
    if isinstance(given, str):
        return choice(given, table, what)
    if not callable(given):
        raise ValueError(f"{what}: {given!r:.60} is neither a name nor a function")
    return given


def choices(text: str, table: Mapping[str, object], what: str) -> list[str]:
    """Read a comma-separated list of names, or `all`."""
    names = list(table) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        choice(name, table, what)
    return list(dict.fromkeys(names))


def chosen(text: str, table: Mapping[str, T], what: str) -> dict[str, T]:
    """Return the part of a table that a list of names, or `all`, asks for."""
    return {name: table[name] for name in choices(text, table, what)}


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
    """Return the name of a function, that of the function inside a `functools.partial`, or `planner`."""
    return str(getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", "planner"))
