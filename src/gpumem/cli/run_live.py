"""`gpumem run --live`: a model or a trace as a program that knows no plan, natively and under a memory limit."""

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
from gpumem.base import work
from gpumem.base.errors import Infeasible
from gpumem.base.units import amount
from gpumem.cli.common.files import source_of
from gpumem.cli.common.parser import option
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


OPTIONS = (
    option(
        "--live",
        action="store_true",
        help="play it as a program that knows nothing of plans: on demand, then by a plan for what it repeats",
    ),
    option(
        "--background",
        action="store_true",
        help="with --live: plan beside the program, which goes on meanwhile (default: it waits for its plan)",
    ),
)


@dataclass(frozen=True, slots=True)
class Platform:
    """Platform something runs: its name, its library of kernels, and a new environment for a program without a plan."""

    name: str
    library: Any
    environment: Callable[[], Any]
    cuda: bool

    @classmethod
    def of(cls, device: str) -> Platform:
        """Return a device by its name, `cuda` or `emulate`."""
        if device == "cuda":
            from gpumem.execute.cuda import devices
            from gpumem.kernels import device as kernels
            from gpumem.runtime.devices.on_streams import OnStreams

            return cls(devices()[0], kernels, OnStreams, True)
        from gpumem.kernels import reference

        return cls("the emulator", reference, runtime.InMemory, False)


@dataclass(frozen=True, slots=True)
class _Program:
    """What is played: a trace, what starts its ops, its state, the names of what is compared."""

    trace: gpumem.Trace
    launch: Callable[[], execute.Launch]
    state: Callable[[], State]
    names: dict[int, str]
    unit: int


def run(args: argparse.Namespace, device: str, machine: gpumem.Machine) -> int:
    """Play a model, or a trace with generic ops, natively and under a memory limit; compare the results bit for bit."""
    for name, usual in NOT_LIVE.items():
        if getattr(args, name) != usual:
            raise ValueError(f"--{name.replace('_', '-')}: of no use to --live, which knows no plan beforehand")
    asked = planners_asked(args)
    planners, own = [*asked], own_options(args, asked, more=("seed", "seconds"))
    where = Platform.of(device)
    with Progress():
        program = _model(args, where) if args.model in models.MODELS else _trace(args, where)
        clock = runtime.OnClock(_of_units(machine, program.unit))
        limit = amount(args.limit, program.trace.peak_live_bytes * program.unit, "--limit") // program.unit
        _check_limit(program.trace, limit)
        work.tell("running natively")
        native = _play(
            program, where, runtime.Adaptive(where.environment(), 2**60, planner="on-demand"), args.iterations
        )
        work.tell("running within the limit")
        seconds = own.pop("seconds", SECONDS)
        limited = runtime.Adaptive(
            runtime.Clocked(where.environment(), clock),
            limit,
            planner=planners,
            seconds=seconds,
            wait=not args.background,
            options={**USUAL, **own},
        )
        within = _play(program, where, limited, args.iterations)
    compared = _Compared(
        where.name,
        machine=args.machine,
        count=args.iterations,
        planners=planners,
        program=program,
        native=native,
        within=within,
    )
    print(json.dumps(compared.row()) if args.json else compared.table())
    if compared.differing:
        complain("the run within the limit left other bytes than the native one: please report this")
    return 1 if compared.differing else 0


def _model(args: argparse.Namespace, where: Platform) -> _Program:
    model = models.MODELS[args.model](**({} if args.batch is None else {"batch": args.batch}))
    names = {i: name for name, i in model.names.items()}
    return _Program(model.trace, lambda: model.launch(where.library), state=model.state, names=names, unit=1)


def recorded(args: argparse.Namespace) -> gpumem.Trace:
    """Read the trace that is to run."""
    source = source_of(args.model, models.MODELS)
    if args.batch is not None:
        raise ValueError(f"--batch: {args.model} is a trace, its batch is what was recorded")
    work.tell(f"reading {args.model}")
    trace = io.load(source).trace
    if not len(trace.ops):
        raise ValueError(f"{args.model}: a bare instance has no ops to run")
    return trace


def _trace(args: argparse.Namespace, where: Platform) -> _Program:
    """A trace file with generic ops; on the emulator a byte stands for each unit of alignment."""
    trace, unit, library = recorded(args), 1, where.library
    if not where.cuda:
        tell(f"a byte stands for {args.alignment} here, and is copied in the time of as many")
        unit, library = args.alignment, None
        trace = execute.in_units(trace, unit)
    carried = execute.carried(trace)
    names = {int(of): f"buffer {of}" for of in sorted(carried)}
    launch, seed = (lambda: execute.GenericOp(trace, library)), args.seed or 0
    return _Program(trace, launch, state=lambda: execute.initial(trace, seed), names=names, unit=unit)


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


def _play(program: _Program, where: Platform, device: runtime.Adaptive, iterations: int) -> _Played:
    inner: Any = getattr(device.environment, "environment", device.environment)
    state_arrays = OverArrays(inner.scratch) if where.cuda else None
    state = program.state()
    with device:
        player = TracePlayer.of(program.trace, program.launch(), device, state_arrays)
        player.begin(state)
        for _ in range(iterations):
            player.iteration()
        report, log = device.report(), list(device.log)
        player.end(state)
    return _Played(state, report, spent(log, [row.ops for row in report.iterations]))


@dataclass(frozen=True, slots=True)
class _Iteration:
    """An iteration within the limit: what the device tells of it, in bytes, and its nanoseconds; its ops' own."""

    ledger: runtime.Iteration
    ns: int
    alone_ns: int

    @property
    def overhead(self) -> float | None:
        """How much longer it took than its ops alone."""
        return self.ns / self.alone_ns - 1 if self.alone_ns else None

    def row(self) -> dict[str, object]:
        """Return all figures for JSON."""
        known = {name: value for name, value in asdict(self.ledger).items() if name not in ("seconds", "again")}
        return {**known, "ns": self.ns, "alone_ns": self.alone_ns, "overhead": self.overhead}

    def cells(self) -> list[str]:
        """Return what the table shows of it beside its number: those that agree in it are one line."""
        x, cost = self.ledger, "-" if self.overhead is None else percent(self.overhead)
        moved = [human(n) for n in (x.peak, x.moved_out, x.moved_in)]
        return [x.state, str(x.ops), *moved, str(x.misses), str(x.evictions), human_ns(self.ns), cost]


@dataclass(frozen=True, slots=True)
class _Compared:
    """What came of a program natively and under a memory limit."""

    device: str
    machine: str
    count: int
    planners: list[str]
    program: _Program
    native: _Played
    within: _Played

    @property
    def differing(self) -> list[str]:
        """The names of what holds other bytes in the end (nothing should)."""
        native, within, names = self.native.state, self.within.state, self.program.names
        return [name for of, name in names.items() if not (native[of] == within[of]).all()]

    @property
    def iterations(self) -> list[_Iteration]:
        """Each iteration within the limit, in bytes of the program."""
        unit = self.program.unit
        sizes = ("peak", "moved_out", "moved_in")
        return [
            _Iteration(replace(row, **{name: getattr(row, name) * unit for name in sizes}), *times)
            for row, times in zip(self.within.report.iterations, self.within.times)
        ]

    @property
    def planned_from(self) -> int | None:
        """The first iteration that followed a plan."""
        return next((row.number for row in self.within.report.iterations if row.state == "planned"), None)

    def row(self) -> dict[str, object]:
        """Return all figures for JSON: bytes, nanoseconds, overheads as fractions."""
        program, unit, report, differing = self.program, self.program.unit, self.within.report, self.differing
        return {
            "trace": program.trace.name,
            "ops": program.trace.n,
            "device": self.device,
            "machine": self.machine,
            "iterations": self.count,
            "limit": report.limit * unit,
            "planners": self.planners,
            "peak_native": self.native.peak * unit,
            "peak": self.within.peak * unit,
            "found": report.trace is not None,
            "plan": None if report.plan is None else repr(report.plan),
            "planned_peak": report.planned_peak * unit,
            "planned_from": self.planned_from,
            "identical": not differing,
            "compared": len(program.names),
            "differing": differing,
            "rows": [row.row() for row in self.iterations],
        }

    def table(self) -> str:
        """Return the figures as a table."""
        trace, unit = self.program.trace, self.program.unit
        what = f"{trace.name}: {trace.n} ops on {self.device}, {self.count} iterations within"
        goal = f"{human(self.within.report.limit * unit)}, times by {self.machine}; natively it holds"
        head = ["iteration", "state", "ops", "peak", "out", "back", "misses", "evicted", "time", "overhead"]
        groups = [[*alike] for _, alike in groupby(self.iterations, lambda x: (x.cells(), x.ledger.deviation))]
        left = {_which(alike): alike[0].ledger.deviation for alike in groups}
        same = "DIFFER: " + ", ".join(self.differing) if self.differing else "bit-identical"
        return "\n".join(
            [
                f"{what} {goal} {human(self.native.peak * unit)}",
                "",
                columns([head, *([_which(alike), *alike[0].cells()] for alike in groups)]),
                "",
                *(f"iteration {which} left the plan: {deviation}" for which, deviation in left.items() if deviation),
                f"{'plan':19}{self._planned()}",
                *(f"{'':19}{note}" for note in self.within.report.notes),
                f"{'state afterwards':19}{same} ({len(self.program.names)} buffers)",
            ]
        )

    def _planned(self) -> str:
        report, unit = self.within.report, self.program.unit
        if self.planned_from is not None:
            return f"from iteration {self.planned_from} on, {human(report.planned_peak * unit)} held at most"
        if self.native.peak <= report.limit:
            return "none needed: all fits"
        if self.planners == ["on-demand"]:
            return "none, as was asked for"
        return "none: nothing was found to repeat" if report.trace is None else "none"


def _which(alike: list[_Iteration]) -> str:
    first, last = alike[0].ledger.number, alike[-1].ledger.number
    return str(first) if first == last else f"{first}-{last}"
