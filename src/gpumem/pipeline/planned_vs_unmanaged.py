"""Unmanaged and planned run side by side: what they leave behind, what they hold and move, how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem.base.display import Shown
from gpumem.execute import Backend, GenericOp, Launch, Program, carried, prepare
from gpumem.execute.backend import Bytes
from gpumem.pipeline.report import Report, Run, decided, human, human_ns, versus
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
class Comparison(Shown):
    """Both sides, and the names of what differs after `iterations` iterations (nothing should)."""

    report: Report
    where: str
    iterations: int
    before: Side
    after: Side
    compared: tuple[str, ...]
    differing: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """Return all figures: bytes, nanoseconds, overheads as fractions."""
        planned = self.report.row()
        sides = {"unmanaged": self.before, "planned": self.after}
        return {
            "trace": self.report.before.trace.name,
            "device": self.where,
            "iterations": self.iterations,
            "limit": self.report.limit,
            "score": self.report.score,
            **{name: planned[name] for name in ("swaps", "recomputed", "reruns", "recompute_ns", "held", "tails")},
            "identical": not self.differing,
            "compared": len(self.compared),
            "differing": list(self.differing),
            **{f"{what}_{name}": getattr(side, what) for name, side in sides.items() for what in Side.__slots__},
            "overhead": _overhead(self.before.iteration_ns, self.after.iteration_ns),
            "predicted_overhead": _overhead(self.before.predicted_ns, self.after.predicted_ns),
        }

    def table(self) -> str:
        """Return the figures as a table."""
        r, b, a = self.row(), self.before, self.after
        goal = "" if r["limit"] is None else f", pool of {human(r['limit'])}"
        same = f"bit-identical ({r['compared']} buffers)" if r["identical"] else "DIFFER: " + ", ".join(r["differing"])
        unknown = "not measured" if a.moved else "nothing is copied"
        overlapped = unknown if a.overlap is None else f"{a.overlap:.0%} of their time"
        lines = [
            f"{r['trace']}: {self.report.before.trace.n} ops on {self.where}, {self.iterations} iterations{goal}",
            "",
            f"{'':26}{'unmanaged':>14}{'planned':>14}{'change':>10}",
            versus("device bytes held", b.device, a.device, human),
            versus("pinned host bytes held", b.host, a.host, human),
            versus("bytes copied an iteration", b.moved, a.moved, human),
            versus("iteration, measured", b.iteration_ns, a.iteration_ns, human_ns),
            versus("iteration, predicted", b.predicted_ns, a.predicted_ns, human_ns),
            "",
            *decided(self.report.row()),
            f"{'copies overlapped':26}{overlapped}",
            f"{'state afterwards':26}{same}",
        ]
        return "\n".join(lines)


def _overhead(before: int, after: int) -> float | None:
    return after / before - 1 if before > 0 else None


def compare(
    report: Report,
    make: Callable[[bool], Backend],
    launch: Callable[[], Launch],
    state: State,
    *,
    where: str,
    iterations: int = 20,
    host: Callable[[Trace], Placement] | None = None,
    names: dict[int, str] | None = None,
    unit: int = 1,
) -> Comparison:
    """Run the unmanaged and the planned trace of a report, and compare what is left bit for bit.

    Parameters
    ----------
    report : Report
        Of a plan: both traces with placements and predicted timelines.
    make : callable
        `make(timing)` returns a backend; with `timing` one that measures single ops.
    launch : callable
        Returns the launch for one run; if it is a `GenericOp`, what every op has read is compared as well.
    state : dict of int to array
        Initial values by recorded buffer; left as it is.
    host : callable, optional
        Pool planner for the pinned slab.
    names : dict of int to str, optional
        Of recorded buffers, for people.
    unit : int
        Bytes of the real pool that a byte of these traces stands for (`scaled`).
    """
    sides: list[Side] = []
    left: list[dict[int, Bytes]] = []
    read: list[NDArray[Any]] = []
    for half in (report.before, report.after):
        slab = host(half.trace.host_side()) if host is not None else None
        with make(False) as backend:
            start = launch()
            program = _ready(half, backend, start, slab, state)
            line = program.run(iterations)
            left.append(program.read())
            read.append(start.seen if isinstance(start, GenericOp) else np.zeros(0))
            slabs = program.layout.device * unit, program.layout.host * unit
        with make(True) as backend:
            program = _ready(half, backend, launch(), slab, state)
            program.run(2)
            overlap = _overlap(half.trace, program.run(2))
        moved = (half.copied(COPY_OUT) + half.copied(COPY_IN)) * unit
        sides.append(Side(*slabs, moved, line.makespan, half.timeline.makespan, overlap))
    b = report.before.trace.buffers
    lost = set(b.of[b.persistent].tolist()) - set(left[1])
    held = sorted(carried(report.before.trace))
    wrong = [of for of in held if of in lost or not np.array_equal(left[0][of], left[1].get(of, left[0][of]))]
    ops = [f"what op {i} read" for i in np.flatnonzero(read[0] != read[1]).tolist()]
    called = {of: (names or {}).get(of, f"buffer {of}") for of in held}
    differing = (*(called[of] for of in wrong), *ops)
    return Comparison(report, where, iterations, sides[0], sides[1], tuple(called.values()), differing)


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
