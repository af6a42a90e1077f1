"""`gpumem fit`: will a PyTorch training step fit, and what would it take?"""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

from gpumem.base import work
from gpumem.base.units import fraction
from gpumem.cli.common.args import check_folder, machine_flags, out_folder, target_of
from gpumem.cli.common.files import workspaces_flag
from gpumem.cli.common.parser import Command, OneOf, Section, option, positive
from gpumem.cli.common.planners import of_use, planner_flags, planner_options, planners_asked
from gpumem.cli.common.planning import ROBUST, SIZE, uncertain
from gpumem.cli.common.progress import Progress, complain, tell, tell_failure
from gpumem.cli.common.uncertainty import uncertainty_flags
from gpumem.cli.common.workloads import (
    ASSUMED,
    CHUNK,
    DEVICE,
    WORKLOADS,
    as_script,
    name_of,
    words_of,
    workload_of,
)


def run(args: argparse.Namespace) -> int:
    """Capture a PyTorch training step, without a GPU; say whether it fits, and plan for it where it does not."""
    check_folder(args.out)
    machine = target_of(args)
    options = _options(args)
    words = words_of(args)
    with Progress(), as_script(words):
        work.tell(f"loading {shlex.join(words)}")
        make = workload_of(words, args.device)
        from gpumem.torch import fit

        report = fit(
            make,
            machine,
            device=args.device,
            limit=args.limit,
            batch=args.batch,
            chunk=args.chunk,
            assume=args.assume,
            largest=args.largest,
            workspaces=args.workspaces,
            name=name_of(words),
            **options,
        )
    if args.out is not None:
        with out_folder(args.out) as folder:
            report.write(folder, shlex.join(words))
    broken = [(tried.planner, tried.error) for tried in report.tried if tried.error]
    for name, error in broken:
        tell_failure(name, error, args.traceback)
    for note in report.notes:
        tell(f"{report.trace.name}: {note}")
    if args.json:
        print(json.dumps(report.row()))
    else:
        step = report.next(words, device=args.device, chunk=args.chunk, assume=args.assume, written=args.out)
        print(f"{report.report()}\n\nnext: {step}")
    if not report.fits_planned:
        complain(report.answer())
    return 1 if broken else 0 if report.fits_planned else 3


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Read how to plan, as keywords of `fit`, before anything is captured."""
    from gpumem.pipeline.compare_planners import BEST
    from gpumem.swap import planners_of

    planners = planners_of(BEST) if args.planner is None else planners_asked(args)
    options: dict[str, Any] = {"planner": [*planners], "options": planner_options(args, planners)}
    options["uncertainty"] = uncertain(args)
    if args.robust is not None:
        of_use("--robust", "robust", planners)
        options["options"] |= {"robust": args.robust}
    return options | {name: value for name in ("overhead", "seconds") if (value := getattr(args, name)) is not None}


COMMAND = Command(
    "fit",
    run,
    "say whether a PyTorch training step fits, and what it would take",
    options=(
        *WORKLOADS,
        Section(
            "what to fit",
            (
                DEVICE,
                OneOf(
                    (
                        option("--batch", type=int, metavar="N", help="handed on to make"),
                        option(
                            "--largest",
                            action="store_true",
                            help="find the largest batches, without a plan and with one",
                        ),
                    )
                ),
                option(
                    "--limit",
                    metavar="SIZE",
                    help=f"of tensors and workspaces: {SIZE} (default: what the machine has beside the context)",
                ),
                CHUNK,
                ASSUMED,
                option(
                    "--overhead",
                    read=fraction,
                    metavar="PART",
                    help="the most that a plan may cost, as 10%% (default: anything)",
                ),
                *machine_flags("rtx4090"),
                workspaces_flag(),
            ),
        ),
        Section(
            "how to plan",
            (
                *planner_flags(None, "swap planners; the cheapest counts (default: search)"),
                option("--seconds", read=positive, metavar="S", help="of planning (default: 8); captures come on top"),
                option("--robust", type=float, metavar="X", help=ROBUST),
            ),
        ),
        uncertainty_flags(),
        option("--out", metavar="DIR", help="write report, captured trace, plan, timeline and pictures there"),
        option("--json", action="store_true", help="print the figures as one JSON object"),
    ),
    examples=(
        "gpumem fit train.py:make --machine rtx4090",
        "gpumem fit train.py:make --machine rtx4090 --batch 256 --overhead 10% --out planned",
        "gpumem fit train.py:make --machine rtx4090 --overhead 10% --largest",
        "gpumem fit --machine rtx4090 --script train.py --epochs 1 --batch-size 256",
    ),
    defaults={"workspaces": "fastest"},
)
