"""`python -m benchmarks pool`: pool planners and allocators on traces and instances, beside SmartPool's figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem import io, pipeline, pool
from gpumem.base.names import chosen
from gpumem.cli.common.files import each_way, source_of
from gpumem.cli.common.parser import Parser, add_options
from gpumem.cli.common.planning import own_options, search_flags
from gpumem.cli.common.progress import Progress

PARTS = {
    "table1": "Table I: fragmentation ratios without swapping, and how far SmartPool is below CnMem",
    "instances": "Pool planners: fragmentation ratio and seconds; optimal, or a bound that no placement goes below",
    "cost": "A malloc and its free: us of CPU time (over native); all of it is Python, nobody calls a driver",
}
REPLAYS, FEW = 21, 3
QUICK = f"{pipeline.QUICK[0]['effort']} of the effort of planners that search, {FEW} replays"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("file", nargs="*", help="trace files, bundled names or minimalloc CSVs (default: the bundled ones)")
    p.add_argument("--instances", metavar="DIR", help="a folder of minimalloc CSVs for --what instances")
    p.add_argument("--planner", default="all", metavar="NAME[,NAME]|all", help="of instances (default: %(default)s)")
    p.add_argument("--allocator", default="all", metavar="NAME[,NAME]|all", help="of cost (default: %(default)s)")
    add_options(p, *search_flags())


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print Table I of the SmartPool paper, pool planners on instances, and what calls of allocators cost."""
    planners = chosen(args.planner, pool.PLANNERS, "--planner")
    allocators = chosen(args.allocator, pool.ALLOCATORS, "--allocator")
    effort = {**(pipeline.QUICK[0] if args.quick else {}), **own_options(args, planners)}
    results: Results = {part: [] for part in PARTS}
    files, folder = _files(args)
    for path in progress.over([*files, *folder]):
        progress(f"reading {path}")
        loaded, bare = io.load(path).trace, path in folder
        for rule, trace in each_way(loaded, "none" if bare else args.workspaces):
            if "table1" in parts and not bare:
                results["table1"].append({**papers.smartpool.ratios(trace, progress), "workspaces": rule})
            if "instances" in parts and (bare or args.file or not folder):
                found = pipeline.by_planners(trace, planners, effort, progress)
                results["instances"] += [{"instance": trace.name, **f.row()} for f in found]
            if "cost" in parts and not bare:
                replays = FEW if args.quick else REPLAYS
                results["cost"] += papers.smartpool.call_costs(trace, allocators, replays, progress)
    means = {"table1_means": papers.smartpool.means(results["table1"])} if "table1" in parts else {}
    return results | means


def _files(args: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The files that were given, or the bundled ones; and what is in the folder of instances."""
    files = [source_of(file) for file in args.file or io.BUNDLED]
    if args.instances is None:
        return files, []
    folder = sorted(path for path in Path(args.instances).glob("*.csv*") if path.is_file())
    if not folder:
        raise ValueError(f"--instances: {args.instances!r} is no folder with .csv files")
    return files, folder


SUITE = Suite(
    "pool", "pool planners and allocators", PARTS, options, measure, lambda: papers.smartpool.TABLES, quick=QUICK
)
