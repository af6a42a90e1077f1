"""`gpumem bench tensile`: TENSILE next to vDNN, Capuchin and the paper's figures."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem.commands import tensile_tables as tables
from gpumem.commands.args import Commands, Progress, choices, machine_of, tell_when_compiling
from gpumem.commands.jobs import finite
from gpumem.commands.planning import traces_of
from gpumem.commands.saving import check_name, staged, tell_without_pictures

if TYPE_CHECKING:
    from gpumem.trace import Trace

PARTS = {
    "table1": "Table 1: one task. MSR of the peak load, EOR of the time, CBR = MSR / EOR",
    "bounds": "What no swap plan can beat on this machine (certified; for three tasks that share the GPU as for one)",
    "table2": "Table 2 and figure 6: tasks side by side; MSR of the peaks added up, mean EOR",
    "mlp": "Section 4.1: 33.5 % of the peak of an MLP without extra time",
    "arrivals": "Jobs that arrive under a limit: how soon there is room",
}
ITERATIONS, FEW = 20, 8


def add(suite: Commands) -> None:
    """Add the suite's arguments."""
    p = suite.add_parser("tensile", help="several jobs on one GPU", description=run.__doc__)
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones)")
    p.add_argument("--machine", default="rtx2080ti", help="preset or JSON file (default: %(default)s)")
    p.add_argument("--what", default="all", metavar="NAME[,NAME]|all", help=f"of {', '.join(PARTS)}")
    p.add_argument("--tasks", type=int, default=3, help="of table2: up to so many copies (default: %(default)s)")
    p.add_argument("--launch-ns", type=float, help="what an op costs to launch, instead of the machine's")
    p.add_argument("--half-duplex", action="store_true", help="one copy engine for both directions, as in the paper")
    p.add_argument(
        "--slowdown", type=float, default=1.0, metavar="S", help="of k kernels each runs at 1 / (1 + S (k - 1))"
    )
    p.add_argument("--quick", action="store_true", help="few iterations, to try it out")
    p.add_argument("--no-check", action="store_true", help="do not hold the event logs against the naive oracle")
    p.add_argument("--out", metavar="DIR", help="write bench.txt, bench.json and pictures there")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print Tables 1 and 2 and figure 6 of the TENSILE paper, its claim on MLPs, and how fast newcomers get room."""
    check_name(args.out)
    tell_when_compiling()
    from gpumem.report import header

    parts = choices(args.what, PARTS, "--what")
    if not 1 <= args.tasks <= 100:
        raise ValueError(f"--tasks: {args.tasks} is not in 1..100")
    finite(args, "slowdown")
    machine = machine_of(args.machine)
    machine = machine.with_(duplex=machine.duplex and not args.half_duplex)
    if args.launch_ns is not None:
        machine = machine.with_(launch_ns=args.launch_ns)
    with Progress() as progress:
        setting = tables.Setting(machine, args.slowdown, FEW if args.quick else ITERATIONS, not args.no_check, progress)
        traces = traces_of(args.trace, machine, progress)
        found: dict[str, Any] = {"header": header(args.command, "none, nothing is random").splitlines()}
        found |= _measure(parts, traces, args.tasks, setting)
    text = _text(found)
    if args.out is not None:
        with staged(Path(args.out)) as folder:
            _write(folder, found, text)
        tell_without_pictures()
    print(json.dumps(found) if args.json else text)
    return 0


def _measure(parts: list[str], traces: list[Trace], tasks: int, setting: tables.Setting) -> dict[str, Any]:
    @cache  # one task is in both tables
    def methods(which: int, count: int) -> list[dict[str, Any]]:
        return tables.methods(traces[which], count, setting)

    def table(most: int) -> list[dict[str, Any]]:
        return [row for i in range(len(traces)) for k in range(1, most + 1) for row in methods(i, k)]

    many = {"table1": 1, "table2": tasks}
    return {part: table(many[part]) if part in many else _rest(part, traces, setting) for part in parts}


def _rest(part: str, traces: list[Trace], setting: tables.Setting) -> list[dict[str, Any]]:
    if part == "bounds":
        return [tables.bounds(trace, setting) for trace in traces]
    if part == "mlp":
        mine = [tables.mlp_row(trace, setting) for trace in traces if "mlp" in trace.name]
        return mine + tables.mlps(setting)
    return [row for trace in traces for row in tables.arrivals(trace, setting)]


def _text(found: dict[str, Any]) -> str:
    show = {
        "table1": tables.table,
        "table2": tables.table,
        "bounds": tables.bound_table,
        "mlp": tables.mlp_table,
        "arrivals": tables.arrival_table,
    }
    blocks = ["\n".join(found["header"])]
    return "\n\n".join(blocks + [f"{PARTS[part]}\n\n{show[part](found[part])}" for part in found if part in show])


def _write(folder: Path, found: dict[str, Any], text: str) -> None:
    from gpumem import plot
    from gpumem.io import write_text

    write_text(folder / "bench.txt", text + "\n")
    write_text(folder / "bench.json", json.dumps(found) + "\n")
    if plot.available():
        for k, figure in enumerate(tables.figure6(found.get("table2", []))):
            plot.curves(folder / f"{figure.name}-{k // 3 + 1}.png", figure)
