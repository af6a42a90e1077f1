"""`gpumem pool`: place buffers, without swapping."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import gpumem
from gpumem import io, pipeline, pool
from gpumem.base import work
from gpumem.base.names import chosen
from gpumem.base.units import amount, exact
from gpumem.cli.common.args import check_file
from gpumem.cli.common.files import FILE, source_of, with_workspaces, workspaces_flag
from gpumem.cli.common.parser import Command, option
from gpumem.cli.common.planning import own_options, search_flags
from gpumem.cli.common.progress import Progress, complain


@dataclass(frozen=True, slots=True)
class FileFootprint:
    """What a planner takes for the trace of a file, and whether that is within the capacity."""

    file: str
    footprint: pipeline.Footprint
    feasible: bool

    def row(self) -> dict[str, object]:
        """Return all figures for JSON."""
        return {"file": self.file, **self.footprint.row(), "feasible": self.feasible}

    def line(self) -> str:
        """Return a line of the table."""
        f = self.footprint
        least = "optimal" if f.optimal else f"{f.bound / f.peak_live_bytes if f.peak_live_bytes else 1:.4f}"
        sizes = f"{f.name:>10}{f.buffers:>9}{f.peak_live_bytes:>14}{f.size:>14}{f.ratio:>9.4f}"
        return f"{self.file[-31:]:32}{sizes}{least:>9}{f.seconds:>10.4f}{'yes' if self.feasible else 'no':>6}"


HEAD = (
    f"{'file':32}{'planner':>10}{'buffers':>9}{'peak live':>14}{'footprint':>14}{'ratio':>9}{'bound':>9}{'seconds':>10}"
    f"{'fits':>6}"
)


def run(args: argparse.Namespace) -> int:
    """Place the buffers of each file with each planner; compare footprint, peak live bytes and lower bound."""
    if args.out is not None:
        _check_out(args.out, len(args.file))
    planners = chosen(args.planner, pool.PLANNERS, "--planner")
    allocators = {} if args.allocator is None else chosen(args.allocator, pool.ALLOCATORS, "--allocator")
    options = own_options(args, planners)
    rows: list[FileFootprint] = []
    with Progress() as progress:
        for path in progress.over(args.file):
            work.tell(f"placing {path}")
            trace = with_workspaces(io.load(source_of(path)).trace, args.workspaces)
            capacity = None if args.capacity is None else amount(args.capacity, trace.peak_live_bytes, "--capacity")
            goal = {} if capacity is None else {"target": capacity}
            with work.part():
                footprints = pipeline.by_planners(trace, planners, options | goal, alignment=args.alignment)
                footprints += pipeline.by_allocators(trace, allocators)
            best = min((f.placement for f in footprints), key=lambda p: p.height)
            if capacity is not None and best.height > capacity:
                too_small = max(f.bound for f in footprints) > capacity
                end = "none can" if too_small else "not shown impossible"
                complain(f"{path}: no placement fits {exact(capacity)}, the lowest takes {exact(best.height)}; {end}")
            elif args.out:
                _write(args.out, source_of(path).name, trace, best, capacity)
            rows += [FileFootprint(path, f, capacity is None or f.size <= capacity) for f in footprints]
    print(json.dumps([row.row() for row in rows]) if args.json else "\n".join([HEAD, *(row.line() for row in rows)]))
    return 0 if {row.file for row in rows if row.feasible}.issuperset(args.file) else 3


def _check_out(out: str, files: int) -> None:
    if files > 1:
        raise ValueError(f"--out: one placement goes into {out!r}, but there are {files} files")
    check_file(out, (".csv", ".json", ".json.gz"))


def _write(out: str, source: str, trace: gpumem.Trace, placement: gpumem.Placement, capacity: int | None) -> None:
    ops: dict[str, Any] = {"machine": "gtx1080ti", "capacity": capacity}  # its durations where nobody measured any
    io.write(out, trace, placement, source=source, **({} if out.endswith(".csv") else ops))


COMMAND = Command(
    "pool",
    run,
    "place buffers, without swapping",
    options=(
        option("file", nargs="+", metavar="FILE", help=f"{FILE}, or minimalloc CSV"),
        option("--planner", default="best-fit", metavar="NAME[,NAME]|all", help="default: %(default)s"),
        option("--allocator", metavar="NAME[,NAME]|all", help="replay through online allocators as well"),
        *search_flags(),
        workspaces_flag(),
        option(
            "--capacity",
            metavar="SIZE",
            help="bytes the pool may have: planners that search go on for it, 30 s if --seconds or --effort do not say"
            " otherwise; exit status 3 if some file fits with no planner",
        ),
        option("--alignment", type=int, metavar="N", help="of offsets, in bytes (default: 256, 1 for bare instances)"),
        option("--out", metavar="FILE", help="write the best placement: a .csv with offsets or a .json[.gz] trace"),
        option("--json", action="store_true", help="print a list of rows"),
    ),
    examples=(
        "gpumem pool vgg16 resnet18 --planner all",
        "gpumem pool instance.csv --planner search --out placed.csv",
    ),
)
