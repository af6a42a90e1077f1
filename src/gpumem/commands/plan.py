"""`gpumem plan`: the main job, from a trace and a limit to a verified plan."""

from __future__ import annotations

import argparse
import json

from gpumem.commands.args import Commands, Progress, check_name, machine_of, out_folder
from gpumem.commands.planning import add_options, make, read_with_ops, source_of


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser("plan", help="plan swaps and a placement for a memory limit", description=run.__doc__)
    p.add_argument("file", nargs="?", help="trace file; the bundled VGG16 (CIFAR, batch 100) if left out")
    add_options(p)
    p.add_argument("--out", metavar="DIR", help="write plan, rewritten trace, timeline and pictures there")
    p.add_argument("--json", action="store_true", help="print the table as one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan swaps and a placement, simulate the iteration with and without them, check, and report."""
    check_name(args.out)
    target, source = machine_of(args.machine), source_of(args.file)
    with Progress() as progress:
        planned = make(read_with_ops(source, target, progress), target, args, progress)
    if args.out is not None:
        with out_folder(args.out) as folder:
            planned.write(folder, source.name)
    report = planned.report()
    print(json.dumps(report.row()) if args.json else report.table())
    return 0
