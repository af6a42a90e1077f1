"""`gpumem plan`: the main job, from a trace and a limit to a verified plan."""

from __future__ import annotations

import argparse
import json

from gpumem.cli.common.args import check_folder, out_folder, target_of
from gpumem.cli.common.files import FILE, read_with_ops, source_of, workspaces_flag
from gpumem.cli.common.parser import Command, option
from gpumem.cli.common.planning import make, plan_flags
from gpumem.cli.common.progress import Progress
from gpumem.cli.common.uncertainty import uncertainty_flags


def run(args: argparse.Namespace) -> int:
    """Plan swaps and a placement, simulate the iteration with and without them, check, and report."""
    check_folder(args.out)
    target, source = target_of(args), source_of(args.file)
    with Progress():
        planned = make(read_with_ops(source, target, args.workspaces), target, args)
    if args.out is not None:
        with out_folder(args.out) as folder:
            planned.write(folder, source.name)
    print(json.dumps(planned.row()) if args.json else planned.table())
    return 0


COMMAND = Command(
    "plan",
    run,
    "plan swaps and a placement for a memory limit",
    options=(
        option("file", nargs="?", metavar="FILE", help=f"{FILE} (default: vgg16)"),
        *plan_flags(),
        uncertainty_flags(seed=False),
        workspaces_flag(),
        option("--out", metavar="DIR", help="write plan, rewritten trace, timeline and pictures there"),
        option("--json", action="store_true", help="print the table as one JSON object"),
    ),
    examples=(
        "gpumem plan --limit 70%",
        "gpumem plan mine.json.gz --limit 8GiB --machine rtx2080ti --out planned",
        "gpumem plan vgg16 --load-limit 50% --planner search --seconds 10",
    ),
)
