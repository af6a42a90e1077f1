"""`gpumem plan`: the main job, from a trace and a limit to a verified plan."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpumem.commands.args import (
    Commands,
    Progress,
    amount,
    choice,
    choices,
    machine_of,
    self_check,
    tell,
    tell_when_compiling,
)

if TYPE_CHECKING:
    from gpumem.combined import Combined
    from gpumem.machine import Machine
    from gpumem.report import Report
    from gpumem.timeline import Timeline
    from gpumem.trace import Trace

QUADRATIC = 20_000  # ops or buffers that quadratic checks are run on


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser("plan", help="plan swaps and a placement for a memory limit", description=run.__doc__)
    p.add_argument("file", nargs="?", help="trace file; the bundled VGG16 (CIFAR, batch 100) if left out")
    size = "bytes, KiB/MiB/GiB or %% of the peak load"
    p.add_argument("--limit", help=f"size of the pool: {size} (placed clock; default: the machine's memory)")
    p.add_argument("--load-limit", help=f"the papers' limit, of the load: {size} (capacity clock)")
    p.add_argument("--machine", default="gtx1080ti", help="preset or JSON file (default: %(default)s)")
    p.add_argument("--swap", default="autoswap", help="swap planner (default: %(default)s)")
    score = "AutoSwap's score: doa, aoa, wdoa, swdoa, several, or all: the cheapest counts (default: %(default)s)"
    p.add_argument("--score", default="all", metavar="NAME[,NAME]|all", help=score)
    p.add_argument("--peaks", default="first", help="candidates straddle the first peak, or all (default: %(default)s)")
    p.add_argument("--threshold", default="1MiB", help="smallest buffer to swap (default: %(default)s)")
    p.add_argument("--pool", default="best-fit", help="pool planner (default: %(default)s)")
    p.add_argument("--alignment", type=int, default=256, help="of offsets, in bytes (default: %(default)s)")
    p.add_argument("--out", metavar="DIR", help="write plan, rewritten trace, timeline and pictures there")
    p.add_argument("--no-check", action="store_true", help="do not hold the result against the naive oracles")
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


def make(trace: Trace, machine: Machine, args: argparse.Namespace, progress: Progress) -> Report:
    """Plan, place, simulate and check."""
    from gpumem import pool, swap
    from gpumem.combined import at_load, cheapest, in_pool
    from gpumem.report import Report, Run
    from gpumem.simulate import simulate
    from gpumem.swap.scores import SCORES

    swapper, placer = choice(args.swap, swap.PLANNERS, "--swap"), choice(args.pool, pool.PLANNERS, "--pool")
    scores = choices(args.score, SCORES, "--score")
    options = {"peaks": args.peaks, "threshold": amount(args.threshold, trace.peak_load, "--threshold", least=0)}
    capacity = None if args.load_limit is None else amount(args.load_limit, trace.peak_load, "--load-limit")
    limit = None if args.limit is None else amount(args.limit, trace.peak_load, "--limit")
    if limit is None and capacity is None:
        limit = machine.capacity
    place = partial(placer, alignment=args.alignment)

    def solve(score: str) -> Combined:
        def plan(trace: Trace, load_limit: int) -> swap.Plan:
            return swapper(trace, machine, load_limit, score=score, **options)

        if capacity is not None and limit is None:
            return at_load(trace, capacity, swap=plan, pool=place)
        assert limit is not None
        told = partial(_told, progress, score)
        return in_pool(trace, limit, swap=plan, pool=place, load_limit=capacity, progress=told)

    def judge(found: Combined) -> Timeline:
        if capacity is not None:
            return simulate(found.trace, machine, capacity=capacity)
        return simulate(found.trace, machine, found.placement)

    progress("placing the unswapped trace")
    placement = place(trace)
    line = simulate(trace, machine, None if capacity is not None else placement)
    score, found, judged = cheapest(scores, solve, judge, least=line.makespan)
    placed = judged if capacity is None else simulate(found.trace, machine, found.placement)
    if not args.no_check:
        _check(trace, found, placed, judged, capacity, machine, progress)
    before, after = Run(trace, placement, line), Run(found.trace, found.placement, judged)
    clock = "placed" if capacity is None else "capacity"
    return Report(machine.name, score, found.plan, before, after, limit, found.load_limit, clock, placed)


def _told(progress: Progress, score: str, text: str) -> None:
    progress(f"{score}: {text}")


def _check(
    trace: Trace,
    found: Combined,
    placed: Timeline,
    judged: Timeline,
    capacity: int | None,
    machine: Machine,
    progress: Progress,
) -> None:
    """Hold the result against the naive oracles; of huge traces not against the quadratic ones."""
    from gpumem import check

    progress("checking the plan")
    swapped, duration, duplex = found.trace, machine.durations(found.trace), machine.duplex
    with self_check():
        check.placement(swapped, found.placement)
        check.data_flow(trace, swapped)
        if max(swapped.n, len(swapped.buffers)) > QUADRATIC:
            tell(f"{swapped.n} ops are too many for the naive oracles of budget and timeline: not checked")
            return
        check.budget(swapped, found.load_limit, host=machine.pinned)
        check.timeline(swapped, placed, duration, placement=found.placement, duplex=duplex)
        if capacity is not None:
            check.timeline(swapped, judged, duration, capacity=capacity, duplex=duplex)


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
