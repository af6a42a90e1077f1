"""`python -m benchmarks uncertain`: what plans cost where durations are off the estimates that they were made with."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks.papers import three_ways
from benchmarks.suites.suite import Results, Suite
from gpumem import swap
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.units import fraction, percent
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import traces_of
from gpumem.cli.common.parser import Parser, Reader, add_options, finite
from gpumem.cli.common.planners import planner_flags, planners_asked
from gpumem.cli.common.progress import Progress
from gpumem.io import bundled
from gpumem.pipeline import report
from gpumem.simulator import Machine, Realised, Uncertainty, realised
from gpumem.trace import Trace

Row = dict[str, Any]
PARTS = {
    "rows": "Overheads as planned, and in the median and the 95th percentile of draws; byte-counting simulation",
    "robust": "The plan for sigma 0.3 beside the search for the estimates, and the best other planner's",
    "sums": "In how many of these cases",
    "sharing": "Three ways for jobs to share a GPU, by capacity (of their peaks added up) and arrivals, at sigma 0.3",
}
CROWDS = (("vgg16", "vgg16"), ("vgg16", "resnet18", "vgg16"))
SEVERAL, ONE = 5, 1  # draws of a crowd
SIGMAS, AT = (0.1, 0.3, 0.5), 0.3
LIMITS = "70%,50%"
ROBUST = f"search, robust {AT}"
DRAWS, FEW = 100, 20
POINT = 0.01  # of an iteration
QUICK = f"{FEW} draws, only vgg16 and mlp3 if none is named, no planner that takes long"
LONG = ("bayes", "checkpoint", "dtr")


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones)")
    add_options(p, *planner_flags("all", "swap planners, without those that prove (default: %(default)s)"))
    add_options(p, *machine_flags("gtx1080ti"))
    p.add_argument(
        "--limits", default=LIMITS, metavar="L[,L]", help="parts of the peak live bytes (default: 70%%,50%%)"
    )
    p.add_argument("--effort", type=float, default=0.05, metavar="X", help="of the searches (default: %(default)s)")
    slowed = "of jobs: as in gpumem jobs (default: 0.5)"
    p.add_argument("--slowdown", type=Reader(finite, "--slowdown"), default=0.5, metavar="S", help=slowed)
    p.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws that judge (default: %(default)s)")


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print what every planner's plan costs where ops and copies are off by log-normal factors."""
    planners = {name: planner for name, planner in planners_asked(args).items() if not planner.proves}
    if args.quick:
        planners = {name: planner for name, planner in planners.items() if name not in LONG}
    if "search" in planners:
        planners["search"] = planners["search"].with_(effort=args.effort)
        planners[ROBUST] = planners["search"].with_(robust=AT)
    machine, draws = target_of(args), FEW if args.quick else DRAWS
    limits = [fraction(part, "--limits") for part in args.limits.split(",")]
    named = args.trace or (["vgg16", "mlp3"] if args.quick else [])
    cases = [(trace, part) for trace in traces_of(named, machine, args.workspaces) for part in limits]
    rows: list[Row] = []
    for trace, part in progress.over(cases if {"rows", "robust", "sums"} & {*parts} else []):
        rows += _rows(trace, part, machine, planners, args.seed, draws, progress)
    compared, off = [*_compared(rows)], Uncertainty(spread=AT, seed=args.seed)
    sharing: list[Row] = []
    for names in CROWDS if "sharing" in parts else ():
        crowd = three_ways.Crowd(tuple(map(bundled, names)), machine, args.slowdown, off)
        sharing += three_ways.rows(crowd, ONE if args.quick else SEVERAL, progress)
    return {"rows": rows, "robust": compared, "sums": [_sums(compared)] if compared else [], "sharing": sharing}


def _rows(
    trace: Trace,
    part: float,
    machine: Machine,
    planners: Mapping[str, swap.Planner],
    seed: int,
    draws: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row a planner that gets there."""
    limit = int(part * trace.peak_live_bytes)
    for name, planner in planners.items():
        progress(f"{trace.name} at {part:.0%}: {name}")
        try:
            planned = planner(trace, machine, limit).apply(trace)
        except (Infeasible, NotReached):
            continue

        @cache
        def drawn(sigma: float, planned: Trace = planned) -> Realised:
            off = Uncertainty(spread=sigma, copy_noise=sigma, seed=seed)
            return realised(trace, planned, machine, off, capacity=limit, draws=draws if sigma else 1)

        row: Row = {"trace": trace.name, "limit": part, "planner": name, "planned": drawn(0.0).median}
        for sigma in SIGMAS:
            row |= {f"median_{sigma}": drawn(sigma).median, f"p95_{sigma}": drawn(sigma).p95}
        yield row


def _compared(rows: Sequence[Row]) -> Iterator[Row]:
    """The robust plan beside others, of each trace and limit where there is one."""
    p95 = f"p95_{AT}"
    for robust in (row for row in rows if row["planner"] == ROBUST):
        case = [r for r in rows if (r["trace"], r["limit"]) == (robust["trace"], robust["limit"]) and r is not robust]
        plain = next((r for r in case if r["planner"] == "search"), robust)
        best = min(case, key=lambda r: r[p95], default=robust)
        yield {
            "trace": robust["trace"],
            "limit": robust["limit"],
            "robust": robust[p95],
            "search": plain[p95],
            "best": best[p95],
            "whose": best["planner"],
            "planned": robust["planned"],
            "search_planned": plain["planned"],
        }


def _sums(rows: Sequence[Row]) -> Row:
    """In how many cases the robust plan costs no more than the best other one, and little where nothing is off."""
    return {
        "cases": len(rows),
        "at_most_best": sum(r["robust"] <= r["best"] for r in rows),
        "below_search": sum(r["robust"] < r["search"] for r in rows),
        "within_a_point": sum(r["planned"] <= r["search_planned"] + POINT for r in rows),
        "median_p95": float(np.median([r["robust"] for r in rows])),
        "median_p95_search": float(np.median([r["search"] for r in rows])),
    }


def row_table(rows: Sequence[Row]) -> str:
    """Overheads by planner."""
    head = ["trace", "limit", "planner", "as planned", *(f"{what} {s}" for s in SIGMAS for what in ("median", "95 %"))]
    keys = ["planned", *(f"{what}_{s}" for s in SIGMAS for what in ("median", "p95"))]
    lines = [[r["trace"], f"{r['limit']:.0%}", r["planner"], *(percent(r[key]) for key in keys)] for r in rows]
    return report.columns([head, *lines])


def robust_table(rows: Sequence[Row]) -> str:
    """95th percentiles, and what is as planned."""
    head = ["trace", "limit", "95 %: robust", "search", "best other", "", "as planned: robust", "search"]
    keys = ("robust", "search", "best", "whose", "planned", "search_planned")
    lines = [[r["trace"], f"{r['limit']:.0%}", *(r[k] if k == "whose" else percent(r[k]) for k in keys)] for r in rows]
    return report.columns([head, *lines])


def sum_table(rows: Sequence[Row]) -> str:
    """One line a sum."""
    told = {
        "at_most_best": "the robust plan's 95th percentile is at most the best other planner's",
        "below_search": "it is below the search's",
        "within_a_point": "as planned it costs at most a point more than the search's",
    }
    lines = [f"{text}: {r[key]} of {r['cases']}" for r in rows for key, text in told.items()]
    lines += [
        f"median of 95th percentiles: {percent(r['median_p95'])}, search {percent(r['median_p95_search'])}"
        for r in rows
    ]
    return "\n".join(lines)


TABLES = {"rows": row_table, "robust": robust_table, "sums": sum_table, "sharing": three_ways.table}
SUITE = Suite("uncertain", "plans where durations are off", PARTS, options, measure, lambda: TABLES, quick=QUICK)
