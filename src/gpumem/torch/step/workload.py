"""The user's side: a file with `make`, which builds a model and returns the step that trains it."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gpumem.base.work import setting
from gpumem.runtime.residency.observing import Refusal

Step = Callable[[], object]
Make = Callable[..., Step]


class WorkloadError(Refusal):
    """A workload that cannot be recorded: what went wrong in it, where, and what to do."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if (refusals := _REFUSALS.get()) is not None:
            refusals.append(str(self))


_REFUSALS: ContextVar[list[str] | None] = ContextVar("_REFUSALS", default=None)


@contextmanager
def all_refusals() -> Iterator[list[str]]:
    """Give the list of refusals in this context, also those that the workload catches."""
    refusals: list[str] = []
    with setting(_REFUSALS, refusals):
        yield refusals


def made(make: Make, device: str, batch: int | None) -> Step:
    """Call `make` with what it takes of `batch` and `device`; return its step."""
    takes = inspect.signature(make).parameters
    given: dict[str, Any] = {"batch": batch, "device": device}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    if batch is not None and "batch" not in takes and not takes_all:
        raise WorkloadError(f"{name_of(make)}: takes no batch, got batch={batch}; write def make(batch=...)")
    if batch is None and "batch" in takes and takes["batch"].default is inspect.Parameter.empty:
        raise WorkloadError(f"{name_of(make)}: has no batch of its own; say which (--batch N), or write batch=N in it")
    with blamed(name_of(make)):
        step = make(
            **{name: value for name, value in given.items() if value is not None and (name in takes or takes_all)}
        )
    if not callable(step):
        raise WorkloadError(f"{name_of(make)}: returned {step!r:.60}, not a function that runs one iteration")
    _check(step, name_of(make))
    return step


def _check(step: Step, whose: str) -> None:
    """Refuse a step that cannot be called, or does nothing when it is."""
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        raise WorkloadError(
            f"{whose}: its step is async or yields, and so runs nothing when called; write a plain function"
        )
    try:
        takes = inspect.signature(getattr(step, "forward", step)).parameters.values()  # a model for a step, perhaps
    except (TypeError, ValueError):  # not every builtin has one
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if needed := [p.name for p in takes if p.default is p.empty and p.kind not in optional]:
        raise WorkloadError(
            f"{whose}: its step needs {', '.join(needed)}; it is called without, and makes its batch itself"
        )


def name_of(make: object) -> str:
    """What to call a workload in messages."""
    return str(getattr(make, "__name__", type(make).__name__))


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn an error of the user's code into one line that says where."""
    try:
        yield
    except (Exception, SystemExit) as error:  # scripts end themselves where they miss arguments
        place = line_of(traceback.extract_tb(error.__traceback__))
        message = " ".join(str(error).partition("Exception raised from")[0].split()) or "no message"  # no frames of C++
        kind = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
        at = f" ({place})" if place and place not in message else ""
        raise WorkloadError(f"{what}: {kind}{message:.300}{at}") from error


def line_of(frames: Iterable[traceback.FrameSummary]) -> str:
    """The innermost of some frames that is the user's own code, as file and line; "" where none is."""
    others = [str(Path(__file__).parents[2]), "site-packages", "<", sysconfig.get_paths()["stdlib"]]
    if "torch" in sys.modules:  # wherever it was installed to
        others.append(str(Path(str(sys.modules["torch"].__file__)).parent))
    own = [frame for frame in frames if not any(other in frame.filename for other in others)]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""
