"""`python -m benchmarks snu`: the SNU thesis' ways to swap on its card, next to its figures."""

from __future__ import annotations

import argparse
from functools import partial

import gpumem
from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem import io, pipeline
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import each_way, traces_of
from gpumem.cli.common.parser import Parser, add_options
from gpumem.cli.common.planning import own_options, search_flags, tell_bound
from gpumem.cli.common.progress import Progress, tell
from gpumem.pipeline import report

PARTS = {
    "ways": "Figures 7 and 8: computation and stall of an iteration within the card's memory, byte-counting simulation",
    "capacities": "Figure 8 where the card has less, so that heuristic and program are told apart",
    "moved": "What swapping on demand moves in an iteration, and what addresses change",
    "models": "The thesis' figures: what would have to be otherwise, alone, for the same relative time",
}
STAND_IN, FACTORS = "resnet18", (7.8, 17.5, 30.4)  # it then takes what the thesis' ResNet34 takes: figure 7's sizes
ROUNDS, SOME = 20, 3  # of the bound
FINE, COARSE = 1.1, 2.0  # between the values that are tried of what could be otherwise
LITTLE = {"effort": 0.02}  # of the planners that search
QUICK = f"{SOME} rounds of the bound, effort {LITTLE['effort']}, no integer program, coarse values of what may differ"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    told = ", ".join(f"{factor:g}" for factor in FACTORS)
    p.add_argument("trace", nargs="*", help=f"trace files or bundled names (default: {STAND_IN}, batch x {told})")
    add_options(p, *machine_flags("rx5700xt"))
    p.add_argument("--no-check", action="store_true", help="do not hold the plans against the naive oracles")
    add_options(p, *search_flags("1 takes up to half a minute a plan"))


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print figures 7 and 8 of the SNU thesis: an iteration on a small card, on demand and by plans."""
    paper = papers.snu
    machine = paper.context(target_of(args))
    if "ways" in parts:
        tell_bound(machine)
    planners = paper.planners(program=not args.quick)
    own = (LITTLE if args.quick else {}) | own_options(args, planners)
    results: Results = {part: [] for part in PARTS}
    for trace in progress.over(_traces(args, machine, progress)):
        from gpumem.trace.batch import rebatch

        case = pipeline.Case.of(trace, machine, load=machine.available)
        study = papers.autoswap.Study(case, own, progress, tell, partial(rebatch, trace), not args.no_check)
        if "ways" in parts:
            results["ways"] += paper.ways(study, planners, SOME if args.quick else ROUNDS)
        if "capacities" in parts and not args.quick:
            results["capacities"] += paper.capacities(study, rounds=ROUNDS)
        if "moved" in parts:
            results["moved"] += paper.moved(study)
        if "models" in parts:
            results["models"] += paper.models(study, COARSE if args.quick else FINE)
    return results


def _traces(args: argparse.Namespace, machine: gpumem.Machine, progress: Progress) -> list[gpumem.Trace]:
    """The traces that were given, or the stand-in at the sizes of the thesis."""
    if args.trace:
        return traces_of(args.trace, machine, args.workspaces)
    from dataclasses import replace

    from gpumem.trace.batch import rebatch

    bare = io.bundled(STAND_IN)
    larger = [replace(rebatch(bare, factor), name=f"{bare.name} x {factor:g}") for factor in FACTORS]
    return [way for trace in larger for _, way in each_way(trace, args.workspaces)]


def pictures(results: Results) -> list[tuple[str, report.Figure]]:
    """Figures 7 and 8."""
    return [(figure.name, figure) for figure in papers.snu.figures(results.get("ways", []))]


SUITE = Suite(
    "snu", "the SNU thesis: a small card", PARTS, options, measure, lambda: papers.snu.TABLES, pictures, QUICK
)
