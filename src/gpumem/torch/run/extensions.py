"""Functions of extension modules that take tensors from Python, past PyTorch's dispatcher: kernels bound by pybind11.

Libraries of kernels call some (`selective_scan_cuda.fwd`), and `torch.utils.cpp_extension.load_inline` makes them.
They are known by what they say of themselves: a built-in function of a module that was loaded from a shared library,
with a tensor in its signature. Not found: methods of classes bound so, and what is loaded while a run is under way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

TENSORS = ("torch.Tensor", "at::Tensor")  # as pybind11 has them in a signature
PYTORCH = "torch."  # its own are ops, or known by name


def loaded() -> list[ModuleType]:
    """Extensions that are loaded, those of no table included, as `load_inline` makes them: tens of milliseconds."""
    return [x for x in gc.get_objects() if isinstance(x, ModuleType) and _is_extension(x)]


def extensions(loaded: Sequence[ModuleType]) -> Iterator[tuple[ModuleType, str]]:
    """Where such functions are to be found: a module and a name in it, those by which others know it included."""
    modules = {id(module): module for module in (*loaded, *[*sys.modules.values()])}
    found = {id(f) for module in modules.values() for f in _functions(module)}
    for module in modules.values() if found else ():
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if id(value) in found:
                yield module, name


def _functions(module: Any) -> list[Callable[..., Any]]:
    if not _is_extension(module):
        return []
    return [x for x in [*vars(module).values()] if isinstance(x, BuiltinFunctionType) and _takes_tensors(x)]


def _is_extension(module: Any) -> bool:
    spec = getattr(module, "__spec__", None)
    loader, name = getattr(spec, "loader", None), str(getattr(spec, "name", ""))
    return isinstance(loader, ExtensionFileLoader) and not name.startswith(PYTORCH)


def _takes_tensors(function: Any) -> bool:
    signature = (getattr(function, "__doc__", None) or "").partition("->")[0]
    return any(word in signature for word in TENSORS)
