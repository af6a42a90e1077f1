"""Figures 2, 4 and 5 of MO-SOS (Wei et al. 2024): what operators need, what a step takes, and where its time goes.

The paper trains VGG19 in batches of 144 and a U-Net in batches of 120 on a Tesla P40, within 0.8 to 0.4 of the memory,
by programs that Gurobi solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks.papers.autoswap import Study
from gpumem import swap
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.work import now
from gpumem.pipeline.report import Run
from gpumem.simulator.machine import Machine
from gpumem.simulator.workspaces import convolutions
from gpumem.swap.facts.operators import menu_of, operators
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import gaps, without
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import COMPUTE, COPY_OUT, RECOMPUTE, Trace
from gpumem.trace.kinds import WORKSPACE

Row = dict[str, Any]

RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)  # of the memory: figure 4
REDUCTIONS = {"checkmate-auto": 0.1353, "str-auto": 0.0436}  # of a step by MO-SOS: means over both nets, all ratios
EQUAL = (0.8, 0.7)  # ratios at which MO-SOS and STR-Auto are about equal, and
LOOSE = 0.112  # both so far below Checkmate-Auto
FREED = {"the fastest": 2e9, "Winograd": 6e6}  # bytes, for VGG19's node 18 where no memory is free: section 2.1
NO_LIMIT = "no limit"
OURS, WAITS, STARTED = "mosos", "mosos, waits", "mosos, started"
OTHERS = ("heuristic", "search")  # what else could have the best plan
ALONE: dict[str, Mapping[str, Any]] = {  # what begins with nothing, so that its plan is its own
    "checkmate-auto": {},
    "str-auto": {},
    OURS: {"alone": True},
    WAITS: {"alone": True, "waits": True},
}
WAYS = (*ALONE, *OTHERS, STARTED)
HEADROOM = (0.85, 0.7)  # of a limit: what a program plans for that leaves the rest to workspaces


@strict
def trade_off(trace: Trace, machine: Machine, ratios: Sequence[float] = RATIOS) -> list[Row]:
    """Say of each convolution and implementation what it takes and what has to be freed for it at its op: figure 2.

    Parameters
    ----------
    trace : Trace
        With workspaces (see `gpumem.simulator.workspaces.add`).
    machine : Machine
    ratios : sequence of float
        Limits, as fractions of the peak live bytes.

    Returns
    -------
    list of dict
        A row an implementation, by op, the fastest first: `op`, `name`, `by`, `time_ns`, `over` the fastest,
        `workspace`, `load` (bytes at the op but for its workspace), `idle` (bytes of that between two accesses, which a
        plan may have away), and `freed_at_R` for each limit: bytes above it with the workspace, None where more than
        what is idle.

    Notes
    -----
    O(n) for n ops, beside the menu.

    Examples
    --------
    >>> from gpumem import bundled
    >>> from gpumem.simulator import workspaces
    >>> rows = trade_off(workspaces.add(bundled("vgg16")), Machine.named("p40"), [0.8])
    >>> [(r["by"], round(r["over"], 2), r["workspace"], r["freed_at_0.8"]) for r in rows if r["op"] == 32][:2]
    [('winograd-nonfused', 1.0, 38928384, 15646983), ('winograd', 1.41, 4194304, 0)]
    """
    size, own = trace.buffers.size, own_workspaces(trace)
    load, names = trace.live_bytes(), trace.buffers.name
    idle = load - without(load, gaps(trace))
    rows = []
    for op, ways in menu_of(trace, machine).items():
        bare = int(load[op] - size[own[op]])
        for way in ways:
            by = names[own[op]] if way.name == trace.ops.name[op] else way.name.removeprefix(f"{trace.ops.name[op]}.")
            row: Row = {"trace": trace.name, "op": op, "name": trace.ops.name[op], "by": by, "time_ns": way.duration}
            row |= {"over": way.duration / max(ways[0].duration, 1), "workspace": way.workspace}
            row |= {"load": bare, "idle": int(idle[op])}
            for ratio in ratios:
                above = max(bare + way.workspace - limit_of(trace, ratio), 0)
                row[f"freed_at_{ratio:g}"] = above if above <= idle[op] else None
            rows.append(row)
    return rows


@strict
def limit_of(trace: Trace, ratio: float) -> int:
    """The bytes of a ratio: of the peak live bytes as the trace is, so with the workspaces that were added to it."""
    return max(math.floor(ratio * trace.peak_live_bytes), 1)


@strict
def steps(study: Study, ratios: Sequence[float] = RATIOS) -> list[Row]:
    """Measure a step without a limit, then within each ratio by each of `WAYS`: figures 4 and 5.

    A row has the step by byte-counting simulation, what was proved (`bound_ns`, `gap`, `status`), `seconds` of
    planning, and where the time goes (see `spent`). The programs ask for `seconds` each, and begin with nothing, but
    for `STARTED`, whose schedules may wait: it is handed the best plan of all the others.
    """
    case = study.case
    begin = Run(case.trace, case.placement, case.line)
    rows = [{**_row(study, 1.0, NO_LIMIT), "status": "", **spent(case.trace, begin)}]
    for ratio in ratios:
        best: tuple[int, Plan] | None = None
        for name in WAYS:
            started = {"waits": True} | ({} if best is None else {"start": best[1]})
            known = started if name == STARTED else ALONE.get(name, {})
            row, plan = _planned(study, ratio, name, known)
            rows.append(row)
            if plan is not None and (best is None or row["step_ns"] < best[0]):
                best = row["step_ns"], plan
    return rows


def _row(study: Study, ratio: float, way: str) -> Row:
    trace = study.case.trace
    limit = limit_of(trace, ratio)
    none = dict.fromkeys(("step_ns", "bound_ns", "gap", "status", "seconds"))
    return {"trace": trace.name, "ratio": ratio, "limit": limit, "way": way, **none}


def _planned(study: Study, ratio: float, name: str, known: Mapping[str, Any]) -> tuple[Row, Plan | None]:
    """Plan in one way, judge and check; a row without times where it does not get there."""
    row, trace = _row(study, ratio, name), study.case.trace
    told, begin = f"{trace.name}: {name} at {ratio:g}", now()
    study.progress(told)
    try:
        plan, proved = _solved(study, row["limit"], name, lambda text: study.progress(f"{told}: {text}"), known)
    except Infeasible:
        return row | {"status": "infeasible", "seconds": now() - begin}, None
    except NotReached:
        return row | {"status": "not reached", "seconds": now() - begin}, None
    row |= {"seconds": now() - begin, **proved}
    found = study.at(row["limit"], name, lambda trace, machine, limit: plan)
    assert found is not None
    return row | spent(trace, found.after), plan


def _solved(
    study: Study, limit: int, name: str, progress: Callable[[str], None], known: Mapping[str, Any]
) -> tuple[Plan, Row]:
    """A plan, and what is proved of it."""
    planner = swap.planner_of(name.split(",")[0])
    told = planner.known({**study.options, **known, "progress": progress})
    found = planner.propose(study.case.trace, study.case.machine, limit, **told)
    if not planner.proves:
        return found.plan, {"status": ""}
    return found.plan, {"bound_ns": found.lower_bound, "gap": found.gap, "status": found.status}


@strict
def spent(trace: Trace, run: Run) -> Row:
    """Say where the time of a rewritten trace goes, by its timeline: figure 5.

    Parameters
    ----------
    trace : Trace
        The one that was rewritten.
    run : Run

    Returns
    -------
    dict
        `step_ns`: `convolution_ns` of all runs of convolutions, `other_ns` of all other ops, `stall_ns` of neither;
        `again_ns`: that of the first two which runs again; `offloaded` and `recomputed`: bytes copied out, and
        bytes that reruns make.
    """
    ops, line = run.trace.ops, run.timeline
    took = line.end - line.start
    again = ops.role == RECOMPUTE
    runs = again | (ops.role == COMPUTE)
    mine = runs & np.isin(ops.of, trace.ops.of[[*convolutions(trace)]])
    made = np.unique(ops.writes.idx[again[ops.writes.rows()]])
    output = np.array([kind != WORKSPACE for kind in run.trace.buffers.kind], np.bool_)
    busy, whole = int(took[mine].sum()), int(took[runs].sum())
    return {
        "step_ns": line.makespan,
        "convolution_ns": busy,
        "other_ns": whole - busy,
        "stall_ns": line.makespan - whole,
        "again_ns": int(took[again].sum()),
        "offloaded": run.copied(COPY_OUT),
        "recomputed": int(run.trace.buffers.size[made[output[made]]].sum()),
    }


def reductions(rows: Sequence[Row]) -> list[Row]:
    """By how much MO-SOS, from nothing, shortens a step, and by how much its bound lets it at most.

    A row a trace and a ratio; less than nothing where it is slower.
    """
    found = {(r["trace"], r["ratio"], r["way"]): r for r in rows}
    least = {r["trace"]: r["step_ns"] for r in rows if r["way"] == NO_LIMIT}
    reduced = []
    for (trace, ratio, way), ours in found.items():
        if way != OURS or ours["step_ns"] is None:
            continue
        row: Row = {"trace": trace, "ratio": ratio}
        for other in REDUCTIONS:
            step = found[trace, ratio, other]["step_ns"]
            for name, ns in (("", ours["step_ns"]), (", at most", ours["bound_ns"]), (", no limit", least[trace])):
                row[f"{other}{name}"] = None if step is None else 1 - ns / step
        reduced.append(row)
    return reduced


@strict
def headroom(study: Study, ratios: Sequence[float] = RATIOS, parts: Sequence[float] = HEADROOM) -> list[Row]:
    """Measure what the "-Auto" planners get to if their program plans for a part of the limit: workspaces get the rest.

    A row a ratio, a planner and a part, `step_ns` None where the program does not get there.
    """
    trace, machine = study.case.trace, study.case.machine
    rows = []
    for ratio, way, part in product(ratios, REDUCTIONS, parts):
        limit = limit_of(trace, ratio)
        row: Row = {"trace": trace.name, "ratio": ratio, "way": way, "part": part, "step_ns": None}
        rows.append(row)
        study.progress(f"{trace.name}: {way} for {part:g} of {ratio:g}")
        try:
            plan = _solved(study, math.floor(part * limit), way, study.progress, {})[0]
        except (Infeasible, NotReached):
            continue
        chosen = operators(trace, machine, plan, limit)
        found = study.at(limit, way, lambda trace, machine, limit, chosen=chosen: chosen)
        assert found is not None
        row["step_ns"] = found.after.timeline.makespan
    return rows
