"""`python -m benchmarks peers`: our pool planners beside other projects that place buffers with known lifetimes."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.peers import asking, summary, table
from benchmarks.peers.instances import Instance, generated, in_folder, of_file, told_apart, whole
from benchmarks.peers.survey import KNOWN, Row, keep_known, read_known, rows_of
from benchmarks.peers.table import Planner
from benchmarks.suites.suite import Results, Suite
from gpumem import io
from gpumem.base.names import chosen
from gpumem.cli.common.args import check_file
from gpumem.cli.common.files import each_way, source_of
from gpumem.cli.common.parser import Parser
from gpumem.cli.common.progress import Progress, tell
from gpumem.pipeline import report

PARTS = {
    "projects": "Who is compared, beside gpumem",
    "rows": "Height over the peak live bytes, no placement is lower; alignment 1; within the seconds of the column",
    "means": "Geometric means of these ratios, of the instances that it placed; how often nobody was lower",
    "against": "The search against each other planner, where both have a placement: its height over the other's",
    "ahead": "Where another project is ahead of the search within the same time, by more than 0.0001 of the load",
}
SECONDS, LITTLE = "1,10", 0.2
USUAL, SMALL = "30,60:2", "20:1"
QUICK = f"{LITTLE} s, without files only the smallest bundled trace and --perfect {SMALL}"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("file", nargs="*", help="traces, bundled names or minimalloc CSVs (default: the bundled ones)")
    p.add_argument("--instances", metavar="DIR", help="a folder of such files, with those in its folders")
    usual = f"generated instances with a known optimum, seeds from 0 on (default without files: {USUAL})"
    p.add_argument("--perfect", metavar="N[,N]:SEEDS", help=usual)
    rewrite = "AutoSwap's plan for this part of its peak live bytes first, in %%; 100 is the trace as it is"
    p.add_argument("--rewritten", metavar="P[,P]", help=f"apply to each trace with ops {rewrite}")
    p.add_argument("--planner", default="all", metavar="NAME[,NAME]|all", help=f"of {', '.join(table.PLANNERS)}")
    p.add_argument("--seconds", metavar="S[,S]", help=f"that each planner gets (default: {SECONDS})")
    p.add_argument("--threads", type=int, default=1, metavar="N", help="that peers may use (default: %(default)s)")
    p.add_argument("--python", default=sys.executable, help="that has the peers (default: this one)")
    p.add_argument("--known", metavar="FILE", default=str(KNOWN), help="the lowest heights known (default: ours)")
    p.set_defaults(seed=None)  # each planner has its own
    p.add_argument("--keep", action="store_true", help="write there what gets lower")


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print how high the pools of our planners and of other projects' end, within the same time, alignment 1."""
    planners = chosen(args.planner, table.PLANNERS, "--planner")
    if args.keep:
        check_file(args.known, (".json",), "--known")
    seconds, known = _seconds(args), read_known(Path(args.known))
    threads, instances = _threads(args), _instances(args, progress)
    python = str(Path(shutil.which(args.python) or args.python).absolute())  # workers start elsewhere
    planners, versions = _there(planners, python)
    ask, rows = partial(asking.ask, python=python, threads=threads), list[Row]()
    for instance in progress.over(instances):
        progress(instance.trace.name)
        rows += rows_of(instance, planners, seconds, ask, known)
    if args.keep:
        keep_known(Path(args.known), known, instances, rows)
    wrong = [row for row in rows if row["ours"] and row["status"] in (asking.INVALID, asking.FAILED)]
    results = {"rows": rows, "projects": versions} | summary.summed(rows)
    return results | ({"failed": wrong} if wrong else {})


def _threads(args: argparse.Namespace) -> int:
    threads: int = args.threads
    if not 1 <= threads <= 1000:
        raise ValueError(f"--threads: {threads} is not in 1..1000")
    return threads


def _seconds(args: argparse.Namespace) -> list[float]:
    if args.seconds is None:
        return [LITTLE] if args.quick else [float(part) for part in SECONDS.split(",")]
    try:
        found = [float(part) for part in args.seconds.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one <= 100_000 for one in found):
        raise ValueError(f"--seconds: {args.seconds!r:.60} are no seconds, as 1,10")
    return sorted(set(found))


def _instances(args: argparse.Namespace, progress: Progress) -> list[Instance]:
    """What is to be placed: of files, of a folder, generated."""
    limits = whole(args.rewritten, "--rewritten", 100) if args.rewritten else []
    files = [(source_of(file), "given") for file in args.file]
    files += [(path, path.parent.name) for path in in_folder(args.instances)] if args.instances else []
    bare, made = not (files or args.perfect), args.perfect
    if bare:
        files = [(io.bundled_path(name), "bundled") for name in (["mlp3"] if args.quick else io.BUNDLED)]
        made = SMALL if args.quick else USUAL
    found = generated(made) if made else []
    for path, family in progress.over(files):
        progress(f"reading {path}")
        for _, trace in each_way(io.load(path).trace, args.workspaces):
            found += of_file(trace, family, limits)
    for one in found:
        if one.wrapped:
            tell(f"{one.trace.name}: {one.wrapped} buffers wrap around its end: alive all the time, for everybody")
    return told_apart([one for one in found if len(one.trace.buffers)])


def _there(planners: Mapping[str, Planner], python: str) -> tuple[dict[str, Planner], list[Row]]:
    """Leave out whose project is not installed, and say so; return the others, and what there is of each project."""
    versions = asking.installed(planners.values(), python)
    for name in (name for name, version in versions.items() if version is None):
        without = ", ".join(planner for planner, one in planners.items() if name in one.needs)
        tell(f"{name} is not installed: without {without} (pip install --group peers)")
    left = {name: one for name, one in planners.items() if all(versions[need] for need in one.needs)}
    return left, [{"project": name, "version": version} for name, version in versions.items()]


def pictures(results: Results) -> list[tuple[str, report.Figure | list[report.Figure]]]:
    """What lies above the load over the seconds, a small picture for each family."""
    return [("peers", results["curves"])] if results["curves"] else []


SUITE = Suite(
    "peers",
    "pool planners beside those of other projects",
    PARTS,
    options,
    measure,
    lambda: summary.TABLES,
    pictures,
    QUICK,
)
