"""The user's side: a file with `make`, which builds a model and returns the step that trains it."""

from __future__ import annotations

import inspect
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from gpumem._strict import strict
from gpumem.names import meant

Step = Callable[[], object]
Make = Callable[..., Step]


class WorkloadError(ValueError):
    """A workload that cannot be recorded: what went wrong in it, where, and what to do."""


@strict
def load(where: str) -> Make:
    """Return `make` from `FILE.py:make`; of a file alone, the function of that name.

    The file's folder is where it imports from first, as where it is run by itself. `torch.autocast("cuda")` at its top
    stays enabled without a GPU, for a step on meta.

    Raises
    ------
    WorkloadError
        No such file or function, or the file fails.
    """
    file, _, name = where.rpartition(":") if ".py:" in where else (where, ":", "make")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        why = "no such file" if path.suffix == ".py" else "not a Python file"
        raise WorkloadError(f"{where!r:.80}: {why}; expected FILE.py:make, a function that returns a step")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    autocast = import_module("gpumem.torch.autocast")  # needs PyTorch, which what is above does not
    with blamed(str(path)), autocast.left_enabled():
        found = runpy.run_path(str(path), run_name=path.stem)
    if not callable(found.get(name)):
        functions = [other for other, value in found.items() if inspect.isfunction(value)]
        known = f"; it defines {', '.join(functions)}" if functions else "; it defines no function"
        raise WorkloadError(f"{path}: no function {name!r:.40}{meant(name, functions) or known}")
    make: Make = found[name]
    return make


def made(make: Make, device: str, batch: int | None) -> Step:
    """Call `make` with what it takes of `batch` and `device`; return its step."""
    takes = inspect.signature(make).parameters
    given: dict[str, Any] = {"batch": batch, "device": device}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    if batch is not None and "batch" not in takes and not takes_all:
        raise WorkloadError(f"{name_of(make)}: takes no batch, got batch={batch}; write def make(batch=...)")
    if batch is None and "batch" in takes and takes["batch"].default is inspect.Parameter.empty:
        raise WorkloadError(f"{name_of(make)}: has no batch of its own; say which (--batch N), or write batch=N in it")
    with blamed(name_of(make)):
        step = make(**{what: x for what, x in given.items() if x is not None and (what in takes or takes_all)})
    if not callable(step):
        raise WorkloadError(f"{name_of(make)}: returned {step!r:.60}, not a function that runs one iteration")
    return step


def name_of(make: Make) -> str:
    """What to call a workload in messages."""
    return str(getattr(make, "__name__", type(make).__name__))


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one line that says where."""
    try:
        yield
    except (Exception, SystemExit) as error:  # scripts end themselves where they miss arguments
        at = traceback.extract_tb(error.__traceback__)
        others = ("/gpumem/", "site-packages", "<", sysconfig.get_paths()["stdlib"])
        own = [f for f in at if not any(other in f.filename for other in others)]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        told = " ".join(str(error).split()) or "no message"
        kind = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
        raise WorkloadError(f"{what}: {kind}{told:.300}{place}") from error
