"""`gpumem run`: carry a plan out with real bytes, next to the unmanaged run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import gpumem
from gpumem import best_fit, execute, pipeline, pool
from gpumem.base import work
from gpumem.base.names import choice
from gpumem.cli import doctor, run_live as live
from gpumem.cli.common.args import target_of
from gpumem.cli.common.files import FILE
from gpumem.cli.common.parser import Command, Section, at_least, option, word
from gpumem.cli.common.planning import make, plan_flags
from gpumem.cli.common.progress import Progress, complain, tell
from gpumem.execute import models
from gpumem.pipeline.report import Run

DEVICES = ("auto", "emulate", "cuda")
WHERE = (
    option(
        "--batch",
        read=at_least(1),
        metavar="N",
        help="samples in an iteration of a model (default: the model's own)",
    ),
    option(
        "--device",
        read=word(DEVICES),
        default="auto",
        metavar="NAME",
        help="auto, emulate or cuda (default: %(default)s)",
    ),
    option("--iterations", read=at_least(1), default=20, metavar="N", help="how many to run (default: %(default)s)"),
    option("--graph", action="store_true", help="on CUDA: capture the iteration into a graph and replay it"),
    option("--ranges", action="store_true", help="on CUDA: name ops and copies for a profiler (NVTX)"),
)
USUAL = {"threshold": 0, "peaks": "all"}  # of planners: the models are small


def run(args: argparse.Namespace) -> int:
    """Run a model, or a trace with generic ops, unmanaged and planned; compare the results bit for bit."""
    if args.alignment < 1:
        raise ValueError(f"--alignment: {args.alignment} is below 1")
    if args.live:
        return live.run(args, _device(args), target_of(args))
    if args.background:
        raise ValueError("--background: only --live plans while the program runs")
    if args.load_limit is not None:
        raise ValueError("--load-limit: a run needs addresses, so only --limit, the size of the pool, applies")
    device = _device(args)
    target = target_of(args)
    with Progress():
        compared = _compared(args, device, target)
    print(json.dumps(compared.row()) if args.json else compared.table())
    if compared.differing:
        complain("the planned run left other bytes than the unmanaged one: please report this")
    return 1 if compared.differing else 0


def _device(args: argparse.Namespace) -> str:
    """Return `emulate` or `cuda`; `auto` takes CUDA where it works."""
    missing = "not asked for" if args.device == "emulate" else doctor.why_no_cuda()
    if missing and args.device == "cuda":
        raise ValueError(f"--device: no CUDA here: {missing} (see gpumem doctor)")
    for name in ("graph", "ranges"):
        if missing and getattr(args, name):
            raise ValueError(f"--{name}: it needs CUDA: {missing}")
    if args.ranges and find_spec("nvtx") is None:
        raise ValueError("--ranges: it needs the package nvtx: pip install 'gpumem[nvtx]'")
    return "emulate" if missing else "cuda"


def _compared(args: argparse.Namespace, device: str, machine: gpumem.Machine) -> pipeline.Comparison:
    placer, seed = choice(args.pool or "best-fit", pool.PLANNERS, "--pool"), args.seed or 0
    where = live.Platform.of(device)

    def backend(timing: bool) -> execute.Backend:
        if where.cuda:
            from gpumem.execute.cuda import Cuda

            return Cuda(timing=timing, graph=args.graph and not timing, ranges=args.ranges and not timing)
        return execute.Emulator(seed)

    if args.model in models.MODELS:
        workload = _model(args, where, machine, backend)
    else:
        workload = _trace(args, where, machine)
    work.tell("running")
    host = partial(placer, alignment=args.alignment // workload.unit)
    name = where.name if where.cuda else f"{where.name} (order {seed})"
    return pipeline.compare(workload, backend, where=name, iterations=args.iterations, host=host)


def _model(
    args: argparse.Namespace, where: live.Platform, machine: gpumem.Machine, backend: Callable[[bool], execute.Backend]
) -> pipeline.Workload:
    """A model, planned for by the times that its ops and copies take."""
    from gpumem.execute.latency.measured import measured, measured_machine

    model = models.MODELS[args.model](**({} if args.batch is None else {"batch": args.batch}))
    launch = model.launch(where.library)
    work.tell("measuring ops and copies")
    with backend(True) as timed:
        trace = measured(model.trace, timed, launch, place=best_fit, state=model.initial)
    with backend(True) as timed:
        machine = measured_machine(machine, timed, large=2**26 if where.cuda else 2**22)
    names = {i: name for name, i in model.names.items()}
    planned = make(trace, machine, args, usual=USUAL, more=("seed",))
    return pipeline.Workload(planned, lambda: launch, model.initial, names)


def _trace(args: argparse.Namespace, where: live.Platform, machine: gpumem.Machine) -> pipeline.Workload:
    """A trace file with generic ops; on the emulator a byte stands for each unit of alignment."""
    planned, unit, library = make(live.recorded(args), machine, args, usual=USUAL, more=("seed",)), 1, where.library
    if not where.cuda:
        tell(f"a byte stands for {args.alignment} here; the times are the emulator's, the prediction {machine.name}'s")
        runs = planned.before, planned.after
        halves = [Run(*execute.scaled(run.trace, run.placement), run.timeline) for run in runs]
        planned, unit, library = replace(planned, before=halves[0], after=halves[1]), args.alignment, None
    whole = planned.before.trace
    state = execute.initial(whole, args.seed or 0)
    return pipeline.Workload(planned, lambda: execute.GenericOp(whole, library), state, unit=unit)


NETS = "mlp, mlp-adam, cnn, cnn-adam, cnn-im2col, cnn-winograd, cnn-norm, residual, transformer, transformer-adam"
COMMAND = Command(
    "run",
    run,
    "carry a plan out with real bytes",
    options=(
        option(
            "model",
            nargs="?",
            default="mlp",
            metavar="MODEL",
            help=f"{NETS}, or a trace, whose ops then mix bytes: a {FILE} (default: %(default)s)",
        ),
        Section("what to run, and where", (*WHERE, *live.OPTIONS)),
        *plan_flags("of the emulator's order, and of planners that draw random numbers"),
        option("--json", action="store_true", help="print the table as one JSON object"),
    ),
    examples=(
        "gpumem run mlp --limit 70%",
        "gpumem run resnet18 --device emulate --planner heuristic",
        "gpumem run mlp --live --limit 70%",
    ),
    defaults={"limit": "70%"},
)
