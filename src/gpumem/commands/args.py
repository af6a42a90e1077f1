"""What all commands share: the parser, machines, what a person is told, and one-line errors."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import gpumem
from gpumem import io, report

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]
else:
    Commands = object


class Parser(argparse.ArgumentParser):
    """Bad usage is one line on stderr and exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see {self.prog} --help)\n")


def machine_of(text: str) -> gpumem.Machine:
    """Return the preset called `text`, or the machine that the JSON file at `text` describes."""
    from gpumem.machine import PRESETS, Machine

    if text in PRESETS or not (text.endswith(".json") or _exists(text)):
        return Machine.named(text)
    return io.read_machine(text)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


class Progress:
    """Says on stderr what a command is at, once it has been running for two seconds, and whenever that changes.

    That a loop is compiled for the first time on this machine is said at once. A thread does the talking, so that one
    long step is no silence (compiled loops release the GIL).
    """

    def __init__(self, seconds: float = 2) -> None:
        self.seconds = seconds
        self.text = "working"
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> Progress:
        from gpumem._jit import on_first_compile

        on_first_compile(lambda: tell("compiling (the first time only; the result is kept)"))
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()  # nothing is said once the command is done

    def _watch(self) -> None:
        told = ""
        while not self.done.wait(self.seconds):
            if told != self.text:
                told = self.text
                tell(told)


def tell(text: str) -> None:
    """Say something to the person, without disturbing what the command prints."""
    print(f"gpumem: {text}", file=sys.stderr, flush=True)


def check_name(out: str | None) -> None:
    """Refuse a folder without a name, before anything is computed for it."""
    if out == "":
        raise ValueError("--out: the name is empty")


@contextmanager
def out_folder(out: str, *, pictures: bool = True) -> Iterator[Path]:
    """The folder of `--out`, written as a whole or not; say so where pictures belong there and none can be drawn."""
    with io.staged(out, "--out") as folder:
        yield folder
    if pictures and not report.plot.available():
        tell("no pictures: matplotlib is not installed (pip install 'gpumem[plot]')")
