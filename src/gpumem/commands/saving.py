"""What `--out DIR` writes: all of it, or nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem.commands.args import tell

if TYPE_CHECKING:
    from gpumem.machine import Machine
    from gpumem.report import Report


def check_name(out: str | None) -> None:
    """Refuse a folder without a name."""
    if out == "":
        raise ValueError("--out: the name is empty")


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a folder to write into; what is there in the end goes to `folder`: all of it, or nothing."""
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".gpumem.", dir=folder))  # inside: a move must not leave the disk
    except OSError as error:
        raise ValueError(f"--out: {folder}: cannot write here ({error.strerror})") from error
    try:
        yield staging
        _move(staging, folder)
    except OSError as error:
        raise ValueError(f"--out: {folder}: cannot write ({error.strerror})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _move(staging: Path, folder: Path) -> None:
    """Move files into their places; look at all places before."""
    files = [(path, folder / path.relative_to(staging)) for path in sorted(staging.rglob("*")) if path.is_file()]
    for _, place in files:
        if place.is_dir():
            raise ValueError(f"--out: {place} is a directory")
        if place.parent.exists() and not place.parent.is_dir():
            raise ValueError(f"--out: {place.parent} is not a directory")
    for path, place in files:
        place.parent.mkdir(exist_ok=True)
        path.replace(place)


def write_files(report: Report, machine: Machine, source: str, folder: Path) -> None:
    """Write plan, rewritten trace, timeline and pictures of a report."""
    from gpumem import plot
    from gpumem.io import chrome, write, write_text

    after = report.after
    write_text(folder / "plan.json", report.plan.to_json())
    write(
        folder / "trace.json.gz",
        after.trace,
        machine.durations(after.trace),
        after.placement,
        source=source,
        machine=machine.name,
        capacity=report.limit,
        makespan_ns=report.placed.makespan,
    )
    chrome.write(folder / "timeline.json", after.trace, after.timeline)
    if plot.available():
        plot.pictures(folder, report.before, after, report.load_limit if report.limit is None else report.limit)


def tell_without_pictures() -> None:
    """Say so where no pictures can be drawn."""
    from gpumem import plot

    if not plot.available():
        tell("no pictures: matplotlib is not installed (pip install 'gpumem[plot]')")
