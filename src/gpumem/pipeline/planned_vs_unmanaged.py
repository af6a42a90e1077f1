"""Unmanaged and planned run side by side: what they leave behind, what they hold and move, how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.display import Shown
from gpumem.execute import Backend, GenericOp, Launch, Program, carried, prepare
from gpumem.execute.backend import Bytes
from gpumem.pipeline.planned import Planned
from gpumem.pipeline.report import Run, human, human_ns, versus
from gpumem.simulator.timeline import Timeline
from gpumem.trace import COPY_IN, COPY_OUT, UNKNOWN, Trace
from gpumem.trace.placement import Placement

State = dict[int, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: bytes of the slabs, bytes copied in an iteration, its time as measured and as predicted.

    `overlap` is the part of the copies' time during which something was computed; None where single ops
    were not timed or nothing was copied.
    """

    device: int
    host: int
    moved: int
    iteration_ns: int
    predicted_ns: int
    overlap: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Workload(Shown):
    """What is carried out: a plan, and a program for its trace.

    Parameters
    ----------
    planned : Planned
        Both traces with placements and predicted timelines.
    launch : callable
        Returns the launch for one run; if it is a `GenericOp`, what every op has read is compared as well.
    state : dict of int to array
        Initial values by recorded buffer; left as it is.
    names : dict of int to str
        Of recorded buffers, for people.
    unit : int
        Bytes of the real pool that a byte of these traces stands for (`scaled`).
    """

    planned: Planned
    launch: Callable[[], Launch]
    state: State
    names: dict[int, str] = field(default_factory=dict)
    unit: int = 1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Shown):
    """Both sides, and the names of what differs after `iterations` iterations (nothing should)."""

    planned: Planned
    where: str
    iterations: int
    before: Side
    after: Side
    compared: tuple[str, ...]
    differing: tuple[str, ...]

    def row(self) -> dict[str, object]:
        """Return all figures: bytes, nanoseconds, overheads as fractions."""
        sides = {"unmanaged": self.before, "planned": self.after}
        return {
            "trace": self.planned.before.trace.name,
            "device": self.where,
            "iterations": self.iterations,
            "limit": self.planned.pool,
            "score": self.planned.score,
            **asdict(self.planned.counts),
            "identical": not self.differing,
            "compared": len(self.compared),
            "differing": list(self.differing),
            **{f"{what}_{name}": value for name, side in sides.items() for what, value in asdict(side).items()},
            "overhead": _overhead(self.before.iteration_ns, self.after.iteration_ns),
            "predicted_overhead": _overhead(self.before.predicted_ns, self.after.predicted_ns),
        }

    def table(self) -> str:
        """Return the figures as a table."""
        trace, pool, b, a = self.planned.before.trace, self.planned.pool, self.before, self.after
        goal = "" if pool is None else f", pool of {human(pool)}"
        differing = "DIFFER: " + ", ".join(self.differing)
        unknown = "not measured" if a.moved else "nothing is copied"
        overlapped = unknown if a.overlap is None else f"{a.overlap:.0%} of their time"
        lines = [
            f"{trace.name}: {trace.n} ops on {self.where}, {self.iterations} iterations{goal}",
            "",
            f"{'':26}{'unmanaged':>14}{'planned':>14}{'change':>10}",
            versus("device bytes held", b.device, a.device, human),
            versus("pinned host bytes held", b.host, a.host, human),
            versus("bytes copied an iteration", b.moved, a.moved, human),
            versus("iteration, measured", b.iteration_ns, a.iteration_ns, human_ns),
            versus("iteration, predicted", b.predicted_ns, a.predicted_ns, human_ns),
            "",
            *self.planned.counts.lines(self.planned.by),
            f"{'copies overlapped':26}{overlapped}",
            f"{'state afterwards':26}"
            + (differing if self.differing else f"bit-identical ({len(self.compared)} buffers)"),
        ]
        return "\n".join(lines)


def _overhead(before: int, after: int) -> float | None:
    return after / before - 1 if before > 0 else None


def compare(
    workload: Workload,
    make: Callable[[bool], Backend],
    *,
    where: str,
    iterations: int = 20,
    host: Callable[[Trace], Placement] | None = None,
) -> Comparison:
    """Run a workload unmanaged and as planned, and compare what is left bit for bit.

    Parameters
    ----------
    workload : Workload
    make : callable
        `make(timing)` returns a backend; with `timing` one that measures single ops.
    where : str
        What the backends are, for people.
    iterations : int
        How many of each.
    host : callable, optional
        Pool planner for the pinned slab.
    """
    sides: list[Side] = []
    left: list[dict[int, Bytes]] = []
    read: list[NDArray[Any]] = []
    planned, unit = workload.planned, workload.unit
    for half in (planned.before, planned.after):
        slab = host(half.trace.host_side()) if host is not None else None
        with make(False) as backend:
            start = workload.launch()
            program = _ready(half, backend, start, slab, workload.state)
            line = program.run(iterations)
            left.append(program.read())
            read.append(start.seen if isinstance(start, GenericOp) else np.zeros(0))
            slabs = program.layout.device * unit, program.layout.host * unit
        with make(True) as backend:
            program = _ready(half, backend, workload.launch(), slab, workload.state)
            program.run(2)
            overlap = _overlap(half.trace, program.run(2))
        moved = (half.copied(COPY_OUT) + half.copied(COPY_IN)) * unit
        sides.append(Side(*slabs, moved, line.makespan, half.timeline.makespan, overlap))
    b = planned.before.trace.buffers
    lost = set(b.of[b.persistent].tolist()) - set(left[1])
    held = sorted(carried(planned.before.trace))
    wrong = [of for of in held if of in lost or not np.array_equal(left[0][of], left[1].get(of, left[0][of]))]
    ops = [f"what op {i} read" for i in np.flatnonzero(read[0] != read[1]).tolist()]
    called = {of: workload.names.get(of, f"buffer {of}") for of in held}
    differing = (*(called[of] for of in wrong), *ops)
    return Comparison(
        planned,
        where,
        iterations=iterations,
        before=sides[0],
        after=sides[1],
        compared=tuple(called.values()),
        differing=differing,
    )


def _ready(half: Run, backend: Backend, launch: Launch, host: Placement | None, state: State) -> Program:
    program = prepare(half.trace, half.placement, backend, launch, host=host)
    over = program.crossing()
    program.write({of: value for of, value in state.items() if of in over})
    return program


def _overlap(trace: Trace, line: Timeline) -> float | None:
    """The part of the copies' time during which a computing op ran; spans of one stream do not overlap."""
    copies = trace.ops.copies
    if not copies.any() or (line.start == UNKNOWN).any():
        return None
    hidden = total = 0
    for i in np.flatnonzero(copies).tolist():
        low, high = int(line.start[i]), int(line.end[i])
        covered = np.minimum(line.end[~copies], high) - np.maximum(line.start[~copies], low)
        hidden += min(int(covered.clip(0).sum()), high - low)
        total += high - low
    return hidden / total if total else None
