"""The rows of a survey summed up: how planners stand, beside the bounds and beside one another.

A planner that gives up where it is hard has a low mean over what is left. So means come with the number of traces that
they are over, and two planners are compared on those traces that both get to the limit on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.leaderboard.ledger import Row
from gpumem.base.units import percent
from gpumem.pipeline.report import Figure, Series, columns, human, human_ns

BEST = "best of others"
SAME_NS = 5_000  # one op launch: times nearer than that are the same


def mean(overheads: Iterable[float]) -> float | None:
    """Return the geometric mean of (1 + overhead), minus 1; None of nothing.

    >>> round(mean([0.0, 0.21]), 12), mean([])
    (0.1, None)
    """
    logs = [math.log1p(one) for one in overheads]
    return math.expm1(math.fsum(logs) / len(logs)) if logs else None


def best_of_others(rows: Sequence[Row], name: str, without: Iterable[str] = ()) -> list[Row]:
    """Return for each trace and limit the answer of the cheapest planner but `name` and those `without`."""
    left = {name, *without}
    found: dict[tuple[str, float], Row] = {}
    for row in rows:
        at = row["content"], row["part"]
        if row["status"] != "planned" or row["planner"] in left:
            continue
        if at not in found or row["overhead"] < found[at]["overhead"]:
            found[at] = row | {"planner": BEST, "of": row["planner"]}
    return list(found.values())


def means(rows: Sequence[Row]) -> list[Row]:
    """Return for each planner and limit the mean overhead, on how many traces it got there, and on how many one could.

    A limit that is infeasible for somebody is infeasible for all: such traces count for nobody.
    """
    never = {(row["content"], row["part"]) for row in rows if row["status"] == "infeasible"}
    found = []
    for name in dict.fromkeys(row["planner"] for row in rows):
        for part in dict.fromkeys(row["part"] for row in rows):
            mine = [row for row in rows if (row["planner"], row["part"]) == (name, part)]
            could = [row for row in mine if (row["content"], part) not in never]
            there = [row["overhead"] for row in could if row["overhead"] is not None]
            told = {"reached": len(there), "traces": len(could), "late": sum(row["late"] for row in could)}
            found.append({"planner": name, "part": part, "overhead": mean(there)} | told)
    return found


def against(rows: Sequence[Row], name: str, without: Iterable[str] = ()) -> list[Row]:
    """Return for each limit and other planner how `name` stands against it, on traces where both get there.

    Parameters
    ----------
    rows : sequence of dict
    name : str
        A planner.
    without : iterable of str
        Planners that do not count for the best of the others, as integer programs.

    Returns
    -------
    list of dict
        `both`: the number of traces; means `overhead` and `other`; `ratio`: of the two means of (1 + overhead), minus
        1; `better`, `same`, `worse`: traces. Within one op launch is the same.
    """
    mine = {(row["content"], row["part"]): row for row in rows if row["planner"] == name and row["status"] == "planned"}
    others = [row for row in rows if row["planner"] != name and row["status"] == "planned"]
    others += best_of_others(rows, name, without)
    found = []
    for part in dict.fromkeys(row["part"] for row in rows):
        for other in sorted({row["planner"] for row in others}, key=lambda one: (one == BEST, one)):
            pairs = [
                (mine[at]["overhead"], row["overhead"], SAME_NS / max(row["iteration_ns"], 1))
                for row in others
                if (row["planner"], row["part"]) == (other, part) and (at := (row["content"], part)) in mine
            ]
            ours, theirs = mean(a for a, _, _ in pairs), mean(b for _, b, _ in pairs)
            if ours is None or theirs is None:
                continue
            better, worse = sum(a < b - same for a, b, same in pairs), sum(a > b + same for a, b, same in pairs)
            counts = {"better": better, "same": len(pairs) - better - worse, "worse": worse}
            ratio = (1 + ours) / (1 + theirs) - 1
            found.append(
                {"part": part, "planner": other, "both": len(pairs), "overhead": ours, "other": theirs, "ratio": ratio}
                | counts
            )
    return found


def gaps(rows: Sequence[Row], name: str) -> list[Row]:
    """Return for each limit and bound how far a planner's overhead lies above it, as a difference of overheads.

    `traces`: with both; `mean` and `most` of the differences, `of`: the trace with the largest.
    """
    mine = {(row["content"], row["part"]): row for row in rows if row["planner"] == name and row["status"] == "planned"}
    bounds = [row for row in rows if row["status"] == "bound"]
    found = []
    for part, bound in dict.fromkeys((row["part"], row["planner"]) for row in bounds):
        above = [
            (mine[at]["overhead"] - row["overhead"], row["trace"])
            for row in bounds
            if (row["part"], row["planner"]) == (part, bound) and (at := (row["content"], part)) in mine
        ]
        if above:
            most, of = max(above)
            mean = math.fsum(gap for gap, _ in above) / len(above)
            found.append({"part": part, "bound": bound, "traces": len(above), "mean": mean, "most": most, "of": of})
    return found


def figures(rows: Sequence[Row], bold: str = "") -> list[Figure]:
    """Return a figure for each trace: overhead over the limit, in %, a line for each planner and bound.

    Traces that nobody gets anywhere on are left out. `bold`: whose line stands out.
    """
    found = []
    for at in dict.fromkeys(row["content"] for row in rows if row["overhead"] is not None):
        mine = [row for row in rows if row["content"] == at]
        series = []
        for name in dict.fromkeys(row["planner"] for row in mine):
            points = sorted((row["part"], row["overhead"]) for row in mine if row["planner"] == name)
            bound = any(row["status"] == "bound" for row in mine if row["planner"] == name)
            style = "dashed" if bound else "bold" if name == bold else "line"
            y = [None if cost is None else round(100 * cost, 4) for _, cost in points]
            series.append(Series(name, [round(100 * part, 4) for part, _ in points], y, style))
        x, y_axis = "limit (% of the peak live bytes)", "overhead (%)"
        found.append(Figure("planners", mine[0]["trace"], x, y_axis, tuple(series)))
    return found


def table(rows: Sequence[Row]) -> str:
    """Return a line an answer."""
    head = ["trace", "limit", "planner", "overhead", "bytes out", "bytes in", "recomputed", "seconds", ""]
    return columns([head, *([row["trace"], f"{row['part']:.4g}", row["planner"], *_cells(row)] for row in rows)])


def _cells(row: Row) -> list[str]:
    moved = [human(row["bytes_out"]), human(row["bytes_in"])] if "bytes_out" in row else ["", ""]
    again = human_ns(row["recompute_ns"]) if row.get("recompute_ns") else ""
    cost = row["status"] if row["overhead"] is None else percent(row["overhead"])
    return [cost, *moved, again, f"{row['seconds']:.2f}", _said(row)]


def _said(row: Row) -> str:
    said = {"infeasible": "needs", "not reached": "reached"}.get(row["status"])
    size = row.get(said) if said else None
    parts = [f"{said} {human(size)}"] if size is not None else []
    parts += [row["why"]] if "why" in row else []
    parts += ["time up"] if row["late"] else []
    return ", ".join(parts)


def mean_table(rows: Sequence[Row]) -> str:
    """Return a line a planner, a column a limit: the mean overhead, and on how many traces it is reached."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    cells = {(row["planner"], row["part"]): row for row in rows}

    def cell(row: Row) -> str:
        cost = "-" if row["overhead"] is None else percent(row["overhead"])
        return f"{cost} ({row['reached']}/{row['traces']})"

    names = dict.fromkeys(row["planner"] for row in rows)
    lines = [["planner", *(f"{part:.4g}" for part in parts)]]
    return columns([*lines, *([name, *(cell(cells[name, part]) for part in parts)] for name in names)])


def against_table(rows: Sequence[Row]) -> str:
    """Return a line a limit and planner."""
    head = ["limit", "against", "traces", "its mean", "search's", "ratio", "better", "same", "worse"]
    lines = [
        [
            f"{row['part']:.4g}",
            row["planner"],
            str(row["both"]),
            percent(row["other"]),
            percent(row["overhead"]),
            percent(row["ratio"]),
            *(str(row[name]) for name in ("better", "same", "worse")),
        ]
        for row in rows
    ]
    return columns([head, *lines])


def gap_table(rows: Sequence[Row]) -> str:
    """Return a line a limit and bound, in points of overhead."""
    head = ["limit", "bound", "traces", "mean", "largest", "of"]
    lines = [
        [f"{row['part']:.4g}", row["bound"], str(row["traces"]), *(f"{100 * row[x]:.2f}" for x in ("mean", "most"))]
        for row in rows
    ]
    return columns([head, *([*line, row["of"]] for line, row in zip(lines, rows))])


TABLES: Mapping[str, Callable[[Any], str]] = {
    "rows": table,
    "means": mean_table,
    "against": against_table,
    "gaps": gap_table,
}
