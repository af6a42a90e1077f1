"""What was measured beside MO-SOS, as tables and as the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.papers.mosos.measured import EQUAL, LOOSE, NO_LIMIT, OTHERS, OURS, REDUCTIONS, STARTED, WAITS, Row
from gpumem.pipeline.report import Figure, Series, columns, human, human_ns, percent
from gpumem.simulator.machine import GIB


def trade_off_table(rows: Sequence[Row]) -> str:
    """Return a line an implementation."""
    freed = [key for key in rows[0] if key.startswith("freed")] if rows else []
    head = ["trace", "op", "name", "by", "time", "over", "workspace", "beside", "idle"]
    lines = [[*head, *(key.replace("_", " ") for key in freed)]]
    for r in rows:
        sizes = [human(r[key]) for key in ("workspace", "load", "idle")]
        cells = [r["trace"], str(r["op"]), r["name"], r["by"], human_ns(r["time_ns"]), f"{r['over']:.2f}", *sizes]
        lines.append([*cells, *("too much" if r[key] is None else human(r[key]) for key in freed)])
    told = (
        "`freed at R`: what is above R of the peak live bytes at the op; where no memory is free, the whole workspace."
    )
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
    told = [
        f"`at least`: of the plans that each program says. Programs begin with nothing, but for {STARTED!r}, which has",
        f"the best plan of all above it; `start`: it found no better one. In {WAITS!r} and there, stages may wait for",
        "copies; the paper's do not. `late`: the time was up before the gap was closed.",
    ]
    return "\n".join([columns(lines), "", *told])


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
        f"By how much {OURS}, from nothing, takes less than each, in %.",
        "`at most`: if it got to its bound; `no limit`: if it took no more than without one.",
    ]
    return "\n".join([columns(lines), "", *told])


def _part(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def headroom_table(rows: Sequence[Row]) -> str:
    """Return a line a trace, a ratio and a way, a column a part of the limit that is planned for."""
    parts = list(dict.fromkeys(r["part"] for r in rows))
    lines = [["trace", "ratio", "way", *(f"{part:g}" for part in parts)]]
    for key in dict.fromkeys((r["trace"], r["ratio"], r["way"]) for r in rows):
        mine = {r["part"]: r["step_ns"] for r in rows if (r["trace"], r["ratio"], r["way"]) == key}
        lines.append([key[0], f"{key[1]:g}", key[2], *(_ns(mine[part]) or "-" for part in parts)])
    told = "The step if the program plans for so much of the limit, and operators have all of it."
    return f"{columns(lines)}\n\n{told}"


def figures(rows: Sequence[Row], offered: Sequence[Row] = ()) -> list[tuple[str, Figure]]:
    """Return figures 2, 4 and 5 of each trace, with its name."""
    drawn = [(trace, _figure2(trace, mine)) for trace, mine in _by_trace(offered)]
    for trace, mine in _by_trace(rows):
        drawn += [(trace, figure) for figure in (_figure4(trace, mine), *_figure5(trace, mine))]
    return drawn


def _by_trace(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(name, [r for r in rows if r["trace"] == name]) for name in dict.fromkeys(r["trace"] for r in rows)]


def _figure2(trace: str, rows: Sequence[Row]) -> Figure:
    """At each convolution: what it needs, what is idle on top, and on top of that the workspaces, in GiB."""
    ops = list(dict.fromkeys(r["op"] for r in rows))
    x = [float(k) for k in range(1, len(ops) + 1)]
    by_op = [[r for r in rows if r["op"] == op] for op in ops]

    def curve(name: str, sizes: Iterable[int | None], style: str = "line") -> Series:
        return Series(name, x, [None if size is None else size / GIB for size in sizes], style)

    series = [curve("cannot be freed", (mine[0]["load"] - mine[0]["idle"] for mine in by_op), "dashed")]
    series.append(curve("all that is held", (mine[0]["load"] for mine in by_op), "dashed"))
    for k, which in enumerate(("fastest", "second")):
        sizes = (mine[0]["load"] + mine[k]["workspace"] if k < len(mine) else None for mine in by_op)
        series.append(curve(f"with the workspace of the {which}", sizes))
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
    rows = [r for r in rows if r["way"] not in OTHERS]
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
    "headroom": headroom_table,
}
