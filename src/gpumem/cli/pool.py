"""`gpumem pool`: place buffers, without swapping."""

from __future__ import annotations

import argparse
import json
from typing import Any

import gpumem
from gpumem import io, pipeline, pool
from gpumem.base import work
from gpumem.base.names import chosen
from gpumem.base.units import amount, exact
from gpumem.cli.common.args import check_file
from gpumem.cli.common.files import FILE, add_workspaces, source_of, with_workspaces
from gpumem.cli.common.parser import Commands
from gpumem.cli.common.planning import add_search, own_options
from gpumem.cli.common.progress import Progress, complain


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "pool",
        help="place buffers, without swapping",
        description=run.__doc__,
        examples=[
            "gpumem pool vgg16 resnet18 --planner all",
            "gpumem pool instance.csv --planner search --out placed.csv",
        ],
    )
    p.add_argument("file", nargs="+", metavar="FILE", help=f"{FILE}, or minimalloc CSV")
    p.add_argument("--planner", default="best-fit", metavar="NAME[,NAME]|all", help="default: %(default)s")
    p.add_argument("--allocator", metavar="NAME[,NAME]|all", help="replay through online allocators as well")
    add_search(p)
    add_workspaces(p)
    p.add_argument(
        "--capacity",
        metavar="SIZE",
        help="bytes the pool may have: planners that search go on for it, 30 s if --seconds or --effort do not say"
        " otherwise; exit status 3 if some file fits with no planner",
    )
    p.add_argument(
        "--alignment", type=int, metavar="N", help="of offsets, in bytes (default: 256, 1 for bare instances)"
    )
    p.add_argument("--out", metavar="FILE", help="write the best placement: a .csv with offsets or a .json[.gz] trace")
    p.add_argument("--json", action="store_true", help="print a list of rows")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Place the buffers of each file with each planner; compare footprint, peak load and what is provably least."""
    if args.out is not None:
        _check_out(args.out, len(args.file))
    planners = chosen(args.planner, pool.PLANNERS, "--planner")
    allocators = {} if args.allocator is None else chosen(args.allocator, pool.ALLOCATORS, "--allocator")
    options = own_options(args, planners)
    rows = []
    with Progress() as progress:
        for path in progress.over(args.file):
            progress(f"placing {path}")
            trace = with_workspaces(io.load(source_of(path)).trace, args.workspaces)
            capacity = None if args.capacity is None else amount(args.capacity, trace.peak_load, "--capacity")
            goal = {} if capacity is None else {"target": capacity}
            with work.part():
                found = pipeline.by_planners(trace, planners, options | goal, alignment=args.alignment)
                found += pipeline.by_allocators(trace, allocators)
            best = min((f.placement for f in found), key=lambda p: p.height)
            if capacity is not None and best.height > capacity:
                shown = max(f.bound for f in found) > capacity
                end = "none can" if shown else "not shown impossible"
                complain(f"{path}: no placement fits {exact(capacity)}, the lowest takes {exact(best.height)}; {end}")
            elif args.out:
                _write(args.out, source_of(path).name, trace, best, capacity)
            rows += [{"file": path, **f.row(), "feasible": capacity is None or f.size <= capacity} for f in found]
    print(json.dumps(rows) if args.json else _table(rows))
    fitting = {row["file"] for row in rows if row["feasible"]}
    return 0 if fitting.issuperset(args.file) else 3


def _check_out(out: str, files: int) -> None:
    if files > 1:
        raise ValueError(f"--out: one placement goes into {out!r}, but there are {files} files")
    check_file(out, (".csv", ".json", ".json.gz"))


def _write(out: str, source: str, trace: gpumem.Trace, placement: gpumem.Placement, capacity: int | None) -> None:
    ops: dict[str, Any] = {"machine": "gtx1080ti", "capacity": capacity}  # its durations where nobody measured any
    io.write(out, trace, placement, source=source, **({} if out.endswith(".csv") else ops))


def _table(rows: list[dict[str, Any]]) -> str:
    columns = ("planner", "buffers", "peak load", "footprint", "ratio", "bound", "seconds", "fits")
    lines = ["{:32}{:>10}{:>9}{:>14}{:>14}{:>9}{:>9}{:>10}{:>6}".format("file", *columns)]
    for r in rows:
        cells = [r[key] for key in ("planner", "buffers", "peak_load", "footprint", "ratio")]
        least = "optimal" if r["optimal"] else f"{r['bound'] / r['peak_load'] if r['peak_load'] else 1:.4f}"
        cells += [least, r["seconds"], "yes" if r["feasible"] else "no"]
        lines.append("{:32}{:>10}{:>9}{:>14}{:>14}{:>9.4f}{:>9}{:>10.4f}{:>6}".format(r["file"][-31:], *cells))
    return "\n".join(lines)
