"""The compiled loops of a module as plain Python: those that only other loops call cannot be called otherwise."""

from __future__ import annotations

from types import FunctionType, ModuleType, SimpleNamespace


def plain(module: ModuleType, **constants: int) -> SimpleNamespace:
    """Return what a module has, its loops as Python that call one another, with other constants."""
    names = dict(vars(module)) | constants
    for name, thing in vars(module).items():
        loop = getattr(thing, "py_func", thing)
        if isinstance(loop, FunctionType) and loop.__module__ == module.__name__ and not loop.__closure__:
            names[name] = FunctionType(loop.__code__, names, name, loop.__defaults__)
    return SimpleNamespace(**names)
