"""`python -m benchmarks waterwave`: jobs that share a GPU by node groups, next to Waterwave's tables and figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import gpumem
from benchmarks import papers
from benchmarks.suites.suite import Results, Suite
from gpumem.base.names import choices
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import traces_of
from gpumem.cli.common.parser import Parser, Reader, add_options, finite
from gpumem.cli.common.progress import Progress
from gpumem.jobs.waterwave import round_ns
from gpumem.pipeline import report

PARTS = {
    "table1": "Table 1: the largest batch of one job, and of each of two that share the GPU",
    "pool": "Table 1 in a pool: served by the allocator for several streams, and from two ends",
    "rounds": "Why a pool needs more: the smallest that serves 1, 2 and 8 rounds of two jobs",
    "table2": "Table 2: the largest batches of two different models",
    "several": "Section 5.5: the largest batch of three and of four jobs",
    "splits": "Figure 8: the largest batch of two jobs, and what they get done, over the split size",
    "throughput": "Figure 7: samples a second of two jobs",
    "slowdown": "How many times as much gets done as in turn, by hosts and how far kernels slow each other down",
    "freed": "Figure 2: memory at the peak, freed when ops are scheduled and when they complete",
    "late": "Memory freed when ops complete: one job, and two in node groups",
    "sequential": "Figure 3: what is lost where the host waits for each op",
    "hosts": "A round of two jobs with one host thread, and with one a stream",
    "balanced": "Beyond the paper: two jobs by its groups, and by groups of any length, over the memory there is",
    "priorities": "Beyond the paper: two jobs of which one runs more often",
    "sharing": "Beyond the paper: two jobs by groups, by swapping and by both, over the memory there is",
}
ONE_ORDER = "recorded"
ORDERS = dict.fromkeys((ONE_ORDER, "depth"))
MIXED = ("resnet50", "bert_base", "tacotron2")
USUAL, QUICKLY = ("vgg16", "resnet18"), ("vgg16", "mlp3")
SLOWDOWN = 0.75  # two kernels side by side then do 1.14 times as much as in turn: the paper's CNNs gain that at most
MORE = (3, 4)  # jobs
SIZES, BATCHES, ENDS = (1.0, 4.0), (0.5, 0.9), (0.0, 1.0)  # --quick
OF_PEAKS, SECONDS = (0.7,), 0.1
OF_NEED, WEIGHTS = (1.2,), ((2, 1),)
QUICK = f"only {' and '.join(QUICKLY)} if none is named, few split sizes, batches and slowdowns, recorded order"


def options(p: Parser) -> None:
    """Add the suite's own arguments."""
    p.add_argument("trace", nargs="*", help=f"trace files or bundled names (default: {' '.join(USUAL)})")
    add_options(p, *machine_flags("v100"))
    p.add_argument("--order", default="all", metavar="NAME[,NAME]|all", help=f"of a job's ops: {', '.join(ORDERS)}")
    p.add_argument(
        "--slowdown",
        type=Reader(finite, "--slowdown"),
        default=SLOWDOWN,
        metavar="S",
        help="two kernels at once each run at 1 / (1 + S) (default: %(default)s)",
    )
    p.add_argument("--no-check", action="store_true", help="do not hold the rounds' logs against the naive oracle")


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print Tables 1 and 2 and figures 2, 3, 7 and 8 of Waterwave.

    Launching an op takes the host 200 us, if the machine says nothing else.
    """
    paper, few = papers.waterwave, args.quick
    orders = choices(ONE_ORDER if few and args.order == "all" else args.order, ORDERS, "--order")
    machine = target_of(args)
    machine = machine.with_(host_ns=machine.host_ns or paper.HOST_NS) if args.host_ns is None else machine
    clock = round_ns if args.no_check else paper.judged_ns
    sizing = paper.Sizing(machine, progress, paper.FEW if few else paper.PIECES, args.slowdown, clock)
    traces = traces_of(args.trace or (QUICKLY if few else USUAL), machine, args.workspaces)
    for trace in traces:  # all that is printed are parts of what ops take
        if not machine.durations(trace).any():
            raise ValueError(f"trace {trace.name!r:.60}: all ops take 0 ns on {machine.name}, nothing can be compared")
    one = next((trace for trace in traces if trace.name.startswith("resnet50")), traces[0])
    batches, slowdowns = (BATCHES, ENDS) if few else (paper.PARTS, paper.SLOWDOWNS)

    def each(row: Callable[..., Any], of: Iterable[Any] = traces) -> list[Any]:
        return [row(mine) for mine in of]

    def curves(trace: gpumem.Trace) -> list[Any]:
        if few:
            return paper.splits(sizing, trace, orders[0], SIZES)
        if paper.loops(trace):
            return paper.grouped(sizing, trace)
        return [row for order in orders for row in paper.splits(sizing, trace, order)]

    shared = _pairs(traces) if len(traces) > 1 else [(traces[0], traces[0])]

    def swapped(pair: tuple[gpumem.Trace, ...]) -> list[Any]:
        parts, seconds = (OF_PEAKS, SECONDS) if few else (paper.OF_PEAKS, paper.SECONDS)
        return paper.sharing(pair, target_of(args), args.slowdown, parts, seconds, progress)

    def longer(pair: tuple[gpumem.Trace, ...]) -> list[Any]:
        parts, by = (OF_NEED, (args.slowdown,)) if few else (paper.OF_NEED, sorted({0.0, args.slowdown, 1.0}))
        return paper.lengths(pair, target_of(args), by, parts, progress, clock)

    def weighted(pair: tuple[gpumem.Trace, ...]) -> list[Any]:
        weights = WEIGHTS if few else paper.WEIGHTS
        return paper.weighted(pair, target_of(args), args.slowdown, weights, progress, clock)

    by_order = [(trace, order) for trace in traces for order in orders]
    pairs = [(pair, order) for pair in _pairs(traces) for order in orders]
    jobs = [(count, order) for count in MORE for order in orders]
    rows: dict[str, Callable[[], list[Any]]] = {
        "table1": lambda: each(lambda of: paper.several(sizing, of[0], 2, of[1]), by_order),
        "pool": lambda: each(lambda of: paper.in_pools(sizing, *of), by_order),
        "rounds": lambda: [row for mine in each(lambda trace: paper.pool_rounds(sizing, trace)) for row in mine],
        "table2": lambda: each(lambda of: paper.mixed(sizing, *of), pairs),
        "several": lambda: each(lambda of: paper.several(sizing, one, *of), jobs),
        "splits": lambda: [row for mine in each(curves) for row in mine],
        "throughput": lambda: [row for mine in traces for row in paper.throughput(sizing, mine, batches)],
        "slowdown": lambda: each(lambda trace: paper.slowed(sizing, trace, slowdowns=slowdowns)),
        "freed": lambda: paper.freed(one, machine, machine.host_ns),
        "late": lambda: each(lambda trace: paper.late(trace, machine, machine.host_ns)),
        "sequential": lambda: [
            paper.sequential(trace, machine, ns) for trace in traces for ns in (machine.host_ns, machine.host_ns / 4)
        ],
        "hosts": lambda: each(lambda trace: paper.a_host_a_stream(trace, machine, machine.host_ns)),
        "balanced": lambda: [row for mine in shared for row in longer(mine)],
        "priorities": lambda: [row for mine in shared for row in weighted(mine)],
        "sharing": lambda: [row for mine in shared for row in swapped(mine)],
    }
    return {part: rows[part]() for part in progress.over(parts)}


def _pairs(traces: list[gpumem.Trace]) -> list[tuple[gpumem.Trace, ...]]:
    """The paper's three pairs, as far as they are there; else the first two traces."""
    known = [trace for model in MIXED for trace in traces if trace.name.startswith(f"{model}_")]
    return [*combinations(known if len(known) > 1 else traces[:2], 2)]


def pictures(results: Results) -> list[tuple[str, report.Figure]]:
    """Figures 7 and 8, one each a trace."""
    return [(f"{figure.name}-{trace}", figure) for trace, figure in papers.waterwave.figures(results)]


SUITE = Suite(
    "waterwave",
    "jobs that share a GPU by node groups",
    PARTS,
    options,
    measure,
    lambda: papers.waterwave.TABLES,
    pictures,
    QUICK,
)
