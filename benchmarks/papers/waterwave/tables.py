"""What was measured beside Waterwave, as tables and as the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.papers.waterwave.pool_tables import pool_table, rounds_table
from benchmarks.papers.waterwave.published import BAND, FREED
from benchmarks.papers.waterwave.sharing_and_swapping import SHARING
from gpumem.pipeline.report import Figure, Series, columns, human_ns, percent
from gpumem.simulator.machine import GIB

Row = dict[str, Any]
WAYS = ("in turn", "switched", "waterwave", "processes")


def batch_table(rows: Sequence[Row]) -> str:
    """Table 1: a line a trace, an order and a number of jobs."""
    head = [
        "trace",
        "on",
        "order",
        "jobs",
        "solo",
        "s",
        "waterwave",
        "of solo",
        "over s",
        "groups",
        "beside",
        "samples/s",
    ]
    lines = [
        [
            *head,
            "bound",
            "s bound",
            "delayed",
            "beside",
            "paper: solo",
            "s",
            "waterwave",
            "of solo",
            "over s",
            "samples/s",
        ]
    ]
    for r in rows:
        cells = [
            r["trace"],
            r["machine"],
            r["order"],
            *(str(r[key]) for key in ("jobs", "solo", "coarse", "waterwave")),
        ]
        cells += _ratios(r["solo"], r["coarse"], r["waterwave"])
        cells += [_known(r["waterwave groups"]), _part(r, "waterwave"), _rate(r["rate"])]
        cells += [f"{r[key]}" for key in ("bound", "coarse bound", "delayed")] + [_part(r, "delayed")]
        cells += _paper(r)
        lines.append(cells)
    told = [
        "`waterwave`: without delays, load in issue order; `bound`: whatever the order in a pair; `s`: waterwave-s.",
        "`delayed`: with delays all fits that fits one at a time; `beside`: how much of the work runs side by side.",
    ]
    return "\n".join([columns(lines), "", *told])


def _ratios(solo: int, coarse: int, ours: int) -> list[str]:
    return [percent(ours / max(solo, 1)), f"{ours / max(coarse, 1):.2f}"]


def _known(value: Any) -> str:
    return "" if value is None else str(value)


def _part(row: Row, name: str) -> str:
    return percent(row[f"{name} beside"]) if row[f"{name} beside"] is not None else ""


def _paper(r: Row) -> list[str]:
    if r["paper"]:
        solo, _, coarse, ours = r["paper"]
        return [str(solo), str(coarse), str(ours), *_ratios(solo, coarse, ours), ""]
    return ["", "", _known(r["paper several"]), "", "", _known(r["paper rate"])]


def mixed_table(rows: Sequence[Row]) -> str:
    """Table 2: a line a pair and an order."""
    lines = [["traces", "on", "order", "solo", "waterwave", "of solo", "bound", "delayed", "beside", "paper"]]
    for r in rows:
        parts = [mine / max(alone, 1) for mine, alone in zip(r["waterwave"], r["solo"])]
        sizes = {key: " + ".join(map(str, r[key])) for key in ("solo", "waterwave", "bound", "delayed")}
        theirs = "" if r["paper"] is None else " + ".join(map(str, r["paper"]))
        cells = [" + ".join(r["traces"]), r["machine"], r["order"], sizes["solo"], sizes["waterwave"]]
        beside = _part(r, "waterwave")
        lines.append([*cells, percent(min(parts)), sizes["bound"], sizes["delayed"], beside, theirs])
    return f"{columns(lines)}\n\nBoth have the same part of what each has alone."


def split_table(rows: Sequence[Row]) -> str:
    """Figure 8: a line a trace, an order and a split size."""
    head = [
        "trace",
        "on",
        "order",
        "split GiB",
        "groups",
        "batch",
        "of solo",
        "bound",
        "of solo",
        "beside",
        "samples/s",
    ]
    lines = [head]
    for r in rows:
        split = "" if r["split"] is None else f"{r['split']:g}"
        cells = [r["trace"], r["machine"], r["order"], split, _known(r["waterwave groups"])]
        for key in ("waterwave", "bound"):
            cells += [str(r[key]), percent(r[key] / max(r["solo"], 1))]
        lines.append([*cells, _part(r, "waterwave"), _rate(r["rate"])])
    return "\n".join([columns(lines), "", *_maxima(rows)])


def _maxima(rows: Sequence[Row]) -> list[str]:
    """How many maxima each curve of figure 8 has, a plateau being one, and where the highest is."""
    told = []
    for trace, mine in _by([r for r in rows if r["split"] is not None], "trace").items():
        for order, curve in _by(mine, "order").items():
            y = [batch for batch, _ in groupby(r["waterwave"] for r in curve)]
            count = sum(a < b > c for a, b, c in zip([-1, *y], y, [*y[1:], -1]))
            best = max(curve, key=lambda r: r["waterwave"])
            told.append(
                f"{trace}, {order}: {count} maxim{'um' if count == 1 else 'a'}, the highest at {best['split']:g}"
            )
    return told


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def freed_table(rows: Sequence[Row]) -> str:
    """Figure 2: a line a host."""
    low, high = BAND
    head = ["trace", "on", "host an op", "waits", "scheduled GiB", "at", "completed GiB", "at", "ratio"]
    lines = [[*head, f"{low} to {high}"]]
    lines.append(["the paper", "p100", "", "", f"{FREED[0]}", "50 ms", f"over {FREED[1]:g}", "200 ms", "2.4", ""])
    for r in rows:
        cells = [r["trace"], r["machine"], human_ns(round(r["host_ns"])), "yes" if r["waits"] else "no"]
        for key in ("scheduled", "completed"):
            ns = r[f"{key}_ns"]
            cells += ["without end", ""] if r[key] is None else [f"{r[key] / GIB:.2f}", human_ns(ns)]
        kept = "" if r["ratio"] is None else "kept" if low <= r["ratio"] <= high else "missed"
        lines.append([*cells, "" if r["ratio"] is None else f"{r['ratio']:.2f}", kept])
    return columns(lines)


def late_table(rows: Sequence[Row]) -> str:
    """Section 3.2: a line a net."""
    lines = [["trace", "on", "host an op", "one, scheduled", "completed", "two in groups, scheduled", "completed"]]
    for r in rows:
        held = (r[f"{jobs}_{how}"] for jobs in ("one", "two") for how in ("scheduled", "completed"))
        parts = ["without end" if part is None else f"{part:.2f}" for part in held]
        lines.append([r["trace"], r["machine"], human_ns(round(r["host_ns"])), *parts])
    return f"{columns(lines)}\n\nIn parts of what one job holds at its peak."


def sequential_table(rows: Sequence[Row]) -> str:
    """Figure 3: a line a net."""
    head = ["trace", "on", "ops", "host an op", "computation", "parallel", "sequential", "lost", "paper"]
    lines = [[*head, "a wait would take besides"]]
    for r in rows:
        times = [human_ns(round(r[key])) for key in ("host_ns", "work_ns", "parallel_ns", "sequential_ns")]
        theirs = "" if r["paper"] is None else percent(r["paper"])
        more = "" if r["more_ns"] is None else human_ns(round(r["more_ns"])) if r["more_ns"] > 0 else "nothing"
        lines.append([r["trace"], r["machine"], str(r["ops"]), *times, percent(r["lost"]), theirs, more])
    return columns(lines)


def host_table(rows: Sequence[Row]) -> str:
    """A line a net: two jobs with one host thread, and with one a stream."""
    lines = [["trace", "on", "host an op", "in turn", "one host", "a host a stream", "gain over one"]]
    for r in rows:
        keys = ("host_ns", "turns_ns", "hosts_1_ns", "hosts_2_ns")
        times = [human_ns(round(r[key])) for key in keys]
        lines.append([r["trace"], r["machine"], *times, f"{r['hosts_1_ns'] / r['hosts_2_ns']:.2f}"])
    return columns(lines)


def throughput_table(rows: Sequence[Row]) -> str:
    """Figure 7: a line a batch, samples a second."""
    head = ["trace", "on", "batch", *WAYS, "over turns", "over processes", "missed GiB"]
    lines = [[*head, "paper, at most: over turns", "over processes", "GB/s for that"]]
    for r in rows:
        over = [_over(r["waterwave"], r[key]) for key in ("in turn", "processes")]
        cells = [r["trace"], r["machine"], str(r["batch"]), *(_rate(r[key]) for key in WAYS), *over]
        theirs = ["" if r[key] is None else f"{r[key]:.2f}" for key in ("paper over turns", "paper over mps")]
        rate = f"{r['rate for that']:.1f}" if "rate for that" in r else ""
        lines.append([*cells, f"{r['missed'] / GIB:.1f}", *theirs, rate])
    return columns(lines)


def _over(ours: float | None, other: float | None) -> str:
    return "" if ours is None or other is None else f"{ours / other:.2f}"


def slowed_table(rows: Sequence[Row]) -> str:
    """How many times as much gets done as in turn: a line a net, a column a slowdown."""
    keys = [key for key in rows[0] if "hosts, " in key] if rows else []
    lines = [["trace", "on", "batch", *keys, "paper, at most"]]
    for r in rows:
        gains = ["-" if r[key] is None else f"{r[key]:.2f}" for key in keys]
        theirs = "" if r["paper"] is None else f"{r['paper']:.2f}"
        lines.append([r["trace"], r["machine"], str(r["batch"]), *gains, theirs])
    return columns(lines)


def sharing_table(rows: Sequence[Row]) -> str:
    """Beyond the paper: a line an amount of memory, how many times as much gets done as in turn with ample memory."""
    lines = [["traces", "on", "slowdown", "of both peaks", "limit GiB", *SHARING, "best"]]
    for r in rows:
        known = {key: r[key] for key in SHARING if r[key] is not None}
        most = max(known.values(), default=0.0)
        best = ", ".join(key for key, gain in known.items() if gain >= 0.998 * most)
        cells = [r["traces"], r["machine"], f"{r['slowdown']:g}", percent(r["part"]), f"{r['limit'] / GIB:.2f}"]
        lines.append([*cells, *(_gain(r[key]) for key in SHARING), best])
    return f"{columns(lines)}\n\n`-`: does not run both in this memory. `best`: within 0.2 % of it."


def length_table(rows: Sequence[Row]) -> str:
    """Beyond the paper: a line an amount of memory and a slowdown, how many times as much gets done as in turn."""
    lines = [["traces", "on", "of one", "slowdown", "paper's groups", "balanced"]]
    for r in rows:
        cells = [r["traces"], r["machine"], f"{r['part']:g}", f"{r['slowdown']:g}"]
        lines.append([*cells, *(_gain(r[key]) for key in ("groups", "balanced"))])
    known = [r for r in rows if None not in (r["groups"], r["balanced"])]
    less = sum(r["balanced"] < 0.9995 * r["groups"] for r in known)
    told = "`of one`: the memory there is, of what one job needs beside the other at rest."
    return f"{columns(lines)}\n\n{told} Balanced does less in {less} of {len(known)}."


def weighted_table(rows: Sequence[Row]) -> str:
    """Beyond the paper: a line a choice of weights, what each job gets done of what it does alone."""
    lines = [["traces", "on", "of one", "slowdown", "weights", "first", "second", "both"]]
    for r in rows:
        done = r["done"] or [None, None]
        both = None if r["done"] is None else sum(done)
        cells = [r["traces"], r["machine"], f"{r['part']:g}", f"{r['slowdown']:g}", ", ".join(map(str, r["weights"]))]
        lines.append([*cells, *map(_gain, [*done, both])])
    return columns(lines)


def _gain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def figures(results: Mapping[str, Sequence[Row]]) -> list[tuple[str, Figure]]:
    """Return figures 7 and 8, one each a trace (and an order), with the trace's name."""
    drawn = []
    for name, rows in _by(results.get("throughput", []), "trace").items():
        x = [float(r["batch"]) for r in rows]
        series = tuple(Series(way, x, [r[way] for r in rows]) for way in WAYS)
        drawn.append((name, Figure("fig7", f"{name}: two jobs", "batch", "samples a second", series)))
    for name, rows in _by(results.get("splits", []), "trace").items():
        known = [r for r in rows if r["split"] is not None]
        series = tuple(
            Series(f"{order}, {told}", [r["split"] for r in mine], [float(r[key]) for r in mine], style)
            for order, mine in _by(known, "order").items()
            for key, told, style in (("waterwave", "issue order", "line"), ("bound", "any order", "dashed"))
        )
        if series:
            drawn.append((name, Figure("fig8", f"{name}: two jobs", "split size, GiB", "largest batch", series)))
    for name, rows in _by(results.get("sharing", []), "traces").items():
        for slowdown in dict.fromkeys(r["slowdown"] for r in rows):
            mine = [r for r in rows if r["slowdown"] == slowdown]
            x = [r["limit"] / GIB for r in mine]
            series = tuple(Series(way, x, [r[way] for r in mine]) for way in SHARING)
            title = f"{name}: slowdown {slowdown:g}"
            drawn.append((name, Figure("sharing", title, "memory, GiB", "times as much as in turn", series)))
    return drawn


def _by(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    return {value: [r for r in rows if r[key] == value] for value in dict.fromkeys(r[key] for r in rows)}


TABLES: Mapping[str, Callable[[Any], str]] = {
    "table1": batch_table,
    "pool": pool_table,
    "rounds": rounds_table,
    "table2": mixed_table,
    "several": batch_table,
    "splits": split_table,
    "throughput": throughput_table,
    "slowdown": slowed_table,
    "freed": freed_table,
    "late": late_table,
    "sequential": sequential_table,
    "hosts": host_table,
    "balanced": length_table,
    "priorities": weighted_table,
    "sharing": sharing_table,
}
