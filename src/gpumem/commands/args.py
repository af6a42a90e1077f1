"""What the command line understands: amounts of memory, machines, names of planners; and one-line errors."""

from __future__ import annotations

import argparse
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from gpumem.machine import Machine

    Commands = argparse._SubParsersAction["Parser"]
else:
    Commands = object

T = TypeVar("T")
_TIMES = {"": 1, "NS": 1, "US": 10**3, "MS": 10**6, "S": 10**9}
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Parser(argparse.ArgumentParser):
    """Bad usage is one line on stderr and exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())} (see {self.prog} --help)\n")


def amount(text: str, whole: int, what: str, *, least: int = 1) -> int:
    """Read bytes, `KiB/MiB/GiB` or `%` of `whole`.

    >>> amount("70%", 1000, "--limit"), amount("1.5KiB", 1000, "--limit"), amount("42", 1000, "--limit")
    (700, 1536, 42)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|[A-Za-z]*)\s*", text)
    if not match:
        raise ValueError(f"{what}: {text!r} is not an amount; write bytes, 300MiB, 1.5GiB or 70%")
    number, unit = match[1], match[2].upper()
    if unit != "%" and unit not in _UNITS:
        raise ValueError(f"{what}: unit {match[2]!r} of {text!r} is unknown; use B, KiB, MiB, GiB or %")
    if len(number) > 40:
        raise ValueError(f"{what}: {text[:40]!r}... has too many digits")
    value = int(Fraction(number) * (Fraction(whole, 100) if unit == "%" else _UNITS[unit]))  # 100% is all of it
    if value >= 2**62:
        raise ValueError(f"{what}: {text!r} is too large")
    if value < least:
        raise ValueError(f"{what}: {text!r} is {value} bytes, it must be at least {least}")
    return value


def moment(text: str, what: str) -> int:
    """Read nanoseconds, or `us`, `ms`, `s`.

    >>> moment("1.5ms", "--arrive"), moment("20", "--arrive")
    (1500000, 20)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _TIMES:
        raise ValueError(f"{what}: {text!r} is not a time; write 20us, 1.5ms, 2s or nanoseconds")
    if len(match[1]) > 40 or (value := int(Fraction(match[1]) * _TIMES[match[2].upper()])) >= 2**53:
        raise ValueError(f"{what}: {text[:40]!r} is too long")
    return value


def machine_of(text: str) -> Machine:
    """Return the preset called `text`, or the machine that the JSON file at `text` describes."""
    from dataclasses import fields

    from gpumem.machine import PRESETS, Machine

    if text in PRESETS or not (text.endswith(".json") or _exists(text)):
        return Machine.named(text)
    from gpumem.io.files import read_bytes
    from gpumem.io.schema import decode

    data = read_bytes(text)
    described = decode(data, Machine, f"{text}: machine")
    unknown = set(decode(data, dict[str, object], f"{text}: machine")) - {field.name for field in fields(Machine)}
    if unknown:
        raise ValueError(f"{text}: machine: key {min(unknown)!r} is unknown")
    return described


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


def choice(text: str, table: Mapping[str, T], what: str) -> T:
    """Look up one name."""
    if text not in table:
        raise ValueError(f"{what}: {text!r} is unknown; there are {', '.join(table)}")
    return table[text]


def choices(text: str, table: Mapping[str, object], what: str) -> list[str]:
    """Read a comma-separated list of names, or `all`."""
    names = list(table) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        choice(name, table, what)
    return list(dict.fromkeys(names))


def tell_when_compiling() -> None:
    """Say so when a loop is compiled for the first time on this machine."""
    from gpumem._jit import on_first_compile

    on_first_compile(lambda: tell("compiling (the first time only; the result is kept)"))


@contextmanager
def self_check() -> Iterator[None]:
    """What an oracle objects to in here is our fault, not bad input; bad input stays what it is."""
    from gpumem.errors import CheckError

    try:
        yield
    except CheckError as error:
        raise RuntimeError(f"the result failed its own check, please report this: {error}") from error


class Progress:
    """Says on stderr what a command is at, once it has been running for two seconds, and whenever that changes.

    A thread does the talking, so that one long step is no silence (compiled loops release the GIL).
    """

    def __init__(self, seconds: float = 2) -> None:
        self.seconds = seconds
        self.text = "working"
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> Progress:
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
