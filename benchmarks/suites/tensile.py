"""`python -m benchmarks tensile`: TENSILE next to vDNN, Capuchin and the paper's figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import gpumem
from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import traces_of
from gpumem.cli.common.parser import Parser, Reader, add_options, finite
from gpumem.cli.common.progress import Progress, tell
from gpumem.cli.common.uncertainty import uncertainty_flags, uncertainty_of
from gpumem.pipeline import report

PARTS = {
    "table1": "Table 1: one task. MSR of the peak, EOR of the time, CBR = MSR / EOR. Not the paper's experiment",
    "bounds": "What no swap plan of these traces can beat on this machine (certified; for several tasks as for one)",
    "table2": "Table 2, figure 6: tasks side by side; MSR of the peaks added up, mean EOR. Not the paper's experiment",
    "mlp": "Section 4.1: 33.5 % of the peak of an MLP without extra time",
    "arrivals": "Jobs that arrive under a limit: how soon there is room",
    "experiment": "Section 5 as the paper ran it, in a world that errs (by default: a sigma of 0.3, noise 0.05)",
    "replanning": "When plans are made anew, where estimates are far off (by default: a sigma of 0.6, noise 0.05)",
}
ITERATIONS, FEW = 20, 5
TASKS, TWO = 3, 2
ROUNDS, SOME = 20, 3  # of the bound
QUICKLY = ("vgg16", "mlp3")
QUICK = f"{FEW} iterations, {TWO} tasks, {SOME} rounds of the bound, only {' and '.join(QUICKLY)} if none is named"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones)")
    add_options(p, *machine_flags("rtx2080ti"))
    p.add_argument("--tasks", type=int, help=f"of table2: up to so many copies (default: {TASKS})")
    p.add_argument("--launch-ns", type=float, help="what an op costs to launch, instead of the machine's")
    p.add_argument("--half-duplex", action="store_true", help="one copy engine for both directions, as in the paper")
    slowed = "of k kernels each runs at 1 / (1 + S (k - 1))"
    p.add_argument("--slowdown", type=Reader(finite, "--slowdown"), default=1.0, metavar="S", help=slowed)
    p.add_argument(
        "--framework",
        action="store_true",
        help="also as in the paper's framework: Python launches op by op in 1 ms, and waits for each; no launch cost",
    )
    hosts = "of experiment: how many ms an op takes Python (default: 1, 2 and 3)"
    p.add_argument("--python-ms", metavar="X[,X]", help=hosts)
    add_options(p, uncertainty_flags())
    p.set_defaults(seed=0)
    p.add_argument("--no-check", action="store_true", help="do not hold the event logs against the naive oracle")


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print Tables 1 and 2 and figure 6 of the TENSILE paper, its claim on MLPs, and how fast newcomers get room."""
    tasks = args.tasks if args.tasks is not None else TWO if args.quick else TASKS
    if not 1 <= tasks <= 100:
        raise ValueError(f"--tasks: {tasks} is not in 1..100")
    machine = target_of(args)
    machine = machine.with_(duplex=machine.duplex and not args.half_duplex)
    if args.launch_ns is not None:
        machine = machine.with_(launch_ns=args.launch_ns)
    turns, rounds = (FEW, SOME) if args.quick else (ITERATIONS, ROUNDS)
    paper = papers.tensile
    off = uncertainty_of(args)
    setting = paper.Setting(machine, args.slowdown, turns, not args.no_check, progress, tell, rounds, off)
    erring, python_ms = papers.tensile_experiment, _python_ms(args)
    traces = traces_of(args.trace or (QUICKLY if args.quick else []), machine, args.workspaces)

    def ways(those: list[gpumem.Trace]) -> list[tuple[gpumem.Trace, papers.tensile.Setting]]:
        """As they are, and in the paper's framework if asked for."""
        both = [((trace, setting), paper.in_framework(trace, setting)) for trace in those]
        return [way for pair in both for way in pair[: 1 + args.framework]]

    runs = ways(traces)

    @cache  # one task is in both tables
    def methods(which: int, count: int) -> list[dict[str, Any]]:
        return paper.methods(runs[which][0], count, runs[which][1])

    def beside(most: int, table: Mapping[tuple[int, str], tuple[float, float]]) -> list[dict[str, Any]]:
        copies = [row for i in range(len(runs)) for k in range(1, most + 1) for row in methods(i, k)]
        return paper.beside(copies, table)

    rows: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "table1": partial(beside, 1, paper.TABLE1),
        "bounds": lambda: [paper.bounds(trace, setting) for trace in traces],
        "table2": partial(beside, tasks, paper.TABLE2),
        "mlp": lambda: [paper.mlp_row(*way) for way in ways([t for t in traces if "mlp" in t.name] + paper.mlps())],
        "arrivals": lambda: [row for way in runs for row in paper.arrivals(*way)],
        "experiment": lambda: [
            row
            for trace, ms, k in product(traces, python_ms, range(1, tasks + 1))
            for row in erring.experiment(trace, k, setting, ms)
        ],
        "replanning": lambda: [
            row for trace, k in product(traces, range(1, tasks + 1)) for row in erring.replanning(trace, k, setting)
        ],
    }
    return {part: rows[part]() for part in progress.over(parts)}


def _python_ms(args: argparse.Namespace) -> list[float]:
    """How long Python takes for an op, each in turn."""
    if args.python_ms is None:
        return list(papers.tensile_experiment.HOSTS_MS)[: 1 if args.quick else None]
    found = []
    for text in args.python_ms.split(","):
        try:
            found.append(float(text))
        except ValueError:
            raise ValueError(f"--python-ms: {text!r:.60} is not a number") from None
        if not 0 <= found[-1] <= 1000:
            raise ValueError(f"--python-ms: {found[-1]} is not in [0, 1000]")
    return found


def pictures(results: Results) -> list[tuple[str, report.Figure]]:
    """Figure 6: three for each trace."""
    return [(f"{f.name}-{k // 3 + 1}", f) for k, f in enumerate(papers.tensile.figure6(results.get("table2", [])))]


def _tables() -> Mapping[str, Callable[[Any], str]]:
    return papers.tensile.TABLES | papers.tensile_experiment.TABLES


SUITE = Suite("tensile", "several jobs on one GPU", PARTS, options, measure, _tables, pictures, QUICK)
