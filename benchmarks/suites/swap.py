"""`python -m benchmarks swap`: how good the swap planners are, beside the bound and AutoSwap's figures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gpumem
from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem import pipeline, swap
from gpumem.base.errors import failure
from gpumem.base.units import amount
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import each_way, traces_of, with_workspaces
from gpumem.cli.common.parser import Parser, add_options
from gpumem.cli.common.planners import planner_flags, planners_asked
from gpumem.cli.common.planning import own_flags, own_options, tell_bound
from gpumem.cli.common.progress import Progress, tell, tell_failure
from gpumem.pipeline import report

if TYPE_CHECKING:
    from benchmarks.papers.autoswap import Study
    from benchmarks.papers.zero_overhead_limit import ZeroOverheadLimit

    Planners = Mapping[str, swap.Planner]

PARTS = {
    "lowest_limits": "Lowest load limit at no more than 0.5 % overhead, byte-counting simulation",
    "fig8": "Figure 8: the load in MiB, the largest of each stretch of ops",
    "fig9": "Figure 9: overhead in % by load limit, byte-counting; `as printed`: by the paper's rules, the rest ours",
    "fig10": "Figure 10: footprint in MiB by batch size, next to CnMem's; AutoSwap up to an overhead, address-aware",
    "fig11": "Figure 11: overhead in % by reduction of the placed footprint in %, address-aware simulation; or quoted",
    "optimality": "VI-B3: overhead at 54.1 % of the peak, and what of it could be avoided, byte-counting simulation",
    "table2": "Table II: the largest reduction of the load in % at no more than 0.5 % overhead",
}
LIMITS = ",".join(f"{p}%" for p in range(90, 25, -5))
FEW = "90%,75%,60%"
BATCHES, TWO = "0.25,0.5,1,2,4", "0.5,1"
FINE, COARSE = 0.005, 0.1  # parts of the peak live bytes
LITTLE = {"effort": 0.02, "evaluations": 6}  # of the planners that search
ROUNDS, SOME = 20, 3  # of the bound
QUICK = f"limits {COARSE:.0%} apart, {SOME} rounds of the bound, effort {LITTLE['effort']}, two batch sizes"
QUICK += ", no integer programs"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones; figures: vgg16)")
    add_options(p, *planner_flags("all", "swap planners (default: %(default)s)"))
    add_options(p, *machine_flags("gtx1080ti"))
    p.add_argument("--limits", metavar="L[,L]", help="of figures 9 to 11, bytes or %% (default: 90%% to 30%% by 5%%)")
    p.add_argument("--batches", metavar="F[,F]", help=f"of figure 10, times the recorded one (default: {BATCHES})")
    p.add_argument(
        "--step", type=float, help="between limits that are tried, part of the peak live bytes (default: 0.005)"
    )
    p.add_argument("--no-check", action="store_true", help="do not hold the plans against the naive oracles")
    add_options(p, *own_flags())


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print lowest limits of swap planners beside the bound, figures 8 to 11 and Table II of the AutoSwap paper."""
    if args.step is not None and not 0 < args.step <= 1:
        raise ValueError(f"--step: {args.step} is not in (0, 1]")
    planners = planners_asked(args)
    if args.quick and args.planner == "all":
        planners = {name: planner for name, planner in planners.items() if not planner.proves}
    machine, factors = target_of(args), _factors(args)
    step = args.step if args.step is not None else COARSE if args.quick else FINE
    traces = traces_of(args.trace, machine)
    ways = [(bare, rule, trace) for bare in traces for rule, trace in each_way(bare, args.workspaces)]
    results: Results = {part: [] for part in PARTS}
    failures: dict[tuple[str, str], Any] = {}
    if "lowest_limits" in parts or "table2" in parts:
        tell_bound(machine)
    for bare, rule, trace, limits in progress.over([(*way, _limits(args, way[-1])) for way in ways]):
        own = (LITTLE if args.quick else {}) | own_options(args, planners, trace.peak_live_bytes)
        case = pipeline.Case.of(trace, machine, load=trace.peak_live_bytes)
        failed = None if len(planners) == 1 else partial(_fail, failures, trace.name, args.traceback)
        again = partial(rebatched, bare, rule)
        study = papers.autoswap.Study(case, own, progress, tell, again, not args.no_check, failed)
        if "lowest_limits" in parts or "table2" in parts:
            results["lowest_limits"] += _lowest_limits(study, planners, step, SOME if args.quick else ROUNDS)
        if "optimality" in parts:
            results["optimality"] += papers.autoswap.avoidable(study, SOME if args.quick else ROUNDS)
        shown = args.trace or trace.name.startswith("vgg16")
        for part in [part for part in parts if shown and part.startswith("fig")]:
            figure = _figure(part, study, limits, factors, planners)
            results[part] += [] if figure is None else [(trace.name, figure)]
    results |= {"table2": papers.autoswap.depths(results["lowest_limits"])}
    return results | ({"failed": [*failures.values()]} if failures else {})


def _fail(failures: dict[tuple[str, str], Any], trace: str, traceback: bool, name: str, error: Exception) -> None:
    """Note that a planner failed, and say so where it is the first time on this trace."""
    if (trace, name) not in failures:
        tell_failure(f"{trace}: {name}", error, traceback)
    failures[trace, name] = {"trace": trace, "planner": name, "error": failure(error)}


def rebatched(bare: gpumem.Trace, rule: str, factor: float) -> gpumem.Trace:
    """The trace at another batch, by whose shapes it is given workspaces."""
    from gpumem.trace.batch import rebatch

    return with_workspaces(rebatch(bare, factor), rule)


def _figure(
    part: str, study: Study, limits: list[int], factors: list[float], planners: Planners
) -> report.Figure | None:
    """Measure one figure for one trace; None where there is nothing to show."""
    from gpumem.trace.kinds import PER_SAMPLE

    autoswap, trace = swap.PLANNERS["autoswap"], study.case.trace
    if part == "fig8":
        return papers.autoswap.profiles(study, autoswap)
    if part == "fig9":
        return papers.autoswap.scores(study, limits, autoswap, swap.PLANNERS.get("bayes"))
    if part == "fig11":
        return papers.autoswap.reductions(study, limits, planners)
    if PER_SAMPLE.isdisjoint(trace.buffers.kind):
        tell(f"{trace.name}: no figure 10: no buffer is of a kind that depends on the batch")
        return None
    return papers.autoswap.batches(study, limits, factors, autoswap)


def _lowest_limits(study: Study, planners: Planners, step: float, rounds: int) -> list[ZeroOverheadLimit]:
    """The lowest zero-overhead limit of each planner, next to the bound, checked."""
    from benchmarks.papers.zero_overhead_limit import lowest_limit, lowest_limit_of

    def told(who: str, text: str) -> None:
        study.progress(f"{trace.name}: {who}: {text}")

    trace, machine, found = study.case.trace, study.case.machine, []
    bound = swap.zero_stall_limit(trace, machine, rounds=rounds, progress=partial(told, "bound")).limit
    for name, planner in planners.items():
        progress = partial(told, name)
        known = planner.known({**study.options, "progress": progress})
        try:
            if planner.finds_lowest:
                own = partial(planner.with_known(known).lowest, seconds=known.get("seconds"), progress=progress)
                one = lowest_limit_of(trace, machine, own, name=name, bound=bound)
            else:
                call = partial(planner, **known)
                one = lowest_limit(trace, machine, call, step=step, name=name, bound=bound, progress=progress)
            study.verify(one)
        except Exception as error:
            study.fail(name, error)
            continue
        found.append(one)
    return found


def _limits(args: argparse.Namespace, trace: gpumem.Trace) -> list[int]:
    text = args.limits if args.limits is not None else FEW if args.quick else LIMITS
    return [amount(part, trace.peak_live_bytes, "--limits") for part in text.split(",")]


def _factors(args: argparse.Namespace) -> list[float]:
    text = args.batches if args.batches is not None else TWO if args.quick else BATCHES
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--batches: {text!r} is no list of numbers") from None
    for factor in factors:
        if not 0 < factor < math.inf:
            raise ValueError(f"--batches: {factor} is not positive and finite")
    return factors


SUITE = Suite("swap", "swap planners", PARTS, options, measure, lambda: papers.autoswap.TABLES, quick=QUICK)
