"""`gpumem run --live`: a model or a trace as a program that knows nothing of plans, natively and within a limit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

import gpumem
from gpumem import execute, io, runtime
from gpumem.base.errors import Infeasible
from gpumem.base.units import amount
from gpumem.cli.common.files import source_of
from gpumem.cli.common.parser import Group
from gpumem.cli.common.planners import planners_asked
from gpumem.cli.common.planning import own_options
from gpumem.cli.common.progress import Progress, complain, tell
from gpumem.execute import models
from gpumem.pipeline.report import columns, human, human_ns, percent
from gpumem.runtime.log import spent
from gpumem.runtime.trace_player import OverArrays, TracePlayer

SECONDS = 30.0  # of planning, as a device has them
USUAL = {"threshold": 0, "peaks": "all"}  # of planners, as in `gpumem run`
NOT_LIVE = {"graph": False, "ranges": False, "pool": None, "load_limit": None, "score": None, "no_check": False}
State = dict[int, Any]


def add(where: Group) -> None:
    """Add the options of a program that knows nothing of plans."""
    told = "play it as a program that knows nothing of plans: on demand, then by a plan for what it repeats"
    where.add_argument("--live", action="store_true", help=told)
    beside = "with --live: plan beside the program, which goes on meanwhile (default: it waits for its plan)"
    where.add_argument("--background", action="store_true", help=beside)


@dataclass(frozen=True, slots=True)
class _Room:
    """Where a program is played: a new world, the library of kernels, where to get arrays that are no blocks."""

    name: str
    world: Callable[[], Any]
    library: Any
    cuda: bool

    @classmethod
    def of(cls, device: str) -> _Room:
        if device == "cuda":
            from gpumem.execute.cuda import devices
            from gpumem.kernels import device as kernels
            from gpumem.runtime.devices.on_streams import OnStreams

            return cls(devices()[0], OnStreams, kernels, True)
        from gpumem.kernels import reference

        return cls("the emulator", runtime.InMemory, reference, False)


@dataclass(frozen=True, slots=True)
class _Program:
    """What is played: a trace, what starts its ops, its state, the names of what is compared."""

    trace: gpumem.Trace
    launch: Callable[[], execute.Launch]
    state: Callable[[], State]
    names: dict[int, str]
    unit: int


def run(args: argparse.Namespace, device: str, machine: gpumem.Machine) -> int:
    """Play a model, or a trace with generic ops, natively and within a limit; compare the results bit for bit."""
    for option, usual in NOT_LIVE.items():
        if getattr(args, option) != usual:
            raise ValueError(f"--{option.replace('_', '-')}: of no use to --live, which knows no plan beforehand")
    asked = planners_asked(args)
    planners, own = [*asked], own_options(args, asked, more=("seed", "seconds"))
    room = _Room.of(device)
    with Progress() as progress:
        program = _model(args, room) if args.model in models.MODELS else _trace(args, room, progress)
        clock = runtime.OnClock(_of_units(machine, program.unit))
        limit = amount(args.limit, program.trace.peak_load * program.unit, "--limit") // program.unit
        _check_limit(program.trace, limit)
        progress("running natively")
        native = _play(program, room, runtime.Adaptive(room.world(), 2**60, planner="on-demand"), args.iterations)
        progress("running within the limit")
        seconds = own.pop("seconds", SECONDS)
        limited = runtime.Adaptive(
            runtime.Clocked(room.world(), clock),
            limit,
            planner=planners,
            seconds=seconds,
            wait=not args.background,
            options={**USUAL, **own},
        )
        within = _play(program, room, limited, args.iterations)
    row = _row(args, program, room, planners, native, within)
    print(json.dumps(row) if args.json else _table(row, within.report.notes))
    if row["differing"]:
        complain("the run within the limit left other bytes than the native one: please report this")
    return 1 if row["differing"] else 0


def _model(args: argparse.Namespace, room: _Room) -> _Program:
    model = models.MODELS[args.model](**({} if args.batch is None else {"batch": args.batch}))
    names = {i: name for name, i in model.names.items()}
    return _Program(model.trace, lambda: model.launch(room.library), model.state, names, 1)


def recorded(args: argparse.Namespace, progress: Progress) -> gpumem.Trace:
    """Read the trace that is to run."""
    source = source_of(args.model, models.MODELS)
    if args.batch is not None:
        raise ValueError(f"--batch: {args.model} is a trace, its batch is what was recorded")
    progress(f"reading {args.model}")
    trace = io.load(source).trace
    if not len(trace.ops):
        raise ValueError(f"{args.model}: a bare instance has no ops to run")
    return trace


def _trace(args: argparse.Namespace, room: _Room, progress: Progress) -> _Program:
    """A trace file with generic ops; on the emulator a byte stands for each unit of alignment."""
    trace, unit, library = recorded(args, progress), 1, room.library
    if not room.cuda:
        tell(f"a byte stands for {args.alignment} here, and is copied in the time of as many")
        unit, library = args.alignment, None
        trace = execute.in_units(trace, unit)
    carried = execute.carried(trace)
    names = {int(of): f"buffer {of}" for of in sorted(carried)}
    launch, seed = (lambda: execute.GenericOp(trace, library)), args.seed or 0
    return _Program(trace, launch, lambda: execute.initial(trace, seed), names, unit)


def _of_units(machine: gpumem.Machine, unit: int) -> gpumem.Machine:
    """The machine on which a byte takes as long as so many."""
    out, into = (replace(link, ns_per_byte=link.ns_per_byte * unit) for link in (machine.out, machine.into))
    return replace(machine, out=out, into=into)


def _check_limit(trace: gpumem.Trace, limit: int) -> None:
    """Refuse a limit that one op exceeds."""
    touched = [sorted({*r, *w}) for r, w in zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())]
    needs = [int(trace.buffers.size[row].sum()) for row in touched]
    if limit < max(needs):
        raise Infeasible(int(np.argmax(needs)), max(needs), limit)


@dataclass(frozen=True, slots=True)
class _Played:
    """What came of a program: its state, what the device tells of it, what each iteration took, and its ops alone."""

    state: State
    report: runtime.ManagedReport
    times: list[tuple[int, int]]

    @property
    def peak(self) -> int:
        return max((row.peak for row in self.report.iterations), default=0)


def _play(program: _Program, room: _Room, device: runtime.Adaptive, iterations: int) -> _Played:
    world: Any = getattr(device.world, "world", device.world)
    outside = OverArrays(world.scratch) if room.cuda else None
    state = program.state()
    with device:
        player = TracePlayer.of(program.trace, program.launch(), device, outside)
        player.begin(state)
        for _ in range(iterations):
            player.iteration()
        report, log = device.report(), list(device.log)
        player.end(state)
    return _Played(state, report, spent(log, [row.ops for row in report.iterations]))


def _row(
    args: argparse.Namespace, program: _Program, room: _Room, planners: list[str], native: _Played, within: _Played
) -> dict[str, Any]:
    """All figures: bytes, nanoseconds, overheads as fractions."""
    unit, report = program.unit, within.report
    same = {of: bool((native.state[of] == within.state[of]).all()) for of in program.names}
    rows = [
        {**asdict(row), "ns": took, "alone_ns": alone, "overhead": took / alone - 1 if alone else None}
        for row, (took, alone) in zip(report.iterations, within.times)
    ]
    for row in rows:
        del row["seconds"], row["again"]
        row |= {name: row[name] * unit for name in ("peak", "moved_out", "moved_in")}
    return {
        "trace": program.trace.name,
        "ops": program.trace.n,
        "device": room.name,
        "machine": args.machine,
        "iterations": args.iterations,
        "limit": report.limit * unit,
        "planners": planners,
        "peak_native": native.peak * unit,
        "peak": within.peak * unit,
        "found": report.trace is not None,
        "plan": None if report.plan is None else repr(report.plan),
        "planned_peak": report.planned_peak * unit,
        "planned_from": next((row["number"] for row in rows if row["state"] == "planned"), None),
        "identical": all(same.values()),
        "compared": len(same),
        "differing": [program.names[of] for of, alike in same.items() if not alike],
        "rows": rows,
    }


def _table(row: dict[str, Any], notes: tuple[str, ...]) -> str:
    what = f"{row['trace']}: {row['ops']} ops on {row['device']}, {row['iterations']} iterations"
    goal = f"within {human(row['limit'])}, times by {row['machine']}; natively it holds {human(row['peak_native'])}"
    head = ["iteration", "state", "ops", "peak", "out", "back", "misses", "evicted", "time", "overhead"]
    groups = [[*alike] for _, alike in groupby(row["rows"], lambda x: (_cells(x), x["deviation"]))]
    cells = [[_which(alike), *_cells(alike[0])] for alike in groups]
    same = "bit-identical" if row["identical"] else "DIFFER: " + ", ".join(row["differing"])
    return "\n".join(
        [
            f"{what} {goal}",
            "",
            columns([head, *cells]),
            "",
            *(f"iteration {_which(x)} left the plan: {x[0]['deviation']}" for x in groups if x[0]["deviation"]),
            f"{'plan':19}{_planned(row)}",
            *(f"{'':19}{note}" for note in notes),
            f"{'state afterwards':19}{same} ({row['compared']} buffers)",
        ]
    )


def _planned(row: dict[str, Any]) -> str:
    if row["planned_from"] is None:
        if row["peak_native"] <= row["limit"]:
            return "none needed: all fits"
        if row["planners"] == ["on-demand"]:
            return "none, as was asked for"
        return "none" if row["found"] else "none: nothing was found to repeat"
    return f"from iteration {row['planned_from']} on, {human(row['planned_peak'])} held at most"


def _cells(x: dict[str, Any]) -> list[str]:
    """What the table shows of an iteration beside its number: those that agree in it are one line."""
    moved = [human(x[name]) for name in ("peak", "moved_out", "moved_in")]
    cost = "-" if x["overhead"] is None else percent(x["overhead"])
    return [x["state"], str(x["ops"]), *moved, str(x["misses"]), str(x["evictions"]), human_ns(x["ns"]), cost]


def _which(alike: list[dict[str, Any]]) -> str:
    first, last = alike[0]["number"], alike[-1]["number"]
    return str(first) if first == last else f"{first}-{last}"
