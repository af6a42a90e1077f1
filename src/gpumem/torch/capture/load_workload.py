"""Running a user's file under a GPU that is not there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from gpumem.base.arguments import strict
from gpumem.base.names import meant
from gpumem.torch.step.workload import Make, WorkloadError, blamed


@strict
def load(where: str, device: str = "meta") -> Make:
    """Return `make` from `FILE.py:make`; of a file alone, the function of that name.

    The file's folder is where it imports from first, as where it is run by itself. For a step on meta there seems to be
    a GPU at its top, too: `torch.cuda.is_available()`, and `torch.autocast("cuda")` stays enabled.

    Raises
    ------
    WorkloadError
        No such file or function, or the file fails.
    """
    file, _, name = where.rpartition(":") if ".py:" in where else (where, ":", "make")
    path = Path(file)
    names = _names(path, where, device)
    if not callable(names.get(name)):
        functions = [other for other, value in names.items() if inspect.isfunction(value)]
        known = f"; it defines {', '.join(functions)}" if functions else "; it defines no function"
        known += f" (a whole script is --script {path.name})" if name == "make" else ""
        raise WorkloadError(f"{path}: no function {name!r:.40}{meant(name, functions) or known}")
    return cast(Make, names[name])


@strict
def load_nets(where: str, device: str = "meta") -> dict[str, Make]:
    """Return the workloads of `FILE.py:make`, or all that a file lists in `NETS`, a dict of names to such functions.

    Raises
    ------
    WorkloadError
        As of `load`; `NETS` is no such dict.
    """
    path = Path(where)
    nets = None if ".py:" in where else _names(path, where, device).get("NETS")
    if nets is None:
        return {where.rpartition("/")[2].replace(".py:", ".").removesuffix(".py"): load(where, device)}
    if not isinstance(nets, dict) or not nets or not all(map(callable, nets.values())):
        raise WorkloadError(f"{path}: NETS is {nets!r:.60}; expected a dict of names to functions that return a step")
    return {str(name): make for name, make in nets.items()}


def _names(path: Path, where: str, device: str) -> dict[str, Any]:
    """What the top of a file defines."""
    if path.suffix != ".py" or not path.is_file():
        why = "no such file" if path.suffix == ".py" else "not a Python file"
        raise WorkloadError(f"{where!r:.80}: {why}; expected FILE.py:make, a function that returns a step")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    with blamed(str(path)), _top(device):
        return vars(_module(path))


@contextmanager
def _top(device: str) -> Iterator[None]:
    """What the top of a file runs in."""
    # imported here, as they need PyTorch
    autocast, one_gpu = (import_module(f"gpumem.torch.capture.{name}") for name in ("autocast", "one_gpu"))
    with autocast.left_enabled(), one_gpu.there() if device == "meta" else nullcontext():
        yield


def _module(path: Path) -> ModuleType:
    """Run a file as a module that others find by its name, as pickles and dataclasses do."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    if getattr(sys.modules.get(path.stem), "__loader__", None) is None:  # none, or one that came this way
        sys.modules[path.stem] = module
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    return module
