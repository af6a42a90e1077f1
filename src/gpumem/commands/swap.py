"""`gpumem swap`: compare swap planners at one limit."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem.commands.args import Commands, Progress, choices, machine_of, tell, tell_when_compiling
from gpumem.commands.planning import Task, add_limits, add_own, own_options, read_with_ops, source_of
from gpumem.commands.saving import check_name, staged, tell_without_pictures, write_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem.report import Report
    from gpumem.swap.plan import Plan

COLUMNS = ("planner", "limit", "feasible", "peak_load", "footprint", "bytes_out", "bytes_in", "overhead", "seconds")


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser("swap", help="compare swap planners at one limit", description=run.__doc__)
    p.add_argument("file", nargs="?", help="trace file, or vgg16, resnet18, mlp3, which are bundled (default: vgg16)")
    p.add_argument("--planner", default="all", metavar="NAME[,NAME]|all", help="default: %(default)s")
    add_limits(p)
    add_own(p)
    p.add_argument("--out", metavar="DIR", help="write DIR/swap.json, and into DIR/PLANNER what gpumem plan writes")
    p.add_argument("--json", action="store_true", help="print a list of rows")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan for one limit with each planner; compare load, footprint, traffic and overhead."""
    check_name(args.out)
    if (args.limit is None) == (args.load_limit is None):
        raise ValueError("give one of --limit, the size of the pool, and --load-limit, the papers' load")
    tell_when_compiling()
    from gpumem.swap import PLANNERS

    planners = {name: PLANNERS[name] for name in choices(args.planner, PLANNERS, "--planner")}
    target, source = machine_of(args.machine), source_of(args.file)
    with Progress() as progress:
        trace = read_with_ops(source, target, progress)
        options = own_options(args, planners, trace.peak_load)
        task = Task.of(trace, target, args, progress)
        rows, reports = [], {}
        for name, planner in planners.items():
            row, report = _try(task, name, planner, options, progress)
            rows.append(row)
            if report is not None:
                reports[name] = report
                if not args.no_check:
                    progress(f"{name}: checking the plan")
                    task.check(report)
    if args.out is not None and reports:
        with staged(Path(args.out)) as folder:
            _write(folder, rows, reports, task, source.name)
        tell_without_pictures()
    print(json.dumps(rows) if args.json else _table(task, rows))
    return 0 if reports else 3


def _try(
    task: Task, name: str, planner: Callable[..., Plan], options: dict[str, Any], progress: Progress
) -> tuple[dict[str, Any], Report | None]:
    """Return the row of one planner, and its report if it gets there."""
    from gpumem.errors import Infeasible, NotReached

    progress(f"{name}: planning")
    row = dict.fromkeys(COLUMNS) | {"planner": name, "limit": task.limit or task.load_limit, "feasible": False}
    begin = time.perf_counter()
    try:
        found = task.solve(planner, options, lambda text: progress(f"{name}: {text}"))
    except (Infeasible, NotReached) as stop:
        tell(f"{name}: {stop}")
        return row | {"seconds": time.perf_counter() - begin}, None
    seconds = time.perf_counter() - begin
    report = task.report(found, task.judge(found), name)
    full = report.row()
    known = {key: full[key] for key in ("bytes_out", "bytes_in", "overhead")}
    known |= {"peak_load": full["peak_load_after"], "footprint": full["footprint_after"]}
    return row | known | {"feasible": True, "seconds": seconds}, report


def _write(folder: Path, rows: list[dict[str, Any]], reports: dict[str, Report], task: Task, source: str) -> None:
    from gpumem.io import write_text

    for name, report in reports.items():
        (folder / name).mkdir()
        write_files(report, task.machine, source, folder / name)
    write_text(folder / "swap.json", json.dumps(rows, indent=1) + "\n")


def _table(task: Task, rows: list[dict[str, Any]]) -> str:
    from gpumem.report import columns, human, percent

    trace, pool = task.trace, task.limit is not None
    goal = f"pool of {human(task.limit or 0)}" if pool else f"load limit of {human(task.load_limit or 0)}"
    clock = "placed" if pool else "capacity"
    lines = [[*COLUMNS[:1], *(c.replace("_", " ") for c in COLUMNS[3:])]]
    for r in rows:
        if not r["feasible"]:
            lines.append([r["planner"], "not reached", "", "", "", "", f"{r['seconds']:.3f}"])
            continue
        sizes = [human(r[key]) for key in ("peak_load", "footprint", "bytes_out", "bytes_in")]
        lines.append([r["planner"], *sizes, percent(r["overhead"]), f"{r['seconds']:.3f}"])
    about = f"{trace.name}: peak load {human(trace.peak_load)}, footprint {human(task.placement.height)}"
    return f"{about}, on {task.machine.name}, {goal} ({clock} clock)\n\n{columns(lines)}"
