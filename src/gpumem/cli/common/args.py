"""What options of several commands say: machines, one of a few words, the folder of `--out`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gpumem
from gpumem import io
from gpumem.base.names import unknown
from gpumem.base.units import amount, human
from gpumem.cli.common.parser import Option, finite, option
from gpumem.cli.common.progress import tell
from gpumem.pipeline import report

if TYPE_CHECKING:
    from gpumem.execute.latency import Calibration

T = TypeVar("T")


OWN = "(default: the machine's)"
MEASURED = option(
    "--measured",
    metavar="TABLE",
    help="times of ops that have none: learned from a table of gpumem measure --ops, in place of a roofline",
)


def machine_flags(default: str) -> tuple[Option, ...]:
    """Return the machine, and what of it a run may have otherwise."""
    return (
        option("--machine", default=default, help="preset or JSON file (default: %(default)s)"),
        option("--host-ns", read=finite, metavar="NS", help=f"host time to launch an op {OWN}"),
        option("--copy-host-ns", read=finite, metavar="NS", help=f"host time to launch a copy {OWN}"),
        option("--reserved", metavar="SIZE", help=f"memory that no program gets, as the context {OWN}"),
        MEASURED,
    )


def times_of(path: str) -> Calibration:
    """Return what a table of `gpumem measure --ops` says of any op."""
    from gpumem.execute.latency import calibrate, read_table

    table = read_table(path)
    try:
        return calibrate(table)
    except (ValueError, ImportError) as error:
        raise ValueError(f"--measured: {path}: {str(error).removeprefix('table: ')}") from error


def target_of(args: argparse.Namespace) -> gpumem.Machine:
    """Return the machine that the options of `machine_flags` describe."""
    machine = machine_of(args.machine)
    costs = ("host_ns", "copy_host_ns")
    changes: dict[str, Any] = {name: cost for name in costs if (cost := getattr(args, name)) is not None}
    if args.reserved is not None:
        changes["reserved"] = amount(args.reserved, machine.capacity, "--reserved", least=0)
        if changes["reserved"] >= machine.capacity:
            raise ValueError(f"--reserved: {args.reserved} leaves nothing of {human(machine.capacity)}")
    machine = machine.with_(**changes)
    return machine if args.measured is None else machine.measured(times_of(args.measured))


def machine_of(text: str) -> gpumem.Machine:
    """Return the preset called `text`, or the machine that the JSON file at `text` describes."""
    from gpumem.simulator.machine import PRESETS, Machine

    if text in PRESETS:
        return Machine.named(text)
    if not text:
        raise ValueError("--machine: the name is empty")
    if not (text.endswith(".json") or _exists(text)):
        raise unknown(text, PRESETS, "--machine")
    return io.read_machine(text)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name that no file can have
        return False


def check_folder(out: str | None) -> None:
    """Refuse a folder that cannot be written to, before anything is computed for it."""
    if out is None:
        return
    if not out:
        raise ValueError("--out: the name is empty")
    there = next(path for path in (Path(out), *Path(out).absolute().parents) if _exists(str(path)))
    if not there.is_dir():
        raise ValueError(f"--out: {out}: cannot write here ({there} is a file, and --out a folder)")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"--out: {out}: cannot write here (Permission denied)")


def check_file(out: str, suffixes: tuple[str, ...], option: str = "--out") -> None:
    """Refuse a file that cannot be written to, before anything is computed for it."""
    if not out.endswith(suffixes):
        raise ValueError(f"{option}: {out!r} ends in none of {', '.join(suffixes)}")
    folder = Path(out).absolute().parent
    obstacles = {
        "Is a directory": Path(out).is_dir(),
        "No such folder": not folder.is_dir(),
        "Permission denied": not os.access(folder, os.W_OK | os.X_OK),
    }
    for why, there in obstacles.items():
        if there:
            raise ValueError(f"{out}: cannot write here ({why})")


def each(text: str, count: int, what: str, read: Callable[[str, str], T]) -> list[T]:
    """Read one value for each job; the last one given counts for the rest."""
    values = [read(part.strip(), what) for part in text.split(",")]
    if len(values) > count:
        raise ValueError(f"{what}: {len(values)} values for {count} jobs")
    return values + values[-1:] * (count - len(values))


def count_of(text: str, what: str) -> int:
    """Read a number of iterations."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) <= 10**6 or len(text) > 10:
        raise ValueError(f"{what}: {text[:40]!r} is not a number of iterations from 1 to a million")
    return int(text)


@contextmanager
def out_folder(out: str, *, pictures: bool = True) -> Iterator[Path]:
    """The folder of `--out`, written as a whole or not; say so where pictures belong there and none can be drawn."""
    with io.staged(out, "--out") as folder:
        yield folder
    if pictures and not report.plot.available():
        tell("no pictures: matplotlib is not installed (pip install 'gpumem[plot]')")
