"""Planners and placers as callers give them: by name or as functions, with the options that they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpumem.base.names import choice

T = TypeVar("T")


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
    """Return the name of a function, that of the function inside a `functools.partial`, or `planner`."""
    return str(getattr(function, "__name__", None) or getattr(getattr(function, "func", None), "__name__", "planner"))
