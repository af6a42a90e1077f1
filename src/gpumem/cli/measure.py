"""`gpumem measure`: how long the ops of training steps take on the device at hand."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gpumem.base import work
from gpumem.base.units import human_ns
from gpumem.cli.common.args import check_file
from gpumem.cli.common.parser import Command, at_least, option, word
from gpumem.cli.common.progress import Progress
from gpumem.cli.common.workloads import as_script

if TYPE_CHECKING:
    from gpumem.execute.latency import LatencyTable, Measurement
    from gpumem.torch.step.workload import Make

DEVICES = ("cpu", "cuda")
NET = "FILE.py:make, FILE.py with a dict NETS of such functions, or a net of the zoo, as vgg11_cifar_b8"


@dataclass(frozen=True, slots=True)
class Row:
    """What there is to say of a net: ops and their types, an iteration alone and the sum of its ops, in ns."""

    net: str
    ops: int
    types: int
    iteration_ns: int
    sum_ns: int


def run(args: argparse.Namespace) -> int:
    """Train nets for some iterations on the device at hand; write how long each op took, and how fast the device is."""
    check_file(args.ops, (".jsonl", ".jsonl.gz"), "--ops")
    with Progress(), as_script(args.nets):
        work.tell("loading")
        table, rows = _measured(args)
    from gpumem.execute.latency import write_table

    write_table(args.ops, table)
    print(_statement(args, table, rows))
    return 0


def _measured(args: argparse.Namespace) -> tuple[LatencyTable, list[Row]]:
    try:
        from gpumem.torch import measure, rates
        from gpumem.torch.measure import threads
    except ImportError as error:
        raise ValueError(str(error)) from error
    from gpumem.execute.latency import LatencyTable, table_rows

    nets = dict(_nets(args.nets, args.device))
    ops: list[Measurement] = []
    rows: list[Row] = []
    with threads(args.threads):
        machine = rates(args.device)
        for k, (name, make) in enumerate(nets.items()):
            work.tell(f"{k + 1} of {len(nets)}: {name}")
            step = measure(make, args.device, name=name, iterations=args.iterations, warmup=args.warmup)
            ops += table_rows(step.trace, name)
            ns = step.iteration_ns, int(step.trace.ops.duration.sum())
            rows.append(Row(name, step.trace.n, len({*step.trace.ops.name}), *ns))
    iterations = {row.net: row.iteration_ns for row in rows}
    return LatencyTable(tuple(ops), _source(args), machine, iterations), rows


def _nets(words: list[str], device: str) -> Iterator[tuple[str, Make]]:
    """Each net that the words name; the last counts of those of one name."""
    from gpumem.torch import load_nets
    from gpumem.torch.zoo import recipe

    for net in words:
        if ".py" in net or "/" in net:
            yield from load_nets(net, device).items()
        else:
            named = recipe(net)
            yield named.name, named.make


def _source(args: argparse.Namespace) -> str:
    """What made the table: machine, versions, command, threads."""
    from gpumem.pipeline.report import header
    from gpumem.torch.internals import torch

    lines = [line.removeprefix("# ") for line in header(args.command).splitlines() if "seed:" not in line]
    return "; ".join([*lines, f"torch {torch.__version__}", f"{args.threads} thread{'s' * (args.threads > 1)}"])


def _statement(args: argparse.Namespace, table: LatencyTable, rows: list[Row]) -> str:
    """Say what was measured, as JSON or for people."""
    machine, count, types = table.machine, len(table.rows), len({row.sample.name for row in table.rows})
    assert machine is not None
    if args.json:
        known = {what: getattr(machine, what) for what in ("name", "flops", "bandwidth", "launch_ns")}
        nets = [asdict(row) for row in rows]
        return json.dumps({"file": args.ops, **known, "rows": count, "types": types, "nets": nets})
    wide = max(len("net"), *(len(row.net) for row in rows)) + 2
    cells = [
        ("net", "ops", "types", "iteration", "sum of ops"),
        *((row.net, row.ops, row.types, human_ns(row.iteration_ns), human_ns(row.sum_ns)) for row in rows),
    ]
    rates = f"{machine.flops / 1e9:.4g} Gflop/s, {machine.bandwidth / 1e9:.4g} GB/s, {machine.launch_ns:.0f} ns an op"
    return "\n".join(
        [
            f"{machine.name}: {rates}",
            *(f"{net:<{wide}}{ops:>7}{kinds:>8}{alone:>14}{ns:>14}" for net, ops, kinds, alone, ns in cells),
            f"{count} distinct ops of {types} types; in {args.ops}",
        ]
    )


USUAL = "(default: %(default)s)"
COMMAND = Command(
    "measure",
    run,
    "measure how long the ops of PyTorch training steps take",
    options=(
        option("nets", nargs="+", metavar="NET", help=f"{NET} (python -m gpumem.torch.zoo --list)"),
        option("--ops", required=True, metavar="TABLE", help="the table to write: .jsonl or .jsonl.gz"),
        option("--device", read=word(DEVICES), default="cpu", metavar="cpu|cuda", help=f"where the steps run {USUAL}"),
        option("--iterations", type=int, default=11, metavar="N", help=f"that count {USUAL}"),
        option("--warmup", type=int, default=3, metavar="N", help=f"that go before {USUAL}"),
        option("--threads", read=at_least(1), default=1, metavar="N", help=f"of PyTorch on the host {USUAL}"),
        option("--json", action="store_true", help="print the summary as one JSON object"),
    ),
    examples=(
        "gpumem measure --ops table.jsonl.gz train.py:make vgg11_cifar_b8 mlp3_b32_adam",
        "gpumem measure --ops table.jsonl.gz nets.py --device cuda",
        "gpumem plan mine.json.gz --limit 70% --measured table.jsonl.gz",
    ),
)
