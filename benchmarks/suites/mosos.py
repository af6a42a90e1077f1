"""`python -m benchmarks mosos`: MO-SOS beside Checkmate and STR with operators by free memory, and its figures."""

from __future__ import annotations

import argparse
from functools import partial

from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem import pipeline, swap
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import traces_of
from gpumem.cli.common.parser import Parser, add_options
from gpumem.cli.common.planning import own_options, search_flags
from gpumem.cli.common.progress import Progress, tell
from gpumem.pipeline import report

PARTS = {
    "operators": "Figure 2: what each implementation of a convolution takes, and what has to be freed for it",
    "steps": "Figure 4: a step within a part of the peak, byte-counting simulation, and what is proved of it",
    "breakdown": "Figure 5: where the time of a step goes, what is offloaded and what is made again",
    "reductions": "By how much MO-SOS shortens a step, in %, and the paper's figures",
    "headroom": "A step by the other two if their programs plan for less, and leave the rest to workspaces",
}
USUAL, ONE = ("vgg16", "resnet18"), ("vgg16",)
SECONDS, FEW = 60.0, 8.0  # of each program, and of the search
LOOSE, SOME = (0.8,), (1.0,)  # of ratios and parts of a limit
QUICK = f"{FEW:g} s a plan, only {' and '.join(ONE)} if none is named, the ratio {LOOSE[0]:g} if none is given"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("trace", nargs="*", help=f"trace files or bundled names (default: {' '.join(USUAL)})")
    add_options(p, *machine_flags("p40"))
    told = ",".join(f"{ratio:g}" for ratio in (0.8, 0.7, 0.6, 0.5, 0.4))
    p.add_argument("--ratios", metavar="R[,R]", help=f"limits as parts of the peak live bytes (default: {told})")
    p.add_argument("--no-check", action="store_true", help="do not hold the plans against the naive oracles")
    add_options(p, *search_flags("1 takes up to half a minute a plan"))


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print figures 2, 4 and 5 of MO-SOS: a minute, or --seconds, for each ratio, program and the search."""
    paper = papers.mosos
    ratios, machine = _ratios(args), target_of(args)
    of_use = {"search": swap.PLANNERS["search"]}
    own = {"seconds": FEW if args.quick else SECONDS} | own_options(args, of_use)
    results: Results = {part: [] for part in PARTS}
    found = results["steps"]
    named = args.trace or (ONE if args.quick else USUAL)
    for trace in progress.over(traces_of(named, machine, args.workspaces)):
        from gpumem.trace.batch import rebatch

        if "operators" in parts:
            results["operators"] += paper.trade_off(trace, machine, ratios)
        case = pipeline.Case.of(trace, machine, load=trace.peak_live_bytes)
        study = papers.autoswap.Study(case, own, progress, tell, partial(rebatch, trace), not args.no_check)
        if {"steps", "breakdown", "reductions"} & {*parts}:
            found += paper.steps(study, ratios)
        if "headroom" in parts:
            results["headroom"] += paper.headroom(study, ratios, SOME if args.quick else paper.HEADROOM)
    return results | {"breakdown": found, "reductions": paper.reductions(found)}


def _ratios(args: argparse.Namespace) -> tuple[float, ...]:
    if args.ratios is None:
        return LOOSE if args.quick else papers.mosos.RATIOS
    try:
        ratios = tuple(float(part) for part in args.ratios.split(","))
    except ValueError:
        raise ValueError(f"--ratios: {args.ratios!r:.60} is no list of numbers") from None
    for ratio in ratios:
        if not 0 < ratio <= 1:
            raise ValueError(f"--ratios: {ratio} is not in (0, 1]")
    return ratios


def pictures(results: Results) -> list[tuple[str, report.Figure]]:
    """Figures 2, 4 and 5 of each trace."""
    drawn = papers.mosos.figures(results.get("steps", []), results.get("operators", []))
    return [(f"{figure.name}-{trace}", figure) for trace, figure in drawn]


SUITE = Suite(
    "mosos",
    "MO-SOS: operators within a part of the memory",
    PARTS,
    options,
    measure,
    lambda: papers.mosos.TABLES,
    pictures,
    QUICK,
    "fastest",
)
