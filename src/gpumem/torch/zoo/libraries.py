"""The libraries that nets come from, imported when one is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from gpumem.torch.internals import Library

COMPILED = ("nms", "qnms")  # ops of torchvision's compiled half that its Python half asks for
_KEPT: list[Any] = []  # ops go with the object that declares them


def check(name: str, needs: Iterable[str]) -> None:
    """Refuse a net whose library is not there, in one line that says how to get it."""
    for library in needs:
        if installed(library) is None:
            raise ValueError(f"{name}: needs {library}, which is not installed: pip install 'gpumem[zoo]'")


def library(name: str) -> Any:
    """Import a library, or a module of it; what of others does not load here does not matter."""
    _without_compiled_halves()
    return import_module(name)


def module_of(name: str) -> Any:
    """Load one module of a package from its file, without the package's own import (which loads compiled code)."""
    package, _, rest = name.partition(".")
    version = installed(package)
    assert version is not None and version.origin is not None
    spec = spec_from_file_location(name, Path(version.origin).parent / f"{rest.replace('.', '/')}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _without_compiled_halves() -> None:
    """Let libraries work whose neighbours were compiled for another PyTorch: transformers and timm import these two."""
    if installed("torchvision") and not _loads("torchvision"):
        declared = Library("torchvision", "DEF")
        for op in COMPILED:
            declared.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(declared)
    if installed("torchaudio") and not _loads("torchaudio"):
        sys.modules["torchaudio"] = None  # type: ignore[assignment]  # as if it were not there


def _loads(name: str) -> bool:
    try:
        import_module(name)
    except (ImportError, OSError, RuntimeError):
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[module]
        return False
    return True


def installed(name: str) -> ModuleSpec | None:
    """Where a package is, also one that was put aside."""
    return PathFinder.find_spec(name)
