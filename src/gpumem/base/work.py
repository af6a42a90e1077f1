"""The budget of the work at hand: until when, and to whom its progress is reported.

It is ambient: whoever begins work says how long it may take, and nothing in between passes it on::

    with work.within(10, print):                  ten seconds for this and for all that it calls
        with work.part("greedy", 0.3):            the first 30 % of what is left; "greedy: " begins its reports
            for k in work.each(range(rounds)):    ends when the time is up
                work.step(k, rounds)              so far of the part, so of the whole
                work.tell("300 MiB")

`now` is the clock of all budgets and of all times that are reported; a test puts its own there. It stands still while
Numba compiles a loop or loads it, so that what a search finds does not hang on what is in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from itertools import islice
from math import inf
from time import perf_counter as wall
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[str], None]
LEAST = 1e-9  # seconds that a caller is left with, however late it is: solvers refuse 0. Not tuned
LATE = "the time was up, more seconds may do"


class _Waiting(threading.local):
    """How long a thread has waited for the compiler; a loop that is compiled asks for others, so waits nest."""

    seconds = 0.0
    depth = 0
    since = 0.0


_waiting = _Waiting()


def now() -> float:
    """Return the seconds of a clock that stands still while this thread waits for the compiler."""
    return wall() - _waiting.seconds


def stop_clock() -> None:
    """Let the time until the clock is started, as often as it was stopped, not count in this thread."""
    if not _waiting.depth:
        _waiting.since = wall()
    _waiting.depth += 1


def start_clock() -> None:
    """Let the clock go on."""
    _waiting.depth -= 1
    if not _waiting.depth:
        _waiting.seconds += wall() - _waiting.since


@dataclass(slots=True)
class _Budget:
    """When it ends, in seconds of the clock or by a question; to whom it reports, and which part of all work it is."""

    end: float = inf
    stopped: Callable[[], bool] = lambda: False
    progress: Progress | None = None
    name: str = ""  # before each text
    whole: tuple[float, float] = (0.0, 1.0)  # where this begins in all the work, 0 to 1, and its share
    step: tuple[float, float] = (0.0, 1.0)  # the same of the step that is being done


_budget: ContextVar[_Budget] = ContextVar("budget", default=_Budget())  # noqa: B039 - it reports to nobody, so it never changes


def check_seconds(seconds: float) -> None:
    """Refuse seconds that are not positive and finite."""
    if not 0 < seconds < inf:
        raise ValueError(f"seconds: {seconds} must be positive and finite")


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a context variable have a value for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def within(
    seconds: float | None = None, progress: Progress | None = None, stopped: Callable[[], bool] | None = None
) -> Iterator[None]:
    """Open a budget that ends in so many seconds, never after that around it; None: with that.

    Work looks at it between its steps, so it ends within a step of the end. What is found by then depends on the
    machine; without an end all work is done, and is the same each time.

    Parameters
    ----------
    seconds : float, optional
    progress : callable, optional
        Called with a text that says what is being done; left out, the one of the budget around it. Its method
        `reached`, if it has one, is called with the share of the work that is done, 0 to 1.
    stopped : callable, optional
        Asked between steps whether the work was cancelled, say by another thread: then the time is up.

    Raises
    ------
    ValueError
        Seconds that are not positive and finite.

    Examples
    --------
    >>> with within(60):
    ...     with within(600):
    ...         over(), 59 < left() <= 60
    (False, True)
    >>> left()
    inf
    """
    around = _budget.get()
    end = around.end
    if seconds is not None:
        check_seconds(seconds)
        end = min(end, now() + seconds)
    ends = around.stopped if stopped is None else lambda: stopped() or around.stopped()
    listener = around if progress is None else _Budget(progress=progress)
    budget = replace(listener, end=end, stopped=ends, whole=listener.step)
    with setting(_budget, budget):
        yield


@contextmanager
def part(name: str = "", share: float = 1.0) -> Iterator[None]:
    """Open a budget of the first share of what is left; its name begins the reports in it.

    >>> with within(progress=print), part("search"), part("greedy", 0.3):
    ...     tell("3 of 4")
    search: greedy: 3 of 4
    """
    around = _budget.get()
    end = around.end
    if share < 1 and end < inf:
        begin = now()
        end = min(end, begin + share * (end - begin))
    called = f"{around.name}{name}: " if name else around.name
    with setting(_budget, replace(around, end=end, name=called, whole=around.step)):
        yield


def budgeted(function: Callable[P, T]) -> Callable[P, T]:
    """Open a budget around each call of a function, by its arguments `seconds` and `progress`, as far as it has these.

    >>> @budgeted
    ... def search(*, seconds: float | None = None) -> bool:
    ...     return left() < 2
    >>> search(), search(seconds=1)
    (False, True)
    """

    names = [*signature(function).parameters]

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        given: dict[str, Any] = {**dict(zip(names, args)), **kwargs}
        with within(given.get("seconds"), given.get("progress")):
            return function(*args, **kwargs)

    return called


def left() -> float:
    """Return the seconds that are left, a little where none are; infinite where there is no end."""
    if over():
        return LEAST
    end = _budget.get().end
    return inf if end == inf else max(end - now(), LEAST)


def seconds() -> float | None:
    """Return what is left as the keyword `seconds` of what knows no budget; None where there is no end."""
    return None if (rest := left()) == inf else rest


def hurried() -> bool:
    """Return whether there is an end."""
    return _budget.get().end < inf


def over() -> bool:
    """Return whether the time is up."""
    budget = _budget.get()
    return (budget.end < inf and now() >= budget.end) or budget.stopped()


def each(items: Iterable[T]) -> Iterator[T]:
    """Yield items until the time is up; the clock is looked at before an item is asked for."""
    rest = iter(items)
    while not over() and (following := list(islice(rest, 1))):
        yield from following


class TimeUp(Exception):
    """The time is up in the midst of something of which a part is of no use."""


def all_of(items: Iterable[T]) -> Iterator[T]:
    """Yield all items, of which a part is of no use; raise `TimeUp` where the time is up before that."""
    for item in items:
        if over():
            raise TimeUp
        yield item


def hint(otherwise: str = "") -> str:
    """Return why a search ended where it did: late, or as the caller says."""
    return LATE if over() else otherwise


def step(k: int, n: int) -> None:
    """Say that step k of n is being done, counted from 0; budgets that are opened meanwhile are parts of it.

    >>> class Share:
    ...     def __call__(self, text): ...
    ...     def reached(self, share):
    ...         print(share)
    >>> with within(progress=Share()):
    ...     step(1, 2)
    ...     with part("greedy"):
    ...         step(1, 4)
    0.5
    0.625
    """
    budget = _budget.get()
    if reached := getattr(budget.progress, "reached", None):
        first, width = budget.whole
        budget.step = first + width * k / max(n, 1), width / max(n, 1)
        reached(budget.step[0])


def tell(text: str) -> None:
    """Report what is being done, to whoever listens to this work."""
    teller()(text)


def teller() -> Progress:
    """Return `tell` as the keyword `progress` of what knows no budget; it stays with this one."""
    budget = _budget.get()
    return lambda text: budget.progress(budget.name + text) if budget.progress is not None else None
