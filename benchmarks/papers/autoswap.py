"""Figures 8 to 11 and Table II of the AutoSwap paper (Zhang et al. 2019, section VI), measured here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.papers import published, singa
from benchmarks.papers.zero_overhead_limit import ZeroOverheadLimit, table as lowest_limits_table
from gpumem import swap
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.pipeline import Case, Planned
from gpumem.pipeline.footprint import Allocators, by_allocators
from gpumem.pipeline.report import Figure, Series, columns, human, human_ns, percent
from gpumem.pipeline.report.plot import recorded
from gpumem.pipeline.swap_and_place import at_load
from gpumem.pool import best_fit
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import candidates
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import without
from gpumem.trace import Trace

Planners = Mapping[str, Callable[..., Plan]]
Row = dict[str, Any]

MIB = 2**20
TWO = (0.77, 0.62)  # of the peak live bytes: the paper's 500 and 400 of 647 MB
STRETCHES = 21  # lines of figure 8 as a table
OVERHEADS = (0.005, 0.15)  # of figure 10: none to speak of, and the paper's 15 %
CNMEMS: Allocators = {"cnmem": CnMem, "SINGA's cnmem": singa.cnmem}
PRINTED = ", as printed"
OF_SWAPS: Planners = {  # whose plans the bound of swaps is about
    f"bayes{PRINTED}": partial(swap.bayes, as_printed=True),
    "bayes": swap.bayes,
    "heuristic": swap.heuristic,
    "search, swaps alone": partial(swap.search, recompute=False),
}


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What the figures of one trace share: the case, options for planners, whom to tell, whether to check.

    `tell` hears of oracles that were left out. `rebatched` returns the trace at a batch so many times as large.
    `failed` is told of a planner that raised what no planner should, and its error; without, that ends the study.
    """

    case: Case
    options: Mapping[str, Any]
    progress: Callable[[str], None]
    tell: Callable[[str], None]
    rebatched: Callable[[float], Trace]
    check: bool = True
    failed: Callable[[str, Exception], None] | None = None

    def at(self, limit: int, name: str, planner: Callable[..., Plan]) -> Planned | None:
        """Plan for a load limit, place, judge by both clocks and check; None where the planner does not get there."""
        case = replace(self.case, load=limit)
        told = f"{case.trace.name}: {name} at a load of {human(limit)}"
        self.progress(told)
        try:
            with work.within(progress=lambda text: self.progress(f"{told}: {text}")):
                found = case.solve(planner, self.options)
            return self.checked(case.planned(found, case.judge(found), name))
        except (Infeasible, NotReached):
            return None
        except Exception as error:
            self.fail(name, error)
            return None

    def fail(self, name: str, error: Exception) -> None:
        """Tell of a planner's error, so that it costs its own row only; raise it where nobody is to be told."""
        if self.failed is None:
            raise error
        self.failed(name, error)

    def verify(self, lowest: ZeroOverheadLimit) -> None:
        """Hold the plan of a lowest limit against the oracles."""
        case = replace(self.case, load=lowest.limit)
        self.progress(f"{lowest.trace}: checking {lowest.planner}")
        found = at_load(case.trace, lowest.limit, swap=lambda trace, limit: lowest.plan, pool=case.place)
        self.checked(case.planned(found, case.judge(found), lowest.planner))

    def checked(self, planned: Planned) -> Planned:
        """Hold what was planned against the oracles, if asked to."""
        if self.check:
            planned.verified().checked.report_to(self.tell)
        return planned


def profiles(study: Study, planner: Callable[..., Plan]) -> Figure:
    """Return figure 8: the load over the ops, unswapped, at two limits, and with every candidate absent."""
    trace, machine = study.case.trace, study.case.machine
    found = candidates(trace, machine, 1)
    loads = {"unswapped": trace.live_bytes()}
    for part in TWO:
        planned = study.at(int(trace.peak_live_bytes * part), "autoswap", planner)
        if planned is not None:
            loads[f"at {part:.0%}"] = planned.trace.live_bytes()[recorded(planned.trace)]
    loads["load_min"] = without(found.load, found.gaps)
    series = [
        Series(name, list(map(float, range(len(load)))), [size / MIB for size in load.tolist()])
        for name, load in loads.items()
    ]
    return Figure("fig8", f"{trace.name}: load over the iteration", "op", "load (MiB)", tuple(series))


def scores(study: Study, limits: list[int], autoswap: Callable[..., Plan], bayes: Callable[..., Plan] | None) -> Figure:
    """Return figure 9: the overhead over load limits of AutoSwap's four scores, and of their best weighted sum.

    With the targets that the planner tries itself (ours), then, dashed, by the paper's rules as printed; for VGG16 the
    paper's quoted points too.
    """
    trace = study.case.trace
    planners = {name: partial(autoswap, score=name) for name in SCORES}
    if bayes is not None:
        planners["bayes"] = partial(bayes)

    def curve(name: str, planner: Callable[..., Plan], style: str) -> Series:
        found = (study.at(limit, name, planner) for limit in limits)
        cost = [None if one is None or math.isinf(one.overhead) else 100 * one.overhead for one in found]
        return Series(name, [100 * limit / trace.peak_live_bytes for limit in limits], cost, style)

    printed = {f"{name}{PRINTED}": partial(call, as_printed=True) for name, call in planners.items()}
    series = [curve(name, planner, "line") for name, planner in planners.items()]
    series += [curve(name, planner, "dashed") for name, planner in printed.items()]
    series += published.FIGURE9 if published.net_of(trace.name)[1] == "vgg16" else ()
    x, y, above = (
        "load limit (% of the peak live bytes)",
        "overhead (%), byte-counting simulation",
        trace.peak_live_bytes / 1e8,
    )
    return Figure("fig9", f"{trace.name}: overhead over load limits", x, y, tuple(series), ("load limit (MB)", above))


def avoidable(study: Study, rounds: int) -> list[Row]:
    """Return VI-B3: what planners cost at the paper's limit, and how much of it the certified bound does not excuse."""
    case = study.case
    limit = int(published.ANALYSED * case.trace.peak_live_bytes)
    study.progress(f"{case.trace.name}: bound")
    least = swap.least_stall(case.trace, case.machine, limit, rounds=rounds).stall_ns
    rows = []
    for name, planner in OF_SWAPS.items():
        found = study.at(limit, name, planner)
        if found is not None:
            cost = found.after.timeline.makespan - case.line.makespan
            times = {"cost_ns": cost, "least_ns": least, "avoidable_ns": max(cost - least, 0)}
            rows.append({"trace": case.trace.name, "limit": limit, "planner": name, **times})
    return rows


def avoidable_table(rows: Sequence[Row]) -> str:
    """Return a line a trace and a planner."""
    lines = [["trace", "limit", "planner", "overhead", "at least", "avoidable", "of it"]]
    for r in rows:
        part = percent(r["avoidable_ns"] / r["cost_ns"]) if r["cost_ns"] else "-"
        times = [human_ns(r[key]) for key in ("cost_ns", "least_ns", "avoidable_ns")]
        lines.append([r["trace"], human(r["limit"]), r["planner"], *times, part])
    cost, could = published.OPTIMALITY
    told = f"`at least`: certified for every plan of swaps. The paper: {cost:g} ms, less than {could:g} avoidable."
    return f"{columns(lines)}\n\n{told}"


def reductions(study: Study, limits: list[int], planners: Planners) -> Figure:
    """Return figure 11: the overhead by the address-aware simulation over how much smaller the placed footprint is.

    For VGGs and ResNets with what the paper's text quotes, of others' systems too: we measured none of those.
    """
    case = study.case
    whole = case.placement.height
    series = []
    for name, planner in planners.items():
        found = (one for limit in limits if (one := study.at(limit, name, planner)) is not None)
        points = {(100 * (1 - one.placement.height / whole), 100 * one.placed_overhead) for one in found}
        ordered = sorted(p for p in points if math.isfinite(p[1]))
        series.append(Series(name, [x for x, _ in ordered], [y for _, y in ordered]))
    series += published.figure11(case.trace.name)
    x, y = "reduction of the placed footprint (%)", "overhead (%), address-aware simulation"
    return Figure("fig11", f"{case.trace.name}: overhead over the reduction of the footprint", x, y, tuple(series))


def batches(study: Study, limits: list[int], factors: list[float], autoswap: Callable[..., Plan]) -> Figure:
    """Return figure 10: the footprint over batch sizes of cudaMalloc, CnMem, SmartPool, and SmartPool with AutoSwap.

    CnMem is one pool, and as SINGA sets it up, which is what the paper measured. AutoSwap's four scores are tried at
    each limit, and the lowest footprint counts.
    """
    planners = {name: partial(autoswap, score=name) for name in SCORES}
    case, names = study.case, ("native", *CNMEMS, "smartpool", *(f"with autoswap, {part:.1%}" for part in OVERHEADS))
    sizes: list[list[float]] = [[] for _ in names]
    for factor in factors:
        trace = study.rebatched(factor)
        mine = replace(case, trace=trace, placement=best_fit(trace), line=simulate(trace, case.machine))
        scaled = [max(limit * trace.peak_live_bytes // max(case.trace.peak_live_bytes, 1), 1) for limit in limits]
        for size, found in zip(sizes, _schemes(replace(study, case=mine), scaled, planners)):
            size.append(found / MIB)
    series = tuple(Series(name, factors, list(size)) for name, size in zip(names, sizes))
    title = f"{case.trace.name}: footprint over batch sizes"
    return Figure("fig10", title, "batch size over the recorded one", "footprint (MiB)", series)


def _schemes(study: Study, limits: list[int], planners: Planners) -> list[int]:
    """The footprints of figure 10 for one batch size; overheads are of address-aware simulations."""
    case, unchecked = study.case, replace(study, check=False)
    cnmems = by_allocators(case.trace, CNMEMS, study.progress)
    found = [unchecked.at(limit, name, planner) for name, planner in planners.items() for limit in limits]
    swapped = []
    for most in OVERHEADS:
        cheap = [r for r in found if r is not None and r.placed_overhead <= most]
        lowest = min(cheap, key=lambda r: r.placement.height, default=None)
        if lowest is None or lowest.placement.height >= case.placement.height:
            swapped.append(case.placement.height)  # no swap is a plan as well
        else:
            swapped.append(study.checked(lowest).placement.height)
    return [case.trace.peak_live_bytes, *(found.size for found in cnmems), case.placement.height, *swapped]


def _curves(head: str, names: list[str], figure: Figure, cells: Callable[[Series], Iterable[str]]) -> str:
    """A table with a column a curve."""
    return columns([list(row) for row in zip([head, *names], *([s.name, *cells(s)] for s in figure.series))])


def batch_table(figure: Figure) -> str:
    """Return a line a batch size, a column a way: MiB, and how far below CnMem."""
    base = next(s for s in figure.series if s.name == "cnmem")

    def cells(s: Series) -> list[str]:
        sizes = [(y or 0.0, whole or 1.0) for y, whole in zip(s.y, base.y)]
        return [f"{y:.1f}" + ("" if s is base else f" ({100 * (y / whole - 1):+.1f} %)") for y, whole in sizes]

    return _curves("batch", [f"{factor:g}" for factor in base.x], figure, cells)


def profile_table(figure: Figure) -> str:
    """Return the largest load in each of some stretches of the iteration."""
    n = len(figure.series[0].x)
    stretches = [*pairwise(sorted({n * k // STRETCHES for k in range(STRETCHES + 1)})), (0, n)]
    names = [*(f"{low}-{high - 1}" for low, high in stretches[:-1]), "peak"]
    return _curves("ops", names, figure, lambda s: [f"{max(v or 0 for v in s.y[a:b]):.1f}" for a, b in stretches])


def limit_table(figure: Figure) -> str:
    """Return a line a load limit, in % of the peak and in MB, a column a curve, and what is quoted."""
    x, mb = figure.series[0].x, figure.above[1] if figure.above else math.nan
    rows = [["limit %", *(f"{part:.1f}" for part in x)], ["MB", *(f"{part * mb:.0f}" for part in x)]]
    rows += [[s.name, *map(_cell, s.y)] for s in figure.series if not s.marks]
    return "\n".join([columns([list(row) for row in zip(*rows)]), *_published(figure, "at a limit of")])


def _published(figure: Figure, where: str) -> list[str]:
    """The marks of a figure, a line each."""
    return [f"{s.name}: {y:g} % {where} {x:.1f} %" for s in figure.series if s.marks for x, y in zip(s.x, s.y)]


def point_table(figure: Figure) -> str:
    """Return a line a point."""
    rows = [["planner", "reduction %", "overhead %"]]
    for s in figure.series:
        rows += [[s.name, f"{x:.1f}", _cell(y)] for x, y in zip(s.x, s.y)] or [[s.name, "-", "-"]]
    return columns(rows)


def depths(limits: Iterable[ZeroOverheadLimit]) -> list[dict[str, Any]]:
    """Return Table II: for each VGG and ResNet and each planner, the largest reduction of the load for nothing."""
    rows = []
    for k in limits:
        family, net = published.net_of(k.trace)
        if family:
            sizes = {"peak_live_bytes": k.peak_live_bytes, "limit": k.limit, "reduction": k.reduction}
            rows.append(
                {"net": k.trace, "planner": k.planner, **sizes, "paper_reduction": published.REDUCTIONS.get(net)}
            )
    return rows


def depth_table(rows: list[dict[str, Any]]) -> str:
    """Return a line a net, a column a planner."""
    planners = list(dict.fromkeys(r["planner"] for r in rows))
    lines = [["net", "peak MiB", *planners, "paper"]]
    for net in dict.fromkeys(r["net"] for r in rows):
        mine = {r["planner"]: r for r in rows if r["net"] == net}
        first = next(iter(mine.values()))
        parts = [*(mine[p]["reduction"] if p in mine else None for p in planners), first["paper_reduction"]]
        lines.append([net, f"{first['peak_live_bytes'] / MIB:.1f}", *(_cell(_hundred(part), 1) for part in parts)])
    return columns(lines)


def _hundred(part: float | None) -> float | None:
    return None if part is None else 100 * part


def _cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


TABLES: Mapping[str, Callable[[Any], str]] = {
    "lowest_limits": lowest_limits_table,
    "fig8": profile_table,
    "fig9": limit_table,
    "fig10": batch_table,
    "fig11": point_table,
    "table2": depth_table,
    "optimality": avoidable_table,
}
