"""Figures 7 and 8 of the SNU thesis: what an iteration takes on a small card, on demand, by its heuristic and program.

The thesis trains ResNet34 in batches of 128, 256 and 512 on a Radeon RX 5700 XT of 8 GB, behind the PCIe 3 link of a
Xeon Gold 6130. On demand each copy blocks: the host waits for it before it issues the op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.papers.autoswap import Planners, Study
from gpumem import swap
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible, NotReached
from gpumem.check import verdict
from gpumem.pipeline.report import Figure, Series, columns, human, human_ns
from gpumem.pipeline.requirement import context_of
from gpumem.simulator.machine import GIB, Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap import heuristic
from gpumem.swap.facts.limits import fits
from gpumem.swap.plan import Plan
from gpumem.swap.snu import by_address, follow, on_demand
from gpumem.swap.snu.addresses import FITS
from gpumem.trace import Trace

Row = dict[str, Any]
Change = Callable[[Machine, float], Machine]

SIZES = {128: 3.8, 256: 8.4, 512: 14.5}  # GB that the thesis' ResNet34 takes by its batch: figure 7
RELATIVE = {256: {"heuristic": 0.62, "ilp": 0.64}, 512: {"heuristic": 0.60, "ilp": 0.57}}  # to on demand: 6.2.2
BY_SIZE = "on-demand, by size"
ON_DEMAND: dict[str, Callable[..., Plan]] = {
    "on-demand": on_demand,
    BY_SIZE: partial(on_demand, victim="snu"),
    "on-demand, not blocking": partial(on_demand, victim="snu", blocking=False),
}
BASE = "on-demand, by address"  # the thesis' own, to which it relates the others
LEAST = "certified least"
TOLD_APART = (BASE, BY_SIZE, "heuristic", "ilp", LEAST)
# Of what the card has: at 1, the thesis' own, heuristic and program both leave no stall. Batch 512 needs 0.61 at least.
CAPACITIES = (0.85, 0.7, 0.5, 0.4, 0.35)
WORSE = 0.05  # so much farther from a figure than it was nearest, no larger value is tried
COUNTED = ("copies_out", "copies_in", "bytes_out", "bytes_in", "dropped", "runs", "scattered", "most_scattered")


def context(machine: Machine) -> Machine:
    """Return a machine net of the context: what it says of that, or else what one takes, about; the thesis does not.

    >>> context(Machine.named("rx5700xt")).available / GIB
    7.5
    """
    return machine.with_(reserved=context_of(machine))


def planners(*, program: bool = True) -> Planners:
    """The planners of figure 8, beside those on demand: with the integer program or without."""
    names = ["heuristic", "search", "ilp"] if program else ["heuristic", "search"]
    return swap.planners_of(names)


def batch_of(trace: Trace) -> int:
    """The batch of the thesis' ResNet34 that takes about as much memory."""
    return min(SIZES, key=lambda batch: abs(math.log(max(trace.peak_live_bytes, 1) / SIZES[batch] / 1e9)))


@strict
def ways(study: Study, planners: Planners, rounds: int = 20) -> list[Row]:
    """Measure an iteration within the load limit, a row a way; one row where it fits as it is.

    Computation and stall, which is what the iteration takes beyond it (figure 7), the time relative to `BASE` and the
    thesis' figure for that (figure 8), what was copied; last, what no plan can beat in `rounds` of the bound. A planner
    that takes a plan to `start` from is handed the best so far, and with it the certified `bound`.
    """
    case, limit = study.case, _limit(study)
    if case.trace.peak_live_bytes <= limit:
        return [_row(study, "fits", case.line.makespan)]
    study.progress(f"{case.trace.name}: {LEAST}")
    least = swap.least_stall(case.trace, case.machine, limit, rounds=rounds).stall_ns
    rows, best = [_addressed(study)], None
    for name, planner in {**ON_DEMAND, **planners}.items():
        known: dict[str, Any] = {} if best is None else {"start": best.plan, "bound": case.line.makespan + least}
        found = replace(study, options={**study.options, **known}).at(limit, name, planner)
        rows.append(_row(study, name, None) if found is None else _of(study, name, found.trace, found.after.timeline))
        if found is not None and (best is None or found.overhead < best.overhead):
            best = found
    rows.append(_row(study, LEAST, case.line.makespan + least))
    by_size = next(row["iteration_ns"] for row in rows if row["way"] == BY_SIZE)
    whole = rows[0]["iteration_ns"] or by_size  # by address it may find no place, though there are bytes enough
    for row in rows:
        row["over"] = row["iteration_ns"] / whole if whole and row["iteration_ns"] else None
    return rows


@strict
def capacities(study: Study, parts: Sequence[float] = CAPACITIES, rounds: int = 20) -> list[Row]:
    """Measure the heuristic, the program from the heuristic's plan, and on demand, at parts of what the card has.

    Rows as of `ways`, none where no plan can do with so little.
    """
    trace, rows = study.case.trace, list[Row]()
    for part in parts:
        limit = math.floor(part * _limit(study))
        with suppress(Infeasible):
            if not fits(trace, limit):
                less = replace(study, case=replace(study.case, load=limit))
                rows += ways(less, swap.planners_of(["heuristic", "ilp"]), rounds)
    return [row for row in rows if row["way"] in TOLD_APART]


def _limit(study: Study) -> int:
    assert study.case.load is not None
    return study.case.load


def _row(study: Study, way: str, took: float | None, **more: Any) -> Row:
    trace, base = study.case.trace, study.case.line.makespan
    batch = batch_of(trace)
    return {
        "trace": trace.name,
        "peak_live_bytes": trace.peak_live_bytes,
        "limit": _limit(study),
        "paper_gb": SIZES[batch],
        "way": way,
        "computation_ns": base,
        "stall_ns": None if took is None else took - base,
        "iteration_ns": took,
        "over": None,
        "paper": RELATIVE.get(batch, {}).get(way),
        "copies": None,
        "bytes": None,
        **more,
    }


def _of(study: Study, way: str, swapped: Trace, line: Timeline) -> Row:
    copied = swapped.buffers.size[swapped.ops.writes.idx[swapped.ops.writes.ptr[:-1][swapped.ops.copies]]]
    return _row(study, way, line.makespan, copies=len(copied), bytes=int(copied.sum()))


def _addressed(study: Study) -> Row:
    """On demand by address: by the address-aware simulation where one iteration repeats, else by its own account."""
    trace, machine = study.case.trace, study.case.machine
    study.progress(f"{trace.name}: {BASE}")
    try:
        seen = by_address(trace, machine, _limit(study))
    except (Infeasible, NotReached):
        return _row(study, BASE, None)
    if seen.plan is None or seen.placement is None:
        turns = len(seen.turns)
        copies, moved = (sum(x) / turns for x in zip(*((t.copies, t.bytes) for t in seen.turns)))
        return _row(study, BASE, seen.iteration_ns, copies=copies, bytes=moved)
    swapped = seen.plan.apply(trace)
    if study.check:
        verdict.placed(swapped, seen.placement)
    return _of(study, BASE, swapped, simulate(swapped, machine, seen.placement))


@strict
def moved(study: Study) -> list[Row]:
    """What swapping on demand moves in an iteration, and what addresses change; the means where several take turns."""
    trace, machine, limit = study.case.trace, study.case.machine, _limit(study)
    if trace.peak_live_bytes <= limit:
        return []
    rows: list[Row] = []
    for way, victim in (("on-demand", "lru"), (BY_SIZE, "snu")):
        seen = follow(trace, machine, limit, victim=victim)
        counts = {name: float(getattr(seen, name)) for name in COUNTED if hasattr(seen, name)}
        rows.append({"trace": trace.name, "way": way, "period": seen.period, **counts})
    for fit in FITS:
        try:
            found = by_address(trace, machine, limit, fit=fit)
        except (Infeasible, NotReached):
            continue
        counts = {name: sum(getattr(t, name) for t in found.turns) / len(found.turns) for name in COUNTED}
        rows.append({"trace": trace.name, "way": f"{BASE}, {fit} fit", "period": found.period, **counts})
    return rows


def _link(machine: Machine, times: float) -> Machine:
    """A link that takes so many times as long."""
    out, into = (Link(x.latency_ns * times, x.ns_per_byte * times) for x in (machine.out, machine.into))
    return machine.with_(out=out, into=into)


def _card(machine: Machine, times: float) -> Machine:
    """A card that computes so many times as fast."""
    return machine.with_(flops=machine.flops * times, bandwidth=machine.bandwidth * times)


def _field(name: str, scale: float) -> Change:
    return lambda machine, value: machine.with_(**{name: round(value * scale)})


# What could be otherwise: its unit, the values to try, what becomes of the machine, and whether only on demand.
KNOBS: dict[str, tuple[str, float, float, Change, bool]] = {
    "the link": ("x as slow", 1, 20, _link, False),
    "the link, on demand alone": ("x as slow", 1, 20, _link, True),
    "the card": ("x as fast", 1, 20, _card, False),
    "host time an op": ("ms", 0.01, 20, _field("host_ns", 1e6), False),
    "host time a copy": ("ms", 0.01, 20, _field("copy_host_ns", 1e6), False),
    "reserved": ("GiB", 0.5, 5.5, _field("reserved", GIB), False),
    "reserved, on demand alone": ("GiB", 0.5, 5.5, _field("reserved", GIB), True),
}


@strict
def models(study: Study, step: float = 1.1, rounds: int = 1) -> list[Row]:
    """Say of each of `KNOBS` the least value that comes to the thesis' figures, or how near it comes.

    Values are tried from the lowest on, each `step` times the last, until it gets worse by `WORSE`: with the heuristic
    against its figure, and with the certified least in `rounds` of the bound against the program's.

    Raises
    ------
    ValueError
        A step that is not finite and above 1: the values would not grow.
    """
    if not 1 < step < math.inf:
        raise ValueError(f"step: {step} is not finite and above 1; 1.1 would do")
    trace, machine = study.case.trace, study.case.machine
    aims = RELATIVE.get(batch_of(trace), {}) if trace.peak_live_bytes > _limit(study) else {}
    rows: list[Row] = []
    for way, aim in aims.items():
        for knob, (unit, low, high, change, alone) in KNOBS.items():
            study.progress(f"{trace.name}: {knob} for {way}")
            over, nearest, value = 1.0, (1.0, low), low
            while value <= high and nearest[0] > aim and over <= nearest[0] + WORSE:
                changed = change(machine, value)
                try:
                    over = _over(trace, machine if alone else changed, changed, way, aim, rounds)
                except (Infeasible, NotReached):  # so little is available
                    break
                nearest, value = min(nearest, (over, value)), value * step
            found = {"aim": aim, "met": nearest[0] <= aim, "over": nearest[0], "value": nearest[1]}
            rows.append({"trace": trace.name, "way": way, "knob": knob, "unit": unit, **found})
    return rows


def _over(trace: Trace, mine: Machine, theirs: Machine, way: str, aim: float, rounds: int) -> float:
    """What a way takes on one machine relative to what it takes on demand, by size, on another."""
    whole = _within(trace, theirs, ON_DEMAND[BY_SIZE])
    if way == "heuristic":
        return _within(trace, mine, heuristic) / whole
    base = simulate(trace, mine).makespan
    if base > aim * whole:  # not even without a stall
        return base / whole
    return (base + swap.least_stall(trace, mine, mine.available, rounds=rounds).stall_ns) / whole


def _within(trace: Trace, machine: Machine, planner: Callable[..., Plan]) -> int:
    """An iteration within what the machine has available."""
    limit = machine.available
    return simulate(planner(trace, machine, limit).apply(trace), machine, capacity=limit).makespan


def table(rows: Sequence[Row]) -> str:
    """Return a line a trace and a way: figures 7 and 8."""
    head = [
        "trace",
        "peak live bytes",
        "paper's",
        "way",
        "computation",
        "stall",
        "iteration",
        "over on demand",
        "paper",
    ]
    lines = [[*head, "copies", "moved"]]
    for r in rows:
        times = ["-" if r[key] is None else human_ns(round(r[key])) for key in ("stall_ns", "iteration_ns")]
        size = [human(r["peak_live_bytes"]), f"{r['paper_gb']} GB", r["way"], human_ns(r["computation_ns"])]
        copied = ["", ""] if r["copies"] is None else [f"{r['copies']:g}", human(round(r["bytes"]))]
        lines.append([r["trace"], *size, *times, _cell(r["over"]), _cell(r["paper"]), *copied])
    told = f"`over on demand`: relative to {BASE}, the thesis' own. `paper`: of its batch of about that size."
    if rows:
        told += f" A program has {human(rows[0]['limit'])} of the card."
    return f"{columns(lines)}\n\n{told}"


def moved_table(rows: Sequence[Row]) -> str:
    """Return a line a trace and a way."""
    head = ["out", "in", "bytes out", "bytes in", "dropped", "runs", "scattered", "most scattered", "repeats after"]
    lines = [["trace", "way", *head]]
    for r in rows:
        cells = [_count(r, name) for name in COUNTED]
        lines.append([r["trace"], r["way"], *cells, str(r["period"]) if r["period"] else "not seen"])
    told = "`scattered`: buffers for which others had to go although there were bytes enough, not in one piece."
    return f"{columns(lines)}\n\n{told}"


def _count(row: Row, name: str) -> str:
    if name not in row:
        return ""
    return human(round(row[name])) if name.startswith(("bytes", "most")) else f"{row[name]:g}"


def model_table(rows: Sequence[Row]) -> str:
    """Return a line a knob, a column a trace and a figure of the thesis."""
    cases = list(dict.fromkeys((r["trace"], r["way"], r["aim"]) for r in rows))
    lines = [["what else", "in", *(f"{trace}: {way} {aim}" for trace, way, aim in cases)]]
    for knob, (unit, *_) in KNOBS.items():
        mine = {(r["trace"], r["way"], r["aim"]): r for r in rows if r["knob"] == knob}
        cells = [
            ("" if r["met"] else "never: ") + f"{r['over']:.3f} at {r['value']:.3g}" for r in map(mine.get, cases) if r
        ]
        lines.append([knob, unit, *cells])
    told = "`ilp`: no plan takes less (the certified bound, or no stall at all where a host takes time)."
    return f"{columns(lines)}\n\n{told}"


def capacity_table(rows: Sequence[Row]) -> str:
    """Return a line a trace, a capacity and a way."""
    lines = [["trace", "capacity", "way", "stall", "iteration", "over on demand", "paper", "moved"]]
    for r in rows:
        times = ["-" if r[key] is None else human_ns(round(r[key])) for key in ("stall_ns", "iteration_ns")]
        moved = "" if r["bytes"] is None else human(round(r["bytes"]))
        lines.append([r["trace"], human(r["limit"]), r["way"], *times, _cell(r["over"]), _cell(r["paper"]), moved])
    told = f"`over on demand`: by address, or {BY_SIZE} where no place is found. `paper`: at its own capacity."
    return f"{columns(lines)}\n\n{told} The program begins with the best plan above it."


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Return figure 7, seconds of computation and of iterations over the memory that a batch takes, and figure 8."""
    rows = sorted(rows, key=lambda r: float(r["peak_live_bytes"]))
    if not rows:
        return []
    base = {r["peak_live_bytes"]: r["computation_ns"] for r in rows}
    names = [name for name in dict.fromkeys(r["way"] for r in rows) if name != "fits"]
    x = [size / 1e9 for size in base]

    def curve(name: str, key: str, scale: float, style: str = "line") -> Series:
        found = {r["peak_live_bytes"]: r[key] for r in rows if r["way"] == name}
        return Series(name, x, [None if found.get(size) is None else found[size] / scale for size in base], style)

    seconds = [Series("computation", x, [ns / 1e9 for ns in base.values()], "dashed")]
    seconds += [curve(name, "iteration_ns", 1e9) for name in names]
    parts = [curve(name, "over", 1) for name in names]
    for way in ("heuristic", "ilp"):
        quoted = {SIZES[batch]: aims[way] for batch, aims in RELATIVE.items()}
        parts.append(Series(f"published, {way}", [*quoted], [*quoted.values()], "point"))
    label = "memory of the batch (GB)"
    return [
        Figure("fig7", "an iteration on the card", label, "seconds", tuple(seconds)),
        Figure("fig8", f"an iteration relative to {BASE}", label, "relative time", tuple(parts)),
    ]


TABLES: Mapping[str, Callable[[Any], str]] = {
    "ways": table,
    "capacities": capacity_table,
    "moved": moved_table,
    "models": model_table,
}
