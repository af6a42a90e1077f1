"""What came of a run under a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from gpumem.base.display import Facts, Shown
from gpumem.base.units import human, human_ns
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

RECORDED, ON_DEMAND, PLANNED, IDLE, NATIVE = "recorded", "on demand", "planned", "idle", "native"


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a run: bytes, and numbers of ops, moves and misfortunes.

    Parameters
    ----------
    number : int
        How many there were before it.
    state : str
        `recorded`; `planned`; `on demand`: without a plan, or not as planned; `idle`: it fits without one. `native`:
        nothing was evicted, and nothing is planned.
    ops : int
    peak : int
        The most bytes held on the device at once.
    moved_out, moved_in : int
        Bytes copied.
    recomputed : int
        Ops recomputed.
    misses : int
        Storages that an op found off the device.
    evictions : int
        Storages evicted for free bytes, unplanned.
    deviation : str
        Where it left the plan first; nothing where it did not.
    seconds : float
    """

    number: int
    state: str
    ops: int
    peak: int
    moved_out: int
    moved_in: int
    recomputed: int
    misses: int
    evictions: int
    deviation: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ManagedReport(Shown):
    """A run under a memory limit.

    Parameters
    ----------
    limit : int
        Bytes.
    held : int
        Bytes on the device now.
    trace, plan : Trace, Plan, optional
        What was planned for, and the plan; none while there is none.
    planned_peak : int
        The most bytes that the plan holds at once; 0 without one.
    iterations : tuple of Iteration
        The last ones, the newest last.
    notes : tuple of str
    """

    limit: int
    held: int
    trace: Trace | None
    plan: Plan | None
    planned_peak: int
    iterations: tuple[Iteration, ...]
    notes: tuple[str, ...] = field(default=())

    def _facts(self) -> Facts:
        return {"limit": human(self.limit), "held": human(self.held), "iterations": len(self.iterations)}

    def __str__(self) -> str:
        head = [f"limit {human(self.limit)}, held now {human(self.held)}"]
        if self.plan is not None:
            head.append(f"plan: {self.plan!r}, {human(self.planned_peak)} held at most")
        rows: list[tuple[str, ...]] = [
            ("iteration", "state", "ops", "peak", "out", "back", "recomputed", "misses", "evicted", "time")
        ]
        groups = [[*alike] for _, alike in groupby(self.iterations, lambda row: (_cells(row), row.deviation))]
        rows += [(_which(alike), *_cells(alike[0]), _mean(alike)) for alike in groups]
        widths = [max(map(len, column)) for column in zip(*rows)]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        deviations = [f"iteration {_which(alike)}: {alike[0].deviation}" for alike in groups if alike[0].deviation]
        return "\n".join([*head, "", *table, *deviations, *(f"note: {note}" for note in self.notes)])


def _cells(row: Iteration) -> tuple[str, ...]:
    """What the table shows of an iteration beside its number and time: those that agree in it are one row."""
    counts = str(row.recomputed), str(row.misses), str(row.evictions)
    numbers = human(row.peak), human(row.moved_out), human(row.moved_in), *counts
    return row.state, str(row.ops), *numbers


def _which(alike: Sequence[Iteration]) -> str:
    first, last = alike[0].number, alike[-1].number
    return str(first) if first == last else f"{first}-{last}"


def _mean(alike: Sequence[Iteration]) -> str:
    return human_ns(round(sum(row.seconds for row in alike) / len(alike) * 1e9))
