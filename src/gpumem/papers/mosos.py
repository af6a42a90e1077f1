"""Figures 2, 4 and 5 of MO-SOS (Wei et al. 2024): what operators need, what a step takes, and where its time goes.

The paper trains VGG19 in batches of 144 and a U-Net in batches of 120 on a Tesla P40, within 0.8 to 0.4 of the memory,
by programs that Gurobi solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from gpumem import swap
from gpumem._strict import strict
from gpumem.columns import COMPUTE, COPY_OUT, RECOMPUTE
from gpumem.errors import Infeasible, NotReached
from gpumem.evaluate.options import taken
from gpumem.kinds import WORKSPACE
from gpumem.machine import Machine
from gpumem.papers.autoswap import Study
from gpumem.report import Figure, Run, Series, columns, human, human_ns, percent
from gpumem.swap.gaps import gaps, without
from gpumem.swap.menu import menu_of
from gpumem.swap.mosos import solve_mosos
from gpumem.swap.plan import Plan
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import Trace
from gpumem.workspaces import convolutions

Row = dict[str, Any]

RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4)  # of the memory: figure 4
REDUCTIONS = {"checkmate-auto": 0.1353, "str-auto": 0.0436}  # of a step by MO-SOS: means over both nets, all ratios
EQUAL = (0.8, 0.7)  # ratios at which MO-SOS and STR-Auto are about equal, and
LOOSE = 0.112  # both so far below Checkmate-Auto
FREED = {"the fastest": 2e9, "Winograd": 6e6}  # bytes, for VGG19's node 18 where no memory is free: section 2.1
NO_LIMIT, SEARCH = "no limit", "search"
OURS = "mosos"
PROGRAMS = ("checkmate-auto", "str-auto", OURS)
GIB = 2**30


@strict
def trade_off(trace: Trace, machine: Machine, ratios: Sequence[float] = RATIOS) -> list[Row]:
    """Say of each convolution and implementation what it takes and what has to be freed for it at its op: figure 2.

    Parameters
    ----------
    trace : Trace
        With workspaces (see `gpumem.workspaces.add`).
    machine : Machine
    ratios : sequence of float
        Limits, as fractions of the peak load.

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
    >>> from gpumem import bundled, workspaces
    >>> rows = trade_off(workspaces.add(bundled("vgg16")), Machine.named("p40"), [0.8])
    >>> [(r["by"], round(r["over"], 2), r["workspace"], r["freed_at_0.8"]) for r in rows if r["op"] == 45]
    [('winograd-nonfused', 1.0, 30670848, 22286352), ('winograd', 1.21, 4194304, 0), ('implicit-gemm', 2.72, 0, 0)]
    """
    size, own, found = trace.buffers.size, own_workspaces(trace), gaps(trace)
    load, names = trace.load(), trace.buffers.name
    idle = load - without(load, found, size[found.buffer])
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


def limit_of(trace: Trace, ratio: float) -> int:
    """The bytes of a ratio: of the peak load as the trace is, so with the workspaces that were added to it."""
    return max(math.floor(ratio * trace.peak_load), 1)


@strict
def steps(study: Study, ratios: Sequence[float] = RATIOS) -> list[Row]:
    """Measure a step without a limit, then within each ratio by each program and the search: figures 4 and 5.

    A row has the step by the capacity clock, what the program proved (`bound_ns`, `gap`, `status`), `seconds` of
    planning, and where the time goes (see `spent`). The programs ask for `seconds` each; MO-SOS is handed the better
    plan of the two that came before.
    """
    case = study.case
    begin = Run(case.trace, case.placement, case.line)
    rows = [{**_row(study, 1.0, NO_LIMIT), "status": "", **spent(case.trace, begin)}]
    for ratio in ratios:
        best: tuple[int, Plan] | None = None
        for name in (*PROGRAMS, SEARCH):
            known = {"start": best[1]} if best is not None and name == OURS else {}
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
    told, begin = f"{trace.name}: {name} at {ratio:g}", perf_counter()
    study.progress(told)
    try:
        plan, proved = _solved(study, row["limit"], name, lambda text: study.progress(f"{told}: {text}"), known)
    except Infeasible:
        return row | {"status": "infeasible", "seconds": perf_counter() - begin}, None
    except NotReached:
        return row | {"status": "not reached", "seconds": perf_counter() - begin}, None
    row |= {"seconds": perf_counter() - begin, **proved}
    found = study.at(row["limit"], name, lambda trace, machine, limit: plan)
    assert found is not None
    return row | spent(trace, found.after), plan


def _solved(
    study: Study, limit: int, name: str, progress: Callable[[str], None], known: Mapping[str, Any]
) -> tuple[Plan, Row]:
    """A plan, and what is proved of it."""
    call = swap.search if name == SEARCH else partial(solve_mosos, kind=name)
    found = call(
        study.case.trace, study.case.machine, limit, **taken(call, {**study.options, **known, "progress": progress})
    )
    if isinstance(found, Plan):
        return found, {"status": ""}
    return found.plan, {"bound_ns": found.bound, "gap": found.gap, "status": found.status}


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
    """By how much MO-SOS shortens a step, a row a trace and a ratio, and by how much its bound lets it at most."""
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


def trade_off_table(rows: Sequence[Row]) -> str:
    """Return a line an implementation."""
    freed = [key for key in rows[0] if key.startswith("freed")] if rows else []
    head = ["trace", "op", "name", "by", "time", "over", "workspace", "beside", "idle"]
    lines = [[*head, *(key.replace("_", " ") for key in freed)]]
    for r in rows:
        sizes = [human(r[key]) for key in ("workspace", "load", "idle")]
        cells = [r["trace"], str(r["op"]), r["name"], r["by"], human_ns(r["time_ns"]), f"{r['over']:.2f}", *sizes]
        lines.append([*cells, *("too much" if r[key] is None else human(r[key]) for key in freed)])
    told = "`freed at R`: what is above R of the peak load at the op; where no memory is free, the whole workspace."
    return f"{columns(lines)}\n\n{told}"


def step_table(rows: Sequence[Row]) -> str:
    """Return a line a trace, a ratio and a way: figure 4."""
    lines = [["trace", "ratio", "limit", "way", "step", "over no limit", "at least", "gap", "status", "seconds"]]
    least = {r["trace"]: r["step_ns"] for r in rows if r["way"] == NO_LIMIT}
    for r in rows:
        step = r["step_ns"]
        over = "-" if step is None else f"{step / max(least[r['trace']], 1):.3f}"
        proved = [_ns(r["bound_ns"]), "" if r["gap"] is None else percent(r["gap"]), r["status"]]
        seconds = "" if r["seconds"] is None else f"{r['seconds']:.0f}"
        cells = [r["trace"], f"{r['ratio']:g}", human(r["limit"]), r["way"], _ns(step) or "-", over]
        lines.append([*cells, *proved, seconds])
    told = f"`at least`: of the plans that each program says. {OURS} begins with the better plan of the two others."
    return f"{columns(lines)}\n\n{told}"


def _ns(value: float | None) -> str:
    return "" if value is None else human_ns(round(value))


def spent_table(rows: Sequence[Row]) -> str:
    """Return a line a trace, a ratio and a way: figure 5."""
    times, sizes = ("convolution_ns", "other_ns", "again_ns", "stall_ns"), ("offloaded", "recomputed")
    heads = ["convolutions", "other", "of both again", "neither", "offloaded", "made again"]
    lines = [["trace", "ratio", "way", "step", *heads]]
    for r in rows:
        cells = [r["trace"], f"{r['ratio']:g}", r["way"], _ns(r["step_ns"]) or "-"]
        if r["step_ns"] is not None:
            cells += [human_ns(r[key]) for key in times] + [human(r[key]) for key in sizes]
        lines.append(cells + [""] * (len(lines[0]) - len(cells)))
    return columns(lines)


def reduction_table(rows: Sequence[Row]) -> str:
    """Return a line a trace and a ratio, then means, beside the paper's."""
    keys = [key for key in rows[0] if key not in ("trace", "ratio")] if rows else []
    lines = [["trace", "ratio", *keys]]
    lines += [[r["trace"], f"{r['ratio']:g}", *(_part(r[key]) for key in keys)] for r in rows]
    loose = [r for r in rows if r["ratio"] in EQUAL]
    for name, mine in (("mean", rows), (f"mean at {' and '.join(map(str, EQUAL))}", loose)):
        lines += [["", name, *(_part(_mean(r[key] for r in mine)) for key in keys)]] if mine else []
    lines.append(["", "paper, mean", *(_part(REDUCTIONS.get(key)) for key in keys)])
    equal = {"checkmate-auto": LOOSE, "str-auto": 0.0}
    lines.append(["", f"paper, about, at {EQUAL[0]} and {EQUAL[1]}", *(_part(equal.get(key)) for key in keys)])
    told = [
        f"By how much {OURS} takes less than each, in %.",
        "`at most`: if it got to its bound; `no limit`: if it took no more than without one.",
    ]
    return "\n".join([columns(lines), "", *told])


def _part(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def figures(rows: Sequence[Row], offered: Sequence[Row] = ()) -> list[tuple[str, Figure]]:
    """Return figures 2, 4 and 5 of each trace, with its name."""
    drawn = [(trace, _figure2(trace, mine)) for trace, mine in _by_trace(offered)]
    for trace, mine in _by_trace(rows):
        drawn += [(trace, figure) for figure in (_figure4(trace, mine), *_figure5(trace, mine))]
    return drawn


def _by_trace(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(name, [r for r in rows if r["trace"] == name]) for name in dict.fromkeys(r["trace"] for r in rows)]


def _figure2(trace: str, rows: Sequence[Row]) -> Figure:
    """At each convolution: what it needs, what is idle on top, and on top of that each workspace, in GiB."""
    ops = list(dict.fromkeys(r["op"] for r in rows))
    x = [float(k) for k in range(1, len(ops) + 1)]
    by_op = [[r for r in rows if r["op"] == op] for op in ops]

    def curve(name: str, sizes: Iterable[int | None], style: str = "line") -> Series:
        return Series(name, x, [None if size is None else size / GIB for size in sizes], style)

    offered = max(map(len, by_op))
    series = [curve("cannot be freed", (mine[0]["load"] - mine[0]["idle"] for mine in by_op), "dashed")]
    series.append(curve("with what is idle", (mine[0]["load"] for mine in by_op), "dashed"))
    for k in range(offered - 1):
        name = "and the fastest's workspace" if not k else f"and that of the {('second', 'third', 'fourth')[k - 1]}"
        series.append(curve(name, (m[0]["load"] + m[k]["workspace"] if k < len(m) else None for m in by_op)))
    return Figure("fig2", f"{trace}: what a convolution needs", "convolution", "GiB", tuple(series))


def _curves(rows: Sequence[Row], key: str, scale: float, told: str = "{}", style: str = "line") -> list[Series]:
    """A curve a way over the ratio."""
    ways = [way for way in dict.fromkeys(r["way"] for r in rows) if way != NO_LIMIT]
    made = []
    for way in ways:
        mine = [(r["ratio"], r.get(key)) for r in rows if r["way"] == way]
        y = [None if value is None else value / scale for _, value in mine]
        if any(value is not None for value in y):
            made.append(Series(told.format(way), [x for x, _ in mine], y, style))
    return made


def _figure4(trace: str, rows: Sequence[Row]) -> Figure:
    """A step over the ratio, and what it takes at least."""
    least = _curves([r for r in rows if r["way"] == OURS], "bound_ns", 1e9, "{}, at least", "dashed")
    series = (*_curves(rows, "step_ns", 1e9), *least)
    return Figure("fig4", f"{trace}: a step within a part of the memory", "ratio", "seconds", series)


def _figure5(trace: str, rows: Sequence[Row]) -> list[Figure]:
    """Where the time goes, and what is moved and made again."""
    rows = [r for r in rows if r["way"] != SEARCH]
    time = _curves(rows, "convolution_ns", 1e9, "{}: convolutions")
    time += _curves(rows, "other_ns", 1e9, "{}: other ops", "dashed")
    moved = _curves(rows, "offloaded", GIB, "{}: offloaded")
    moved += _curves(rows, "recomputed", GIB, "{}: made again", "dashed")
    drawn = [
        Figure("fig5-time", f"{trace}: where the time of a step goes", "ratio", "seconds", tuple(time)),
        Figure("fig5-bytes", f"{trace}: offloaded and made again", "ratio", "GiB", tuple(moved)),
    ]
    return [figure for figure in drawn if figure.series]


TABLES: Mapping[str, Callable[[Any], str]] = {
    "operators": trade_off_table,
    "steps": step_table,
    "breakdown": spent_table,
    "reductions": reduction_table,
}
