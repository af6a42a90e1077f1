"""`gpumem swap`: compare swap planners at one limit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import gpumem
from gpumem import io, pipeline, swap
from gpumem.base import work
from gpumem.base.errors import failure
from gpumem.base.units import exact, human, human_ns, percent
from gpumem.cli import bound
from gpumem.cli.common.args import check_folder, out_folder, target_of
from gpumem.cli.common.files import FILE, read_with_ops, source_of, workspaces_flag
from gpumem.cli.common.parser import Command, option
from gpumem.cli.common.planners import planner_flags, planners_asked
from gpumem.cli.common.planning import goals, limit_flags, own_flags, own_options, uncertain
from gpumem.cli.common.progress import Progress, tell, tell_failure
from gpumem.cli.common.uncertainty import uncertainty_flags
from gpumem.pipeline.report import columns, unswapped
from gpumem.swap.planner import SWAPS, Proposal
from gpumem.trace import COPY_IN, COPY_OUT

if TYPE_CHECKING:
    from gpumem.simulator.uncertainty import Uncertainty

PROGRAM = 30  # seconds of a planner that proves, where nobody says
# Of the bound, where nobody says: programs, so that it is the same each time, and seconds at most; else the part of the
# seconds of a planner. Not tuned.
ROUNDS, BOUNDING, SHARE = 3, 10.0, 0.5
MEASURED = ("peak_live_bytes", "footprint", "bytes_out", "bytes_in", "recompute_ns", "overhead", "seconds")
COLUMNS = ("planner", "limit", "feasible", *MEASURED)  # of JSON


def run(args: argparse.Namespace) -> int:
    """Plan for one limit with each planner; compare live bytes, footprint, traffic, overhead; the least overhead first.

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
        trace = read_with_ops(source, target, args.workspaces)
        options = own_options(args, planners, trace.peak_live_bytes)
        with work.within(options.pop("seconds", None)):
            case = pipeline.Case.of(trace, target, **goals(args, trace))
            seconds = work.seconds()  # of each planner
        check, alone = not args.no_check, len(planners) == 1
        asked = _Asked(
            case,
            seconds=seconds,
            options=options,
            check=check,
            traceback=args.traceback,
            alone=alone,
            uncertainty=uncertain(args),
        )
        for name, planner in progress.over(planners.items()):
            asked.plan(name, planner)
        last = asked.bound()
    rows = [dict.fromkeys(COLUMNS) | one.row() for one in (*asked.attempts, *last)]
    if args.out is not None and asked.plans:
        with out_folder(args.out) as folder:
            for name, planned in asked.plans.items():
                (folder / name).mkdir()
                planned.write(folder / name, source.name)
            io.write_text(folder / "swap.json", json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows) if args.json else _table(case, [*sorted(asked.attempts, key=_place), *last]))
    return 1 if any("error" in row for row in rows) else 0 if asked.plans else 3


@dataclass(frozen=True, slots=True)
class PlannerRow:
    """What came of one planner: a plan, or none; what it proved, and why it failed."""

    planner: str
    limit: int
    seconds: float | None = None
    planned: pipeline.Planned | None = None
    proved: Proposal | None = None
    error: str = ""

    def row(self) -> dict[str, object]:
        """Return all figures for JSON: bytes, nanoseconds, fractions."""
        row = {"planner": self.planner, "limit": self.limit, "feasible": self.planned is not None}
        if self.planned is not None:
            known = self.planned.row()
            row |= {name: known[name] for name in ("bytes_out", "bytes_in", "recompute_ns", "overhead")}
            row |= {"peak_live_bytes": known["peak_live_bytes_after"], "footprint": known["footprint_after"]}
        row |= {"seconds": self.seconds}
        if self.planned is not None and self.planned.realised is not None:
            row |= self.planned.realised.row()
        row |= {"error": self.error} if self.error else {}
        if self.proved is not None:
            row |= {"least_ns": self.proved.lower_bound, "gap": self.proved.gap, "proof": self.proved.status}
        return row

    def cells(self, drawn: int) -> list[str]:
        """Return a row of the table, with so many overheads."""
        if self.planned is None:
            why = "failed" if self.error else "not reached"
            return [self.planner, why, *[""] * (4 + drawn), "" if self.error else f"{self.seconds:.3f}"]
        after, realised = self.planned.after, self.planned.realised
        sizes = [after.trace.peak_live_bytes, after.placement.height, after.copied(COPY_OUT), after.copied(COPY_IN)]
        recomputed = human_ns(after.recomputed_ops()[1]) if after.recomputed_ops()[1] else "-"
        costs = [self.planned.overhead, *([realised.median, realised.p95] if realised else [])]
        return [self.planner, *map(human, sizes), recomputed, *map(percent, costs), f"{self.seconds:.3f}"]

    @property
    def note(self) -> str:
        """Say what it proved, if it did."""
        if self.proved is None:
            return ""
        least = f"at least {human_ns(self.proved.lower_bound)} an iteration, gap {percent(self.proved.gap)}"
        return f"{self.planner}: {least}, {self.proved.status}"


@dataclass(slots=True)
class _Asked:
    """What came of the planners so far."""

    case: pipeline.Case
    seconds: float | None
    options: dict[str, Any]
    check: bool
    traceback: bool
    alone: bool
    uncertainty: Uncertainty | None = None
    attempts: list[PlannerRow] = field(default_factory=list)

    @property
    def plans(self) -> dict[str, pipeline.Planned]:
        """The plans, by planner."""
        return {one.planner: one.planned for one in self.attempts if one.planned is not None}

    def plan(self, name: str, planner: swap.Planner) -> None:
        """Ask a planner; one that fails costs the others nothing."""
        own, proved = dict(self.options), list[Proposal]()
        seconds = PROGRAM if planner.proves and self.seconds is None else self.seconds
        if planner.proves and self.case.pool is None:
            if planner.starts_from:
                own |= {"start": _start(self.plans.values(), swaps_only=planner.starts_from == SWAPS)}
            planner = _noting(planner.with_known(own), proved)
        try:
            with work.within(seconds), work.part(name):
                one = self._attempt(name, planner, own)
        except Exception as error:
            if self.alone:
                raise
            one = self._failed(name, error)
        self.attempts.append(replace(one, proved=proved[-1] if proved else None))

    def _attempt(self, name: str, planner: swap.Planner, options: dict[str, Any]) -> PlannerRow:
        """Plan, judge and check."""
        work.tell("planning")
        one, begin = PlannerRow(name, self._limit), work.now()
        try:
            with work.part(share=pipeline.PLANNING):
                results = self.case.solve(planner, options)
        except (gpumem.Infeasible, gpumem.NotReached) as stop:
            tell(f"{name}: {stop}")
            return replace(one, seconds=work.now() - begin)
        one = replace(one, seconds=work.now() - begin)
        planned = self.case.planned(results, self.case.judge(results), name)
        if self.check:
            work.tell("checking the plan")
            planned.verified().checked.report_to(tell)
        if self.uncertainty is not None:
            work.tell("drawing durations")
            planned = planned.under(self.uncertainty)
        return replace(one, planned=planned)

    def bound(self) -> list[PlannerRow | bound.Certified]:
        """Return the bound, where there is one."""
        how = {"rounds": ROUNDS} if self.seconds is None else {}
        try:
            with work.within(BOUNDING if self.seconds is None else SHARE * self.seconds), work.part(bound.BOUND):
                least = bound.certify(self.case, self.plans, **how)
        except Exception as error:
            return [self._failed(bound.BOUND, error)]
        return [] if least is None else [least]

    def _failed(self, name: str, error: Exception) -> PlannerRow:
        tell_failure(name, error, self.traceback)
        return PlannerRow(name, self._limit, error=failure(error))

    @property
    def _limit(self) -> int:
        return self.case.pool or self.case.load or 0


def _place(one: PlannerRow) -> tuple[bool, float]:
    """Where a row stands: by overhead; what is not reached in the end. Equal ones stay in the order asked."""
    return one.planned is None, 0.0 if one.planned is None else one.planned.overhead


def _start(results: Collection[pipeline.Planned], *, swaps_only: bool) -> gpumem.Plan | None:
    """The plan of least overhead, which an integer program begins with."""
    able = [one for one in results if not swaps_only or len(one.plan.swaps) == len(one.plan.decisions)]
    return min(able, key=lambda one: one.overhead).plan if able else None


def _noting(planner: swap.Planner, proved: list[Proposal]) -> swap.Planner:
    """Make a planner that notes what another one proves."""

    def noting(trace: gpumem.Trace, machine: gpumem.Machine, limit: int) -> gpumem.Plan:
        proved.append(planner.propose(trace, machine, limit))
        return proved[-1].plan

    return swap.planner_of(noting)


def _table(case: pipeline.Case, rows: list[PlannerRow | bound.Certified]) -> str:
    trace, height, pool = case.trace, case.placement.height, case.pool is not None
    goal = (
        f"pool of {human(case.pool or 0)} (address-aware"
        if pool
        else f"load limit of {human(case.load or 0)} (byte-counting"
    )
    planned = [one.planned for one in rows if isinstance(one, PlannerRow) and one.planned is not None]
    drawn = ["as planned", "median", "95 %"] if any(one.realised for one in planned) else ["overhead"]
    lines = [["planner", "peak live bytes", "footprint", "bytes out", "bytes in", "recomputed", *drawn, "seconds"]]
    lines += [one.cells(len(drawn)) for one in rows]
    notes = [one.note for one in rows if one.note]
    about = f"{trace.name}: peak live bytes {human(trace.peak_live_bytes)}, footprint {human(height)}"
    warning = unswapped(trace.peak_live_bytes, height, case.pool, case.load)
    table = "\n".join([f"{about}, on {case.machine.name}, {goal} simulation)", "", columns(lines), *notes])
    over = "" if pool else _beyond(case.load or 0, [one.placement.height for one in planned])
    return "\n\n".join(filter(None, [table, over, warning]))


def _beyond(limit: int, footprints: list[int]) -> str:
    """Say which plans keep a load limit and take a larger pool: nobody shall read their overhead as one within it."""
    over = [footprint for footprint in footprints if footprint > limit]
    if not over:
        return ""
    show = exact if human(max(over)) == human(limit) else human
    most, count = show(max(over)), f"{len(over)} of {len(footprints)} plans"
    those = f"{count} take more, up to {most}" if len(over) > 1 else f"{count} takes more, {most}"
    if len(footprints) == 1:
        those = f"it takes {most}"
    return (
        f"Overheads are by the limit: {show(limit)} of live bytes, wherever they lie.\n"
        f"As one pool {those} (footprint); --limit plans for a pool."
    )


COMMAND = Command(
    "swap",
    run,
    "compare swap planners at one limit",
    options=(
        option("file", nargs="?", metavar="FILE", help=f"{FILE} (default: vgg16)"),
        *limit_flags(*planner_flags("all", "swap planners (default: %(default)s)"), *own_flags()),
        uncertainty_flags(seed=False),
        workspaces_flag(),
        option("--out", metavar="DIR", help="write DIR/swap.json, and into DIR/PLANNER what gpumem plan writes"),
        option("--json", action="store_true", help="print a list of rows"),
    ),
    examples=("gpumem swap --limit 70%", "gpumem swap resnet18 --load-limit 60% --planner autoswap,tensile,search"),
)
