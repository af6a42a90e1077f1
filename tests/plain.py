"""The compiled loops of a module as plain Python: those that only other loops call cannot be called otherwise."""

from __future__ import annotations

from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any


def plain(module: ModuleType, **others: Any) -> SimpleNamespace:
    """Return what a module has, its loops as Python that call one another, with other constants and callees."""
    names = dict(vars(module)) | others
    for name, thing in vars(module).items():
        loop = getattr(thing, "py_func", thing)
        if name in others or not isinstance(loop, FunctionType) or loop.__closure__:
            continue
        if loop.__module__ == module.__name__:
            names[name] = FunctionType(loop.__code__, names, name, loop.__defaults__)
        elif getattr(thing, "targetoptions", {}).get("no_cpython_wrapper"):
            names[name] = loop  # an `inner` loop of another module: there is no way in from Python, a call crashes
    return SimpleNamespace(**names)
