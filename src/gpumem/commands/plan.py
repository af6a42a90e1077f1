"""`gpumem plan`: the main job, from a trace and a limit to a verified plan."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem.commands.args import Commands, Progress, machine_of, tell, tell_when_compiling
from gpumem.commands.planning import add_options, make

if TYPE_CHECKING:
    from gpumem.machine import Machine
    from gpumem.report import Report


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser("plan", help="plan swaps and a placement for a memory limit", description=run.__doc__)
    p.add_argument("file", nargs="?", help="trace file; the bundled VGG16 (CIFAR, batch 100) if left out")
    add_options(p)
    p.add_argument("--out", metavar="DIR", help="write plan, rewritten trace, timeline and pictures there")
    p.add_argument("--json", action="store_true", help="print the table as one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan swaps and a placement, simulate the iteration with and without them, check, and report."""
    if args.out == "":
        raise ValueError("--out: the name is empty")
    tell_when_compiling()
    from gpumem.io import bundled_path, load

    target = machine_of(args.machine)
    source = Path(args.file) if args.file is not None else bundled_path("vgg16")
    with Progress() as progress:
        progress(f"reading {source}")
        loaded = load(source)
        trace, timed = loaded.trace, loaded.meta.get("machine") or target.name
        if not len(trace.ops):
            raise ValueError(f"{source}: a bare instance has no ops to swap between; see gpumem pool")
        if timed != target.name:
            tell(f"{source} holds the durations of {timed}; {target.name} only gives those of new copies")
        report = make(trace, target, args, progress)
    if args.out is not None:
        save(report, target, source.name, Path(args.out))
    print(json.dumps(report.row()) if args.json else report.table())
    return 0


def save(report: Report, machine: Machine, source: str, folder: Path) -> None:
    """Write everything into `folder`: all of it, or nothing."""
    try:
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".gpumem.", dir=folder))  # inside: a move must not leave the disk
    except OSError as error:
        raise ValueError(f"--out: {folder}: cannot write here ({error.strerror})") from error
    try:
        _write(report, machine, source, staging)
        for path in staging.iterdir():
            if (folder / path.name).is_dir():
                raise ValueError(f"--out: {folder / path.name} is a directory")
        for path in staging.iterdir():
            path.replace(folder / path.name)
    except OSError as error:
        raise ValueError(f"--out: {folder}: cannot write ({error.strerror})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _write(report: Report, machine: Machine, source: str, folder: Path) -> None:
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
    else:
        tell("no pictures: matplotlib is not installed (pip install 'gpumem[plot]')")
