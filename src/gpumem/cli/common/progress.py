"""What a person is told while a command works, on stderr: what it is at, how far it got, what went wrong."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from gpumem.base import work
from gpumem.base.errors import failure, own_planner

if TYPE_CHECKING:
    from rich.progress import Progress as Bar, TaskID

T = TypeVar("T")


class _Voice:
    """Whether this command was asked to be quiet."""

    quiet = False


voice = _Voice()


def tell(text: str) -> None:
    """Say something to the person, without disturbing what the command prints; `--quiet` leaves it unsaid."""
    if not voice.quiet:
        complain(text)


def tell_failure(name: str, error: BaseException, trace: bool) -> None:
    """Say that one of several things failed while the others go on; with `trace`, where in the code too."""
    if trace and sys.stderr is not None:
        traceback.print_exception(error)
    report = "" if own_planner(error) else ", to report it"
    complain(f"{name}: failed: {failure(error)}" + ("" if trace else f"; --traceback shows where{report}"))


def complain(text: str) -> None:
    """Say what went wrong, asked to be quiet or not."""
    with suppress(OSError):  # nobody can be told; the exit status stands
        if sys.stderr is not None:  # it is where the shell closed it
            print(f"gpumem: {text}", file=sys.stderr, flush=True)


class Progress:
    """Says on stderr what a command is at, once it has been running for two seconds.

    On a terminal it is one line that stays: what, how far, elapsed and left. Elsewhere it is a line whenever what is
    done changes. That a loop is compiled for the first time on this machine is said at once. A thread does the talking,
    so that one long step is no silence (compiled loops release the GIL).

    As a context it is who is told of all work in there (`gpumem.base.work`). `over` is a loop of the command itself;
    steps that are counted in a part of a turn are parts of the turn.

    >>> with Progress() as progress:
    ...     for name in progress.over(["vgg16", "mlp3"]):
    ...         with work.part(name):
    ...             work.step(1, 4)
    ...             work.tell("greedy")
    ...             print(progress.line(), progress.share)
    1 of 2: vgg16: greedy 0.125
    2 of 2: mlp3: greedy 0.625
    """

    def __init__(self, seconds: float = 2) -> None:
        self.seconds = seconds
        self.text, self.turn, self.share = "working", (1, 1), 0.0
        self.reporting = work.within(progress=self)
        self.begin = time.monotonic()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        self.text = text

    def reached(self, share: float) -> None:
        """Hear which part of the work is done, as far as it is counted."""
        self.share = share

    def over(self, turns: Iterable[T]) -> Iterator[T]:
        """Go through a loop of the command, and know how far it is."""
        turns = turns if isinstance(turns, Sized) else list(turns)
        for k, one in enumerate(turns, 1):
            self.turn = k, len(turns)
            work.step(k - 1, len(turns))
            yield one
        self.turn = 1, 1

    def line(self) -> str:
        """What is being done and how far it is, for people."""
        k, n = self.turn
        return f"{k} of {n}: {self.text}" if n > 1 else self.text

    def __enter__(self) -> Progress:
        from gpumem.base.jit import on_first_compile

        on_first_compile(_tell_of_compiling)
        self.begin = time.monotonic()
        if not voice.quiet:
            self.thread.start()
        self.reporting.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.reporting.__exit__(None, None, None)
        self.done.set()
        if self.thread.ident is not None:
            self.thread.join()  # nothing is said once the command is done

    def _watch(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
            if not self.done.wait(self.seconds):
                self._live()
            return
        reported = ""
        while not self.done.wait(self.seconds):
            if reported != (line := self.line()):
                reported = line
                tell(reported)

    def _live(self) -> None:
        """Keep one line on a terminal up to date; it vanishes in the end."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[clock]}"),
        )
        console = Console(file=sys.stderr)
        with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
            task = bar.add_task(self.line(), total=None, clock="")
            self._show(bar, task)
            while not self.done.wait(0.1):
                self._show(bar, task)

    def _show(self, bar: Bar, task: TaskID) -> None:
        spent, share = time.monotonic() - self.begin, self.share
        left = f", about {_clock(spent / share - spent)} left" if share else ""
        bar.update(
            task, description=self.line(), total=1 if share else None, completed=share, clock=_clock(spent) + left
        )


def _tell_of_compiling(kept: bool) -> None:
    if kept:
        tell("compiling (the first time only; the result is kept)")
    else:
        tell("compiling, each time anew: set NUMBA_CACHE_DIR to a folder that you may write to")


def _clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> _clock(75.4), _clock(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
