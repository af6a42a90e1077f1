"""Functions of extension modules that take tensors from Python, past PyTorch's dispatcher: kernels bound by pybind11.

Libraries of kernels call some (`selective_scan_cuda.fwd`), and `torch.utils.cpp_extension.load_inline` makes them.
They are known by what they say of themselves: a built-in function of a module that was loaded from a shared library,
with a tensor in its signature. Not found: methods of classes bound so, and what is loaded while a run is under way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from types import BuiltinFunctionType, ModuleType
from typing import Any

TENSORS = ("torch.Tensor", "at::Tensor")  # as pybind11 has them in a signature
PYTORCH = "torch."  # its own are ops, or known by name


class Extensions:
    """Where such functions are to be found.

    Modules of no table, as `load_inline` makes them, are looked for once, as that takes tens of milliseconds; the table
    of modules again whenever it has grown.
    """

    def __init__(self) -> None:
        self._loaded = [x for x in gc.get_objects() if _is_extension(x)]
        self._known = 0
        self._found: list[tuple[ModuleType, str]] = []

    def found(self) -> list[tuple[ModuleType, str]]:
        """Modules and names in them, those by which others know such a function included."""
        if self._known != len(sys.modules):
            self._known = len(sys.modules)
            modules = {id(module): module for module in (*self._loaded, *[*sys.modules.values()])}
            functions = {id(f) for module in modules.values() for f in _functions(module)}
            named = ((module, item) for module in modules.values() if functions for item in [*_names(module).items()])
            self._found = [(module, name) for module, (name, value) in named if id(value) in functions]
        return self._found


def _names(module: Any) -> dict[str, Any]:
    """What is in a module; one that loads when it is looked at is not looked at."""
    if not issubclass(type(module), ModuleType):
        return {}
    found: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return found


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
