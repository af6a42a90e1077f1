"""Functions of extension modules that take tensors from Python, past PyTorch's dispatcher: kernels bound by pybind11.

Libraries of kernels call some (`selective_scan_cuda.fwd`), and `torch.utils.cpp_extension.load_inline` makes them.
They are known by what they say of themselves: a built-in function of a module that was loaded from a shared library,
with a tensor in its signature. Not found: methods of classes bound so, and what is loaded while a run is under way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

from gpumem.torch.internals import to_dlpack

TENSORS = ("torch.Tensor", "at::Tensor")  # as pybind11 has them in a signature
PYTORCH = "torch."  # its own are ops, or known by name


def extensions() -> tuple[tuple[ModuleType, str], ...]:
    """Return where such functions are to be found: a module and a name in it, those by which others know one included.

    So is the function that makes capsules of dlpack, which bridges between libraries import by name.

    Modules are looked at anew when their table has grown. Those of no table, as of `load_inline`, are looked for
    when PyTorch has made more of them by its own count, as that takes up to a fifth of a second.
    """
    return _found(len(sys.modules), _made())


@lru_cache(maxsize=1)
def _found(modules: int, made: int) -> tuple[tuple[ModuleType, str], ...]:
    beside = [x for x in gc.get_objects() if _is_extension(x)] if made else []
    places = {id(module): module for module in (*beside, *[*sys.modules.values()])}
    functions = {id(f) for module in places.values() for f in _functions(module)} | {id(to_dlpack)}
    named = ((module, item) for module in places.values() for item in [*_names(module).items()])
    return tuple((module, name) for module, (name, value) in named if id(value) in functions)


def _made() -> int:
    """How many extensions PyTorch has compiled and loaded in this process."""
    versions = getattr(sys.modules.get("torch.utils.cpp_extension"), "JIT_EXTENSION_VERSIONER", None)
    return len(getattr(versions, "entries", ()))


def _names(module: Any) -> dict[str, Any]:
    """What is in a module; one that loads when it is looked at is not looked at."""
    if not issubclass(type(module), ModuleType):
        return {}
    return cast(dict[str, Any], ModuleType.__getattribute__(module, "__dict__"))


def _functions(module: Any) -> list[Callable[..., Any]]:
    if not _is_extension(module):
        return []
    return [x for x in [*_names(module).values()] if isinstance(x, BuiltinFunctionType) and _takes_tensors(x)]


def _is_extension(module: Any) -> bool:
    spec = _names(module).get("__spec__")
    loader, name = getattr(spec, "loader", None), str(getattr(spec, "name", ""))
    return isinstance(loader, ExtensionFileLoader) and not name.startswith(PYTORCH)


def _takes_tensors(function: Any) -> bool:
    signature = (getattr(function, "__doc__", None) or "").partition("->")[0]
    return any(word in signature for word in TENSORS)
