"""The answers summed up: tables, who is ahead of the search, and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.peers.asking import PLACED
from benchmarks.peers.survey import Row
from benchmarks.peers.table import SEARCH
from gpumem.pipeline.report import Figure, Series, columns

ALL = "all"
AHEAD = 0.0001  # of the peak live bytes: less is the same


def mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean; None of nothing.

    >>> mean([1.0, 4.0]), mean([])
    (2.0, None)
    """
    logs = [math.log(one) for one in ratios]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def means(rows: Sequence[Row]) -> list[Row]:
    """Return for each family, planner and time the mean ratio, of how many instances, and how often it is the lowest.

    `lowest` counts the instances on which no planner is lower at that time.
    """
    least: dict[tuple[str, float], int] = {}
    for row in rows:
        if row["height"] is not None:
            at = row["instance"], row["given"]
            least[at] = min(row["height"], least.get(at, row["height"]))
    found = []
    families = list(dict.fromkeys(row["family"] for row in rows))
    for family in [ALL, *(families if len(families) > 1 else [])]:
        some = [row for row in rows if family in (ALL, row["family"])]
        for planner, given in dict.fromkeys((row["planner"], row["given"]) for row in some):
            mine = [row for row in some if (row["planner"], row["given"]) == (planner, given)]
            placed = [row for row in mine if row["status"] == PLACED]
            lowest = sum(row["height"] == least[row["instance"], given] for row in placed)
            told = {"placed": len(placed), "instances": len(mine), "lowest": lowest}
            ratio = mean(row["ratio"] for row in placed)
            found.append({"family": family, "planner": planner, "given": given, "ratio": ratio} | told)
    return found


def against(rows: Sequence[Row], name: str = SEARCH) -> list[Row]:
    """Return how `name` stands against each other planner at each time, on instances that both placed by then.

    `ratio`: the geometric mean of its height over the other's; `lower`, `same`, `higher`: instances. Less than 0.0001
    of the peak live bytes is the same.
    """
    mine = {(row["instance"], row["given"]): row["ratio"] for row in rows if row["planner"] == name}
    found = []
    for planner, given in dict.fromkeys((row["planner"], row["given"]) for row in rows if row["planner"] != name):
        theirs = [row for row in rows if (row["planner"], row["given"]) == (planner, given)]
        both = [(own, row["ratio"]) for row in theirs if (own := mine.get((row["instance"], given))) and row["ratio"]]
        lower = sum(own < other - AHEAD for own, other in both)
        higher = sum(own > other + AHEAD for own, other in both)
        counts = {"lower": lower, "same": len(both) - lower - higher, "higher": higher}
        ratio = mean(own / other for own, other in both)
        found.append({"planner": planner, "given": given, "both": len(both), "ratio": ratio} | counts)
    return found


def ahead(rows: Sequence[Row], name: str = SEARCH) -> list[Row]:
    """Return where another planner of another project is lower than `name` within the same time, the most first.

    `by`: the difference of the ratios; None where `name` has no placement.
    """
    mine = {(row["instance"], row["given"]): row for row in rows if row["planner"] == name}
    found = []
    for row in rows:
        own = mine.get((row["instance"], row["given"]))
        if own is None or row["ours"] or row["status"] != PLACED:
            continue
        by = None if own["ratio"] is None else row["ratio"] - own["ratio"]
        if by is None or by < -AHEAD:
            told = {key: row[key] for key in ("instance", "given", "planner", "ratio")}
            found.append(told | {SEARCH: own["ratio"], "by": None if by is None else -by})
    return sorted(found, key=lambda row: -math.inf if row["by"] is None else -row["by"])


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Return a figure for each family: % above the peak live bytes over seconds, a line for each planner.

    A line begins at the time by which its planner has placed all instances of the family.
    """
    found = []
    seconds = list(dict.fromkeys(row["given"] for row in rows))
    summed = means(rows)
    names = list(dict.fromkeys(row["family"] for row in summed))
    for family in names[1:] or names:
        mine = {(row["planner"], row["given"]): row for row in summed if row["family"] == family}
        series = []
        for planner in dict.fromkeys(planner for planner, _ in mine):
            there = [mine[planner, given] for given in seconds]
            y = [None if one["placed"] < one["instances"] else round(100 * one["ratio"] - 100, 4) for one in there]
            series.append(Series(planner, [*seconds], y, "bold" if planner == SEARCH else "line"))
        found.append(Figure("peers", family, "seconds", "above the load (%)", tuple(series), log=True))
    return found


def table(rows: Sequence[Row]) -> str:
    """Return a line an instance and planner: the ratio and the seconds taken, at each time."""
    seconds = list(dict.fromkeys(row["given"] for row in rows))
    head = ["instance", "buffers", "load", "best known", "planner"]
    lines = [[*head, *(cell for given in seconds for cell in (f"{given:g} s", "took"))]]
    for instance, planner in dict.fromkeys((row["instance"], row["planner"]) for row in rows):
        mine = [row for row in rows if (row["instance"], row["planner"]) == (instance, planner)]
        what = [str(mine[0][key]) for key in ("buffers", "load", "best")]
        cells = [cell for row in mine for cell in (_ratio(row["ratio"], row["status"]), _took(row))]
        why = next((row["why"] for row in mine if row["why"]), "")
        lines.append([instance, *what, planner, *cells, *([why] if why else [])])
    return columns(lines)


def _ratio(ratio: float | None, status: str = "-") -> str:
    return status if ratio is None else f"{ratio:.4f}"


def _took(row: Row) -> str:
    return f"{row['seconds']:.3f}" if row["seconds"] else ""


def mean_table(rows: Sequence[Row]) -> str:
    """Return a line a family and planner: the mean, on how many instances it has a placement, how often the lowest."""
    seconds = list(dict.fromkeys(row["given"] for row in rows))
    lines = [["family", "planner", *(cell for given in seconds for cell in (f"{given:g} s", "placed", "lowest"))]]
    for family, planner in dict.fromkeys((row["family"], row["planner"]) for row in rows):
        mine = [row for row in rows if (row["family"], row["planner"]) == (family, planner)]
        cells = [
            cell
            for row in mine
            for cell in (_ratio(row["ratio"]), f"{row['placed']}/{row['instances']}", str(row["lowest"]))
        ]
        lines.append([family, planner, *cells])
    return columns(lines)


def against_table(rows: Sequence[Row]) -> str:
    """Return a line a planner and time."""
    counts = ["both", "lower", "same", "higher"]
    head = ["planner", "within", counts[0], "ratio", *counts[1:]]
    lines = [
        [
            row["planner"],
            f"{row['given']:g} s",
            str(row["both"]),
            _ratio(row["ratio"]),
            *(str(row[c]) for c in counts[1:]),
        ]
        for row in rows
    ]
    return columns([head, *lines])


def ahead_table(rows: Sequence[Row]) -> str:
    """Return a line for each planner that is ahead somewhere."""
    if not rows:
        return "nowhere"
    head = ["instance", "within", "planner", "its ratio", SEARCH, "ahead by"]
    lines = [
        [
            row["instance"],
            f"{row['given']:g} s",
            row["planner"],
            _ratio(row["ratio"]),
            _ratio(row[SEARCH]),
            _ratio(row["by"]),
        ]
        for row in rows
    ]
    return columns([head, *lines])


def summed(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return all that rows come to, by part."""
    return {"means": means(rows), "against": against(rows), "ahead": ahead(rows), "curves": figures(rows)}


def project_table(rows: Sequence[Row]) -> str:
    """Return a line a project."""
    return columns([["project", "version"], *([row["project"], row["version"] or "not installed"] for row in rows)])


TABLES: Mapping[str, Callable[[Any], str]] = {
    "projects": project_table,
    "rows": table,
    "means": mean_table,
    "against": against_table,
    "ahead": ahead_table,
}
