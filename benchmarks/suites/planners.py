"""`python -m benchmarks planners`: every planner beside both bounds, on many traces at several limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks.leaderboard import summaries
from benchmarks.leaderboard.ledger import Ledger
from benchmarks.leaderboard.survey import BOUNDS, questions, survey
from benchmarks.suites.suite import Results, Suite
from gpumem import swap
from gpumem.base.names import one_of
from gpumem.base.units import fraction
from gpumem.cli.common.args import check_file, machine_flags, target_of
from gpumem.cli.common.files import traces_of
from gpumem.cli.common.parser import Parser, add_options
from gpumem.cli.common.planners import planner_flags
from gpumem.cli.common.planning import own_options, search_flags, tell_bound
from gpumem.cli.common.progress import Progress, tell
from gpumem.pipeline import report

if TYPE_CHECKING:
    from benchmarks.leaderboard.ledger import Row

PARTS = {
    "rows": "What each planner costs at each limit, a part of the peak live bytes; byte-counting simulation",
    "means": "Geometric mean of (1 + overhead), minus 1; (traces that it gets there on / that one could)",
    "against": "The search against each other planner, where both get there; ratio of their (1 + mean)",
    "gaps": "The search above each bound, in points of overhead",
}
SEARCH = "search"
LIMITS, FEW = "80%,60%,50%,40%,30%", "80%,60%"
LITTLE = {"effort": 0.02, "evaluations": 6, "rounds": 3}
QUICK = f"limits {FEW}, effort {LITTLE['effort']}, {LITTLE['rounds']} rounds of the bounds, no integer programs"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    bounds = ", ".join(BOUNDS)
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones)")
    known = f"swap planners, and {bounds}: what none of them can beat (default: %(default)s)"
    add_options(p, *planner_flags("all", known))
    p.add_argument("--only", metavar="NAME[,NAME]", help="plan with these only; rows of others come from --results")
    add_options(p, *machine_flags("gtx1080ti"))
    p.add_argument(
        "--limits", metavar="L[,L]", help=f"parts of the peak live bytes (default: {LIMITS})".replace("%", "%%")
    )
    p.add_argument(
        "--results", metavar="FILE", help="a line a row: rows that it has are not measured anew, new ones added"
    )
    p.add_argument("--again", action="store_true", help="of --results: plan anew all the same")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="plan in so many processes (default: %(default)s)")
    add_options(p, *search_flags("1 takes up to half a minute a plan"))


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print what every planner costs beside both bounds: overhead, bytes moved, time recomputed, seconds."""
    planners = _asked(args.planner, "--planner")
    if args.quick and args.planner == "all":
        planners = {name: planner for name, planner in planners.items() if name not in _programs(planners)}
    only = planners if args.only is None else _asked(args.only, "--only")
    planners = {**planners, **only}
    limits, executor = _limits(args), _executor(args.jobs)
    if args.results is not None:
        check_file(args.results, (".jsonl",), "--results")
    machine = target_of(args)
    own = (LITTLE if args.quick else {}) | own_options(args, planners)
    ledger = Ledger(args.results, only if args.again else (), tell)
    traces = traces_of(args.trace, machine, args.workspaces)
    tell_bound(machine)
    asked = questions(traces, machine, planners, limits, own)
    mine = [one for one in asked if one.name in only or ledger.get(one.asked())]
    with executor as pool:
        rows = survey(mine, executor=pool, ledger=ledger, progress=progress)
    broken = _tell(rows, len(asked) - len(mine), args.results)
    against = summaries.against(rows, SEARCH, _programs(planners))
    curves = summaries.figures(rows, SEARCH)
    summed = {"means": summaries.means(rows), "against": against, "gaps": summaries.gaps(rows, SEARCH)}
    results: Results = {"rows": rows, **summed, "curves": curves}
    return results | ({"failed": broken} if broken else {})


def _asked(text: str, what: str) -> dict[str, Callable[..., Any]]:
    """Return the swap planners and bounds of a list of names."""
    if text == "all":
        return {**swap.PLANNERS, **BOUNDS}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if ":" not in name:
            one_of(what, name, {**swap.PLANNERS, **BOUNDS})
    return {name: BOUNDS[name] if name in BOUNDS else swap.planner_of(name, what) for name in names}


def _programs(planners: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Those that prove what no plan can beat."""
    return [name for name, planner in planners.items() if name not in BOUNDS and swap.planner_of(planner).proves]


def _limits(args: argparse.Namespace) -> list[float]:
    text = args.limits if args.limits is not None else FEW if args.quick else LIMITS
    limits = [fraction(part, "--limits") for part in text.split(",")]
    for limit in limits:
        if not 0 < limit <= 1:
            raise ValueError(f"--limits: {limit:.4g} of the peak live bytes is not in (0, 100%]")
    return list(dict.fromkeys(limits))


def _executor(jobs: int) -> AbstractContextManager[Executor | None]:
    """Processes that start from nothing: threads of this one, and compiled code in them, do not fork."""
    if not 1 <= jobs <= 1000:
        raise ValueError(f"--jobs: {jobs} is not in 1..1000")
    if jobs == 1:
        return nullcontext()
    import multiprocessing
    import signal
    from concurrent.futures import ProcessPoolExecutor

    ignoring = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends them
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), *ignoring)


def _tell(rows: list[Row], absent: int, results: str | None) -> list[Row]:
    """Say which rows failed, and return them, and how many are left out."""
    broken = [row for row in rows if row["status"] == "failed"]
    if broken:
        again = "" if results is None else "; the same command asks them again"
        tell(f"{len(broken)} of {len(rows)} rows failed, the first: {broken[0]['planner']}: {broken[0]['why']}{again}")
    if absent:
        tell(f"{absent} rows are left out: --only plans nothing else, and --results has none of them")
    return broken


def pictures(results: Results) -> list[tuple[str, report.Figure | list[report.Figure]]]:
    """Overhead over the limit, a small picture for each trace."""
    return [("overhead", results["curves"])] if results["curves"] else []


SUITE = Suite(
    "planners",
    "every planner beside the bounds",
    PARTS,
    options,
    measure,
    lambda: summaries.TABLES,
    pictures,
    QUICK,
)
