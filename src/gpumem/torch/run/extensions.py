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

TENSORS = ("torch.Tensor", "at::Tensor")  # as pybind11 writes them in a signature
PYTORCH = "torch."  # modules of PyTorch itself: their functions are ops, or listed in `internals/byte_access.py`


def extensions() -> tuple[tuple[ModuleType, str], ...]:
    """Return where such functions stand: pairs of a module and a name in it, also where others have imported one.

    The function that makes capsules of dlpack is among them, as bridges between libraries import it by name.

    Modules are searched anew when `sys.modules` has grown. Those that are not in it, as of `load_inline`, are searched
    for when PyTorch has loaded more of them by its own count, as that takes up to a fifth of a second.
    """
    return _search(len(sys.modules), _loaded())


@lru_cache(maxsize=1)
def _search(modules: int, loaded: int) -> tuple[tuple[ModuleType, str], ...]:
    """Search all modules; the arguments say when to do so anew."""
    unlisted = [value for value in gc.get_objects() if _is_extension(value)] if loaded else []
    by_id = {id(module): module for module in (*unlisted, *[*sys.modules.values()])}
    functions = {id(function) for module in by_id.values() for function in _functions(module)} | {id(to_dlpack)}
    named = ((module, item) for module in by_id.values() for item in [*_names(module).items()])
    return tuple((module, name) for module, (name, value) in named if id(value) in functions)


def _loaded() -> int:
    """How many extensions PyTorch has compiled and loaded in this process."""
    versions = getattr(sys.modules.get("torch.utils.cpp_extension"), "JIT_EXTENSION_VERSIONER", None)
    return len(getattr(versions, "entries", ()))


def _names(module: Any) -> dict[str, Any]:
    """The names in a module, without calling its `__getattr__`: a lazy module would import things."""
    if not issubclass(type(module), ModuleType):
        return {}
    return cast(dict[str, Any], ModuleType.__getattribute__(module, "__dict__"))


def _functions(module: Any) -> list[Callable[..., Any]]:
    if not _is_extension(module):
        return []
    values = [*_names(module).values()]
    return [value for value in values if isinstance(value, BuiltinFunctionType) and _takes_tensors(value)]


def _is_extension(module: Any) -> bool:
    spec = _names(module).get("__spec__")
    loader, name = getattr(spec, "loader", None), str(getattr(spec, "name", ""))
    return isinstance(loader, ExtensionFileLoader) and not name.startswith(PYTORCH)


def _takes_tensors(function: Any) -> bool:
    signature = (getattr(function, "__doc__", None) or "").partition("->")[0]
    return any(word in signature for word in TENSORS)
