"""What a plan costs and saves, as a table for people and as JSON for programs."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from gpumem import __version__
from gpumem.columns import COPY_IN, COPY_OUT
from gpumem.placement import Placement
from gpumem.swap.plan import Plan, Recompute
from gpumem.timeline import Timeline
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A trace with its placement and its timeline."""

    trace: Trace
    placement: Placement
    timeline: Timeline

    def copied(self, role: int) -> int:
        """Bytes that the ops of a copy role move in one iteration."""
        ops = self.trace.ops
        copies = (ops.role == role).nonzero()[0]
        return int(self.trace.buffers.size[ops.writes.idx[ops.writes.ptr[copies]]].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """A plan for one trace on one machine, against the same trace without it.

    `limit` is the size of the pool, if one was asked for; `load_limit` what the load was brought down to.
    `clock` judges both runs: `placed` for a pool, `capacity` for the papers' load limit. `score` is empty where the
    planner has none.
    """

    machine: str
    score: str
    plan: Plan
    before: Run
    after: Run
    limit: int | None
    load_limit: int
    clock: str
    placed: Timeline  # by the placed clock, whatever the limit
    planner: str = "autoswap"

    def row(self) -> dict[str, Any]:
        """Return all figures: bytes, nanoseconds, `overhead` as a fraction."""
        before, after = self.before, self.after
        overhead = after.timeline.overhead(before.timeline)
        return {
            "trace": before.trace.name,
            "machine": self.machine,
            "planner": self.planner,
            "score": self.score,
            "ops": before.trace.n,
            "buffers": len(before.trace.buffers),
            "limit": self.limit,
            "load_limit": self.load_limit,
            "clock": self.clock,
            "swaps": len(self.plan.swaps),
            "recomputed": sum(isinstance(d, Recompute) for d in self.plan.decisions),
            "peak_load": before.trace.peak_load,
            "peak_load_after": after.trace.peak_load,
            "footprint": before.placement.height,
            "footprint_after": after.placement.height,
            "ratio": before.placement.ratio(before.trace),
            "ratio_after": after.placement.ratio(after.trace),
            "bytes_out": after.copied(COPY_OUT),
            "bytes_in": after.copied(COPY_IN),
            "makespan_before_ns": before.timeline.makespan,
            "makespan_ns": after.timeline.makespan,
            "placed_makespan_ns": self.placed.makespan,
            "overhead": overhead if math.isfinite(overhead) else None,
            "stalls": dict(after.timeline.stalls),
        }

    def table(self) -> str:
        """Return the figures as a table."""
        r = self.row()
        goals = [f"pool of {human(r['limit'])}"] if r["limit"] is not None else []
        if r["clock"] == "capacity":
            goals.append(f"load limit of {human(r['load_limit'])}")
        lines = [
            f"{r['trace']}: {r['ops']} ops, {r['buffers']} buffers, on {r['machine']}, {', '.join(goals)}",
            "",
            f"{'':26}{'before':>14}{'after':>14}{'change':>10}",
            _pair("peak load", r["peak_load"], r["peak_load_after"], human),
            _pair("footprint", r["footprint"], r["footprint_after"], human),
            f"{'competitive ratio':26}{r['ratio']:>14.4f}{r['ratio_after']:>14.4f}",
            _pair(f"iteration ({r['clock']} clock)", r["makespan_before_ns"], r["makespan_ns"], human_ns),
            "",
            f"{'swapped':26}{r['swaps']} gaps by {r['score'] or r['planner']}: "
            f"{human(r['bytes_out'])} out, {human(r['bytes_in'])} in an iteration",
            *([f"{'recomputed':26}{r['recomputed']} gaps"] if r["recomputed"] else []),
            f"{'overhead':26}" + ("infinite" if r["overhead"] is None else f"{r['overhead']:.2%}"),
            f"{'stalls':26}" + ", ".join(f"{human_ns(ns)} for {what}" for what, ns in r["stalls"].items()),
        ]
        return "\n".join(lines)


def _pair(what: str, before: int, after: int, show: Any) -> str:
    change = f"{after / before - 1:+.1%}" if before else ""
    return f"{what:26}{show(before):>14}{show(after):>14}{change:>10}"


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name, and as many `y` as `x`; None where there is no value."""

    name: str
    x: list[float]
    y: list[float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """Curves in one picture; `name` is for files, `x` and `y` say what the axes are."""

    name: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]

    def row(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)


def columns(rows: list[list[str]]) -> str:
    """Write rows of cells as aligned columns, the first to the left, the others to the right.

    >>> print(columns([["name", "size"], ["a", "12"]]))
    name  size
    a       12
    """
    width = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = [[row[0].ljust(width[0]), *(cell.rjust(w) for cell, w in zip(row[1:], width[1:]))] for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def header(command: str, seed: int | str | None = None) -> str:
    """Return as comment lines what made some figures: machine, versions, seed and command."""
    cpu = Path("/proc/cpuinfo")
    known = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.split(":")[1].strip() for line in known if line.startswith("model name")), platform.processor())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "msgspec"))
    return "\n".join(
        [
            f"# machine: {model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            f"# gpumem {__version__}, python {platform.python_version()}, {versions}",
            f"# seed: {seed}",
            f"# command: {command}",
        ]
    )


def human(size: int) -> str:
    """Write bytes in the largest binary unit that keeps them above 1.

    >>> human(1536), human(12), human(3 * 2**30)
    ('1.50 KiB', '12 B', '3.00 GiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"


def human_ns(ns: int) -> str:
    """Write nanoseconds in a unit for people.

    >>> human_ns(57_494_987), human_ns(0)
    ('57.49 ms', '0 ns')
    """
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= scale:
            return f"{ns / scale:.2f} {unit}"
    return f"{ns} ns"


def percent(part: float | None) -> str:
    """Write a fraction for people; None, which JSON has for it, is infinite.

    >>> percent(0.0125), percent(None)
    ('1.25%', 'infinite')
    """
    return "infinite" if part is None or math.isinf(part) else f"{part:.2%}"
