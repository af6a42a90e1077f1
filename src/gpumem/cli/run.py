"""`gpumem run`: carry a plan out with real bytes, next to the unmanaged run."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import gpumem
from gpumem import best_fit, execute, pipeline, pool
from gpumem.base.names import choice
from gpumem.cli import doctor, run_live as live
from gpumem.cli.common.args import one_word, target_of
from gpumem.cli.common.files import FILE
from gpumem.cli.common.parser import Commands
from gpumem.cli.common.planning import add_options, make
from gpumem.cli.common.progress import Progress, complain, tell
from gpumem.execute import models
from gpumem.pipeline import report

DEVICES = ("auto", "emulate", "cuda")
USUAL = {"threshold": 0, "peaks": "all"}  # of planners: the models are small


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "run",
        help="carry a plan out with real bytes",
        description=run.__doc__,
        examples=[
            "gpumem run mlp --limit 70%",
            "gpumem run resnet18 --device emulate --planner heuristic",
            "gpumem run mlp --live --limit 70%",
        ],
    )
    nets = "mlp, mlp-adam, cnn, cnn-adam, cnn-im2col, cnn-winograd, cnn-norm, residual, transformer, transformer-adam"
    what = f"{nets}, or a trace, whose ops then mix bytes"
    p.add_argument("model", nargs="?", default="mlp", metavar="MODEL", help=f"{what}: a {FILE} (default: %(default)s)")
    where = p.add_argument_group("what to run, and where")
    where.add_argument(
        "--batch", type=int, metavar="N", help="samples in an iteration of a model (default: the model's own)"
    )
    where.add_argument("--device", default="auto", metavar="NAME", help="auto, emulate or cuda (default: %(default)s)")
    where.add_argument("--iterations", type=int, default=20, metavar="N", help="how many to run (default: %(default)s)")
    where.add_argument("--graph", action="store_true", help="on CUDA: capture the iteration into a graph and replay it")
    where.add_argument("--ranges", action="store_true", help="on CUDA: name ops and copies for a profiler (NVTX)")
    live.add(where)
    add_options(p, seed="of the emulator's order, and of planners that draw random numbers")
    p.add_argument("--json", action="store_true", help="print the table as one JSON object")
    p.set_defaults(run=run, limit="70%")


def run(args: argparse.Namespace) -> int:
    """Run a model, or a trace with generic ops, unmanaged and planned; compare the results bit for bit."""
    for option, least in (("iterations", 1), ("batch", 1), ("seed", 0), ("alignment", 1)):
        if (given := getattr(args, option)) is not None and given < least:
            raise ValueError(f"--{option}: {given} is below {least}")
    if args.live:
        return live.run(args, _device(args), target_of(args))
    if args.background:
        raise ValueError("--background: only --live plans while the program runs")
    if args.load_limit is not None:
        raise ValueError("--load-limit: a run needs addresses, so only --limit, the size of the pool, applies")
    device = _device(args)
    target = target_of(args)
    with Progress() as progress:
        found = _compared(args, device, target, progress)
    print(json.dumps(found.row()) if args.json else found.table())
    if found.differing:
        complain("the planned run left other bytes than the unmanaged one: please report this")
    return 1 if found.differing else 0


def _device(args: argparse.Namespace) -> str:
    """Return `emulate` or `cuda`; `auto` takes CUDA where it works."""
    one_word(args, "device", DEVICES)
    missing = "not asked for" if args.device == "emulate" else doctor.why_no_cuda()
    if missing and args.device == "cuda":
        raise ValueError(f"--device: no CUDA here: {missing} (see gpumem doctor)")
    for option in ("graph", "ranges"):
        if missing and getattr(args, option):
            raise ValueError(f"--{option}: it needs CUDA: {missing}")
    if args.ranges and find_spec("nvtx") is None:
        raise ValueError("--ranges: it needs the package nvtx: pip install 'gpumem[nvtx]'")
    return "emulate" if missing else "cuda"


class _Room:
    """Where to run: makes backends, names itself, has a library of kernels."""

    library: Any

    def __init__(self, device: str, args: argparse.Namespace) -> None:
        self.cuda, self.args = device == "cuda", args
        if self.cuda:
            from gpumem.execute.cuda import devices
            from gpumem.kernels import device as kernels

            self.name, self.library = devices()[0], kernels
        else:
            from gpumem.kernels import reference

            self.name, self.library = f"the emulator (order {args.seed or 0})", reference

    def __call__(self, timing: bool) -> execute.Backend:
        if self.cuda:
            from gpumem.execute.cuda import Cuda

            return Cuda(timing=timing, graph=self.args.graph and not timing, ranges=self.args.ranges and not timing)
        return execute.Emulator(self.args.seed or 0)


def _compared(
    args: argparse.Namespace, device: str, machine: gpumem.Machine, progress: Progress
) -> pipeline.Comparison:
    placer = choice(args.pool or "best-fit", pool.PLANNERS, "--pool")
    room = _Room(device, args)
    program = (_model if args.model in models.MODELS else _trace)(args, room, machine, progress)
    progress("running")
    host = partial(placer, alignment=args.alignment // program.get("unit", 1))
    return pipeline.compare(make=room, where=room.name, iterations=args.iterations, host=host, **program)


def _model(args: argparse.Namespace, room: _Room, machine: gpumem.Machine, progress: Progress) -> dict[str, Any]:
    """What to compare, as keywords of `compare`: a model, planned for by the times that its ops and copies take."""
    from gpumem.execute.latency.measured import measured, measured_machine

    model = models.MODELS[args.model](**({} if args.batch is None else {"batch": args.batch}))
    launch = model.launch(room.library)
    progress("measuring ops and copies")
    with room(True) as backend:
        trace = measured(model.trace, backend, launch, place=best_fit, state=model.initial)
    with room(True) as backend:
        machine = measured_machine(machine, backend, large=2**26 if room.cuda else 2**22)
    names = {i: name for name, i in model.names.items()}
    planned = make(trace, machine, args, progress, usual=USUAL, more=("seed",))
    return {"report": planned.report(), "launch": lambda: launch, "state": model.initial, "names": names}


def _trace(args: argparse.Namespace, room: _Room, machine: gpumem.Machine, progress: Progress) -> dict[str, Any]:
    """The same of a trace file with generic ops; on the emulator a byte stands for each unit of alignment."""
    trace = live.recorded(args, progress)
    made, unit, library = make(trace, machine, args, progress, usual=USUAL, more=("seed",)).report(), 1, room.library
    if not room.cuda:
        tell(f"a byte stands for {args.alignment} here; the times are the emulator's, the prediction {machine.name}'s")
        runs = made.before, made.after
        halves = [report.Run(*execute.scaled(run.trace, run.placement), run.timeline) for run in runs]
        made, unit, library = replace(made, before=halves[0], after=halves[1]), args.alignment, None
    whole = made.before.trace
    state = execute.initial(whole, args.seed or 0)
    return {"report": made, "launch": lambda: execute.GenericOp(whole, library), "state": state, "unit": unit}
