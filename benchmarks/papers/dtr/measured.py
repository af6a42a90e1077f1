"""Overheads at parts of the peak: of DTR's runtime as simulated, of its plans, of simrd, of other planners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.papers.dtr.simrd import simulated
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.units import percent
from gpumem.pipeline.report import columns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import PLANNERS
from gpumem.swap.dtr import Dtr, online
from gpumem.swap.dtr.online import NO_ROOM, RAN
from gpumem.trace import Trace

BUDGETS = (0.8, 0.6, 0.5, 0.4, 0.3)  # of the peak live bytes
PRINTED = ("dtr", "eq", "lru", "msps")  # the paper's figure 2 has these, and two more
MACHINE = Machine.named("v100").with_(pinned=0)  # nothing can be swapped; a log tells how long each op takes
Simulator = Callable[[int, str], tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """Overheads as fractions of the ops' time; a text says why there is none."""

    trace: str
    budget: float  # part of the peak live bytes
    way: str
    online: float | str = ""
    plan: float | str = ""
    simrd: float | str = ""


def measure(
    trace: Trace,
    *,
    budgets: Sequence[float] = BUDGETS,
    heuristics: Sequence[str] = PRINTED,
    planners: Sequence[str] = (),
    seconds: float | None = None,
    simrd: Simulator | None = None,
    overhead: float = 1.0,
) -> Iterator[Row]:
    """Measure a trace: a row a budget and a heuristic, then one for each of other planners.

    `simrd` runs the simulator of the paper on the same log: see `simulator`. `overhead`: where runtimes give up.
    """
    for part in budgets:
        limit = int(trace.peak_live_bytes * part)
        for heuristic in heuristics:
            run = online(trace, MACHINE, limit, heuristic=heuristic, overhead=overhead)
            found = run.recompute_ns / max(run.base, 1)
            ours = found if run.how == RAN else "no room" if run.how == NO_ROOM else "too long"
            plan = planned(trace, limit, Dtr(heuristic=heuristic), seconds)
            yield Row(trace.name, part, heuristic, ours, plan, "" if simrd is None else _cell(*simrd(limit, heuristic)))
        for name in planners:
            yield Row(trace.name, part, name, plan=planned(trace, limit, PLANNERS[name], seconds))


def simulator(path: Path, log: Path, *, collapsed: bool, python: str, overhead: float = 1.0) -> Simulator:
    """Return a function of a budget and a heuristic that runs simrd on a log."""

    def run(budget: int, heuristic: str) -> tuple[str, float]:
        return simulated(path, log, budget, heuristic, overhead=overhead, collapsed=collapsed, python=python)

    return run


def planned(trace: Trace, limit: int, planner: Callable[..., object], seconds: float | None) -> float | str:
    """The overhead of a planner's plan by the byte-counting simulation, or why there is none."""
    try:
        plan = planner(trace, MACHINE, limit, **({} if seconds is None else {"seconds": seconds}))
    except (Infeasible, NotReached) as stop:
        return "infeasible" if isinstance(stop, Infeasible) else "not reached"
    took = simulate(plan.apply(trace), MACHINE, capacity=limit).makespan  # type: ignore[attr-defined]
    return took / simulate(trace, MACHINE).makespan - 1


def _cell(how: str, overhead: float) -> float | str:
    return overhead if how == "ran" else how


def table(rows: Sequence[Row]) -> str:
    """Return a line a row; overheads in percent of the ops' time."""
    lines = [["trace", "budget", "way", "online", "plan", "simrd"]]
    for row in rows:
        cells = [c if isinstance(c, str) else f"{100 * c:.2f}" for c in (row.online, row.plan, row.simrd)]
        lines.append([row.trace, percent(row.budget), row.way, *cells])
    return columns(lines)
