"""What options of several commands say: machines, one of a few words, the folder of `--out`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gpumem
from gpumem import io, report
from gpumem.commands.progress import tell
from gpumem.names import one_of, unknown


def machine_of(text: str) -> gpumem.Machine:
    """Return the preset called `text`, or the machine that the JSON file at `text` describes."""
    from gpumem.machine import PRESETS, Machine

    if text in PRESETS:
        return Machine.named(text)
    if not (text.endswith(".json") or _exists(text)):
        raise unknown(text, PRESETS, "--machine")
    return io.read_machine(text)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


def one_word(args: argparse.Namespace, option: str, known: Iterable[str]) -> None:
    """Refuse the value of an option, where there is one, that is none of the known words."""
    if (given := getattr(args, option)) is not None:
        one_of(f"--{option}", given, known)


def finite(args: argparse.Namespace, *options: str) -> None:
    """Refuse options that are negative or no finite number."""
    for name in options:
        if not 0 <= getattr(args, name) < math.inf:
            raise ValueError(f"--{name}: {getattr(args, name)} is not finite and >= 0")


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
