"""`gpumem bound`: what no swap plan can beat."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

import gpumem
from gpumem import pipeline, swap
from gpumem.base import work
from gpumem.base.units import amount
from gpumem.cli.common.args import add_machine, target_of
from gpumem.cli.common.files import FILE, add_workspaces, read_with_ops, source_of
from gpumem.cli.common.parser import Commands
from gpumem.cli.common.planning import SIZE, tell_bound
from gpumem.cli.common.progress import Progress, tell
from gpumem.pipeline import report
from gpumem.swap.fluid import in_a_row

BOUND = "bound"  # the row of a table of planners


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "bound",
        help="certify what no swap plan can beat",
        description=run.__doc__,
        examples=["gpumem bound vgg16 --machine gtx1080ti", "gpumem bound vgg16 --load-limit 60%"],
    )
    p.add_argument("file", nargs="?", metavar="FILE", help=f"{FILE} (default: vgg16)")
    add_machine(p, "gtx1080ti")
    p.add_argument("--load-limit", metavar="SIZE", help=f"bound the stall at this load as well: {SIZE}")
    p.add_argument("--seconds", type=float, metavar="S", help="the whole time: what is certified by then counts")
    add_workspaces(p)
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify the lowest load limit without any stall, and the least stall at a limit, over all swap plans."""
    target, source = target_of(args), source_of(args.file)
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise ValueError(f"--seconds: {args.seconds} is not positive and finite")
    tell_bound(target)
    with Progress() as progress:
        trace = read_with_ops(source, target, progress, args.workspaces)
        load = None if args.load_limit is None else amount(args.load_limit, trace.peak_load, "--load-limit")
        begin, row = work.now(), {"trace": trace.name, "machine": target.name, "peak_load": trace.peak_load}
        with work.within(args.seconds):
            row |= _bounds(trace, target, load)
            late = work.over()
        row["seconds"] = work.now() - begin
    if late:
        tell("the time was up: what is said is certain, more seconds may say more")
    print(json.dumps(row) if args.json else _text(row))
    return 0


def _bounds(trace: gpumem.Trace, target: gpumem.Machine, load: int | None) -> dict[str, Any]:
    """The limit without a stall, and the least stalls at a load limit."""
    kinds = [] if load is None else [("", False), ("_recompute", True)]
    with work.part("the limit without a stall", 1 / (1 + len(kinds))):
        work.tell("bounding")
        row: dict[str, Any] = {"zero_stall_limit": swap.zero_stall_limit(trace, target).limit}
    if load is None:
        return row
    base = gpumem.simulator.simulate(trace, target).makespan
    row["load_limit"] = load
    for k, (kind, recompute) in enumerate(kinds, 1):
        work.step(k, 1 + len(kinds))
        with work.part("the stall at the limit", 1 / (1 + len(kinds) - k)):
            work.tell("bounding")
            stall = swap.least_stall(trace, target, load, recompute=recompute).stall_ns
        row |= {f"least_stall{kind}_ns": stall, f"least_overhead{kind}": stall / base if base else None}
    return row


def row_of(case: pipeline.Case, found: Mapping[str, pipeline.Planned], **how: Any) -> dict[str, Any] | None:
    """Return a row of `gpumem swap`: what no plan of the kinds that stand there can beat, within the budget.

    `found` has what is planned by each planner; `how` are options of `least_stall`. Bounded are swaps, and values made
    again where one of the plans does that. `not_for` names those that have ops run by others of their ways, whom it
    does not bound. None where nothing is known: without a plan, or where ops wait for one another or for a host.
    """
    base, limit, pool = case.line.makespan, case.pool or case.load, case.pool is not None
    if not found or not base or limit is None or not in_a_row(case.trace, case.machine):
        return None
    ways = [name for name, one in found.items() if any(isinstance(d, gpumem.Variant) for d in one.plan.decisions)]
    bounded = [one for name, one in found.items() if name not in ways]
    again = any(len(one.plan.swaps) < len(one.plan.decisions) for one in bounded or found.values())
    begin, stall = work.now(), 0
    if all(one.overhead > 0 for one in bounded):  # else nothing is left to be said
        work.tell("bounding")
        stall = swap.least_stall(case.trace, case.machine, limit, recompute=again, placed=pool, **how).stall_ns
    known = {"overhead": stall / base, "seconds": work.now() - begin, "least_ns": base + stall}
    return {"planner": BOUND, "limit": limit, **known, "recompute": again, "not_for": ways}


def told_of(row: Mapping[str, Any]) -> str:
    """Return in a line what such a row says of whom."""
    kinds = "swaps and makes values again" if row["recompute"] else "swaps"
    ways = f"; not for {', '.join(row['not_for'])}: ops run in other ways" if row["not_for"] else ""
    return f"{BOUND}: certified for every plan that {kinds}{ways}"


def _text(row: dict[str, Any]) -> str:
    peak, limit = row["peak_load"], row["zero_stall_limit"]
    lines = [
        f"{row['trace']} on {row['machine']}: what no swap plan can beat",
        "",
        f"{'peak load':26}{report.human(peak):>14}",
        f"{'limit without a stall':26}{report.human(limit):>14}{_part(limit, peak):>10}",
    ]
    if "load_limit" in row:
        lines.append(f"{'load limit':26}{report.human(row['load_limit']):>14}{_part(row['load_limit'], peak):>10}")
        for name, kind in (("least stall there", ""), ("with values made again", "_recompute")):
            stall, over = row[f"least_stall{kind}_ns"], row[f"least_overhead{kind}"]
            part = "" if over is None else f"{over:+.2%}"
            lines.append(f"{name:26}{report.human_ns(stall):>14}{part:>10}")
    return "\n".join([*lines, f"{'seconds':26}{row['seconds']:>14.3f}"])


def _part(size: int, whole: int) -> str:
    return f"{size / whole:.1%}" if whole else ""
