"""`gpumem swap`: compare swap planners at one limit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gpumem
from gpumem import io, pipeline, swap
from gpumem.base import work
from gpumem.base.errors import failure
from gpumem.base.units import exact
from gpumem.cli import bound
from gpumem.cli.common.args import check_folder, out_folder, target_of
from gpumem.cli.common.files import FILE, add_workspaces, read_with_ops, source_of
from gpumem.cli.common.parser import Commands
from gpumem.cli.common.planners import add_planner, planners_asked
from gpumem.cli.common.planning import add_limits, add_own, goals, own_options, uncertain
from gpumem.cli.common.progress import Progress, tell, tell_failure
from gpumem.cli.common.uncertainty import add_uncertainty
from gpumem.pipeline import report
from gpumem.swap.planner import SWAPS

if TYPE_CHECKING:
    from gpumem.simulator.uncertainty import Uncertainty

MEASURED = ("peak_load", "footprint", "bytes_out", "bytes_in", "recompute_ns", "overhead", "seconds")
PROGRAM = 30  # seconds of a planner that proves, where nobody says
# Of the bound, where nobody says: programs, so that it is the same each time, and seconds at most; else the part of the
# seconds of a planner. Not tuned.
ROUNDS, BOUNDING, SHARE = 3, 10.0, 0.5
COSTS = ("overhead", "overhead_median", "overhead_p95")
COLUMNS = ("planner", "limit", "feasible", *MEASURED)


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "swap",
        help="compare swap planners at one limit",
        description=run.__doc__,
        examples=["gpumem swap --limit 70%", "gpumem swap resnet18 --load-limit 60% --planner autoswap,tensile,search"],
    )
    p.add_argument("file", nargs="?", metavar="FILE", help=f"{FILE} (default: vgg16)")
    how = add_limits(p)
    add_planner(how, "all", "swap planners (default: %(default)s)")
    add_own(how)
    add_uncertainty(p, seed=False)
    add_workspaces(p)
    p.add_argument("--out", metavar="DIR", help="write DIR/swap.json, and into DIR/PLANNER what gpumem plan writes")
    p.add_argument("--json", action="store_true", help="print a list of rows")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan for one limit with each planner; compare load, footprint, traffic and overhead, the least overhead first.

    What does not get there stands at the end, and below all the certified bound, which no plan of its kind can beat.
    Integer programs get half a minute each and the bound ten seconds, unless --seconds says otherwise; ilp and mosos
    begin with the best plan that there is by then.
    """
    check_folder(args.out)
    if (args.limit is None) == (args.load_limit is None):
        raise ValueError("give one of --limit, the size of the pool, and --load-limit, the papers' load: --limit 70%")
    planners = planners_asked(args)
    target, source = target_of(args), source_of(args.file)
    with Progress() as progress:
        trace = read_with_ops(source, target, progress, args.workspaces)
        options = own_options(args, planners, trace.peak_load)
        with work.within(options.pop("seconds", None)):
            case = pipeline.Case.of(trace, target, **goals(args, trace))
            seconds = work.seconds()  # of each planner
        check, alone = not args.no_check, len(planners) == 1
        asked = _Asked(case, seconds, options, check, args.traceback, alone, uncertain(args))
        for name, planner in progress.over(planners.items()):
            asked.plan(name, planner)
        asked.bound()
    rows = [*asked.rows, *asked.last]
    if args.out is not None and asked.found:
        with out_folder(args.out) as folder:
            for name, planned in asked.found.items():
                (folder / name).mkdir()
                planned.write(folder / name, source.name)
            io.write_text(folder / "swap.json", json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows) if args.json else _table(case, [*sorted(asked.rows, key=_place), *asked.last]))
    return 1 if any("error" in row for row in rows) else 0 if asked.found else 3


@dataclass(slots=True)
class _Asked:
    """What came of the planners so far: rows, plans by name, and the row of the bound."""

    case: pipeline.Case
    seconds: float | None
    options: dict[str, Any]
    check: bool
    traceback: bool
    alone: bool
    uncertainty: Uncertainty | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, pipeline.Planned] = field(default_factory=dict)
    last: list[dict[str, Any]] = field(default_factory=list)

    def plan(self, name: str, planner: swap.Planner) -> None:
        """Add the row of a planner; one that fails costs the others nothing."""
        own, proved = dict(self.options), dict[str, Any]()
        seconds = PROGRAM if planner.proves and self.seconds is None else self.seconds
        if planner.proves and self.case.pool is None:
            if planner.starts_from:
                own |= {"start": _start(self.found.values(), swaps_only=planner.starts_from == SWAPS)}
            planner = _noting(planner.with_known(own), proved)
        try:
            with work.within(seconds), work.part(name):
                row, planned = _try(self.case, name, planner, own)
                if planned is not None and self.check:
                    work.tell("checking the plan")
                    planned.verified().checked.told(tell)
                if planned is not None and self.uncertainty is not None:
                    work.tell("drawing durations")
                    planned = planned.under(self.uncertainty)
                    assert planned.realised is not None
                    row |= planned.realised.row()
        except Exception as error:
            if self.alone:
                raise
            row, planned = self._failed(name, error), None
        self.rows.append(row | proved)
        if planned is not None:
            self.found[name] = planned

    def bound(self) -> None:
        """Add the row of the bound, where there is one."""
        how = {"rounds": ROUNDS} if self.seconds is None else {}
        try:
            with work.within(BOUNDING if self.seconds is None else SHARE * self.seconds), work.part(bound.BOUND):
                least = bound.row_of(self.case, self.found, **how)
        except Exception as error:
            least = self._failed(bound.BOUND, error)
        self.last = [] if least is None else [dict.fromkeys(COLUMNS) | least]

    def _failed(self, name: str, error: Exception) -> dict[str, Any]:
        tell_failure(name, error, self.traceback)
        return _row(self.case, name) | {"error": failure(error)}


def _place(row: dict[str, Any]) -> tuple[bool, float]:
    """Where a row stands: by overhead; what is not reached in the end. Equal ones stay in the order asked."""
    return not row["feasible"], row["overhead"] if row["feasible"] else 0.0


def _row(case: pipeline.Case, name: str) -> dict[str, Any]:
    """The row of a planner that has found nothing yet."""
    return dict.fromkeys(COLUMNS) | {"planner": name, "limit": case.pool or case.load, "feasible": False}


def _start(found: Collection[pipeline.Planned], *, swaps_only: bool) -> gpumem.Plan | None:
    """The plan of least overhead, which an integer program begins with."""
    able = [one for one in found if not swaps_only or len(one.plan.swaps) == len(one.plan.decisions)]
    return min(able, key=lambda one: one.overhead).plan if able else None


def _noting(planner: swap.Planner, proved: dict[str, Any]) -> swap.Planner:
    """Make a planner that notes what another one proves."""

    def noting(trace: gpumem.Trace, machine: gpumem.Machine, limit: int) -> gpumem.Plan:
        found = planner.propose(trace, machine, limit)
        proved.update(least_ns=found.lower_bound, gap=found.gap, proof=found.status)
        return found.plan

    return swap.planner_of(noting)


def _try(
    case: pipeline.Case, name: str, planner: Callable[..., gpumem.Plan], options: dict[str, Any]
) -> tuple[dict[str, Any], pipeline.Planned | None]:
    """Return the row of one planner, and what it planned if it gets there."""
    work.tell("planning")
    row, begin = _row(case, name), work.now()
    try:
        with work.part(share=pipeline.PLANNING):
            found = case.solve(planner, options)
    except (gpumem.Infeasible, gpumem.NotReached) as stop:
        tell(f"{name}: {stop}")
        return row | {"seconds": work.now() - begin}, None
    seconds = work.now() - begin
    planned = case.planned(found, case.judge(found), name)
    full = planned.report().row()
    known = {key: full[key] for key in ("bytes_out", "bytes_in", "recompute_ns", "overhead")}
    known |= {"peak_load": full["peak_load_after"], "footprint": full["footprint_after"]}
    return row | known | {"feasible": True, "seconds": seconds}, planned


def _table(case: pipeline.Case, rows: list[dict[str, Any]]) -> str:
    trace, pool = case.trace, case.pool is not None
    goal = f"pool of {report.human(case.pool or 0)}" if pool else f"load limit of {report.human(case.load or 0)}"
    clock = "placed" if pool else "capacity"
    drawn = ["as planned", "median", "95 %"] if any("draws" in r for r in rows) else ["overhead"]
    lines = [["planner", "peak load", "footprint", "bytes out", "bytes in", "run again", *drawn, "seconds"]]
    for r in rows:
        costs = [report.percent(r[key]) if key in r else "" for key in COSTS[: len(drawn)] if r["overhead"] is not None]
        if "not_for" in r:
            lines.append([bound.BOUND, *[""] * 5, *costs, f"{r['seconds']:.3f}"])
            continue
        if not r["feasible"]:
            why, seconds = ("failed", "") if "error" in r else ("not reached", f"{r['seconds']:.3f}")
            lines.append([r["planner"], why, *[""] * (4 + len(drawn)), seconds])
            continue
        sizes = [report.human(r[key]) for key in ("peak_load", "footprint", "bytes_out", "bytes_in")]
        again = report.human_ns(r["recompute_ns"]) if r["recompute_ns"] else "-"
        lines.append([r["planner"], *sizes, again, *costs, f"{r['seconds']:.3f}"])
    about = f"{trace.name}: peak load {report.human(trace.peak_load)}, footprint {report.human(case.placement.height)}"
    told = report.unswapped(trace.peak_load, case.placement.height, case.pool, case.load)
    table = f"{about}, on {case.machine.name}, {goal} ({clock} clock)\n\n{report.columns(lines)}"
    for r in rows:
        if "gap" in r:
            least = f"at least {report.human_ns(r['least_ns'])} an iteration, gap {report.percent(r['gap'])}"
            table += f"\n{r['planner']}: {least}, {r['proof']}"
        if "not_for" in r:
            table += f"\n{bound.told_of(r)}"
    return "\n\n".join(filter(None, [table, "" if pool else _beyond(case.load or 0, rows), told]))


def _beyond(limit: int, rows: list[dict[str, Any]]) -> str:
    """Say which plans keep a load limit and take a larger pool: nobody shall read their overhead as one within it."""
    planned = [r for r in rows if r["feasible"]]
    over = [r["footprint"] for r in planned if r["footprint"] > limit]
    if not over:
        return ""
    show = exact if report.human(max(over)) == report.human(limit) else report.human
    most, count = show(max(over)), f"{len(over)} of {len(planned)} plans"
    those = f"{count} take more, up to {most}" if len(over) > 1 else f"{count} takes more, {most}"
    if len(planned) == 1:
        those = f"it takes {most}"
    return (
        f"Overheads are by the load: {show(limit)} of live bytes, wherever they lie.\n"
        f"As one pool {those} (footprint); --limit plans for a pool."
    )
