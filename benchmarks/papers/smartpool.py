"""Table I of the SmartPool paper (Zhang et al. 2019, section VI-A), what calls cost, and planners on instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from benchmarks.papers import published, singa
from gpumem.base.arguments import strict
from gpumem.evaluate.call_cost import costs
from gpumem.pipeline.footprint import Allocators, Footprint, by_allocators, by_planners
from gpumem.pipeline.report import columns
from gpumem.pool import Allocator, CnMem, Native, SmartPool, best_fit
from gpumem.trace import Trace

MIB = 2**20
QUOTED = "paper: SmartPool up to 13.3 % below CnMem (VGG11), and itself at most at 1.016 (VGG13)"
RATIOS = ("native", "cnmem", "cnmem_first_fit", "cnmem_singa", "smartpool")
SAVINGS = ("below_cnmem", "below_cnmem_first_fit", "below_cnmem_singa")  # of SmartPool
FAMILIES = {"vgg": "VGGs", "resnet": "ResNets"}


@strict
def ratios(trace: Trace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return a line of Table I: footprints over that of cudaMalloc, which is the peak load.

    CnMem is one pool that takes the best fit, one that takes the first, and as SINGA sets it up.
    """
    (smartpool,) = by_planners(trace, {"best-fit": best_fit}, {}, progress)
    makes: Allocators = {
        "cnmem": partial(CnMem),
        "cnmem_first_fit": partial(CnMem, fit="first"),
        "cnmem_singa": singa.cnmem,
    }
    theirs = by_allocators(trace, makes, progress)
    return {
        "net": trace.name,
        "peak_load": trace.peak_load,
        "native": 1.0,
        **{f.name: f.ratio for f in theirs},
        "smartpool": smartpool.ratio,
        **{f"below_{f.name}": _below(smartpool, f) for f in theirs},
        "paper_below_cnmem": published.BELOW_CNMEM.get(published.net_of(trace.name)[1]),
    }


def _below(ours: Footprint, theirs: Footprint) -> float:
    return 1 - ours.size / theirs.size if theirs.size else 0.0


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the arithmetic mean of each figure over the VGGs and over the ResNets, of one rule for workspaces each."""
    figures = (*RATIOS, *SAVINGS)
    found = []
    rules = list(dict.fromkeys(r.get("workspaces", "none") for r in rows))
    for (family, name), rule in product(FAMILIES.items(), rules):
        mine = [r for r in rows if (published.net_of(r["net"])[0], r.get("workspaces", "none")) == (family, rule)]
        if mine:
            averages = {key: fmean(r[key] for r in mine) for key in figures}
            told = f"{name}, mean of {len(mine)}" + (f", {rule}" if rule != "none" and len(rules) > 1 else "")
            found.append({"net": told, "workspaces": rule, **averages})
    return found


def ratio_table(rows: list[dict[str, Any]]) -> str:
    """Return Table I with the means, and what the paper says."""
    ways = ("cnmem", "first fit", "SINGA's")
    lines = [["net", "peak MiB", "native", *ways, "smartpool", *(f"below {way} %" for way in ways), "paper %"]]
    for r in [*rows, *means(rows)]:
        peak = f"{r['peak_load'] / MIB:.1f}" if "peak_load" in r else ""
        saved = ["-" if r.get(key) is None else f"{100 * r[key]:.1f}" for key in (*SAVINGS, "paper_below_cnmem")]
        lines.append([r["net"], peak, *(f"{r[key]:.4f}" for key in RATIOS), *saved])
    return f"{columns(lines)}\n\n{QUOTED}"


@strict
def call_costs(
    trace: Trace, allocators: Allocators, replays: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return what a malloc and its free take on each allocator and on SmartPool at run time, and relative to native."""
    progress(f"{trace.name}: timing calls")
    planned = best_fit(trace)
    makes: Mapping[str, Callable[[], Allocator]] = {
        "native": Native,
        **allocators,
        "smartpool": lambda: SmartPool.of(trace, planned),
    }
    found = costs(trace, makes, replays=replays)
    return [{**asdict(c), "relative": c.ns / (found[0].ns or 1)} for c in found]


def cost_table(rows: list[dict[str, Any]]) -> str:
    """Return a line a trace, a column an allocator: microseconds, and times native."""
    names = list(dict.fromkeys(r["allocator"] for r in rows))
    lines = [["trace", "pairs", *names]]
    for mine in _groups(rows, len(names)):
        cells = {r["allocator"]: f"{r['ns'] / 1e3:.2f} ({r['relative']:.2f})" for r in mine}
        lines.append([mine[0]["trace"], str(mine[0]["pairs"]), *(cells[name] for name in names)])
    return columns(lines)


def instance_table(rows: list[dict[str, Any]]) -> str:
    """Return a line an instance: ratio and seconds of each planner, the lowest, and what is proven."""
    names = list(dict.fromkeys(r["planner"] for r in rows))
    lines = [["instance", "buffers", "peak load", *(cell for name in names for cell in (name, "s")), "lowest", "bound"]]
    for mine in _groups(rows, len(names)):
        best = min(mine, key=lambda r: r["footprint"])
        cells = [text for r in mine for text in (f"{r['ratio']:.4f}", f"{r['seconds']:.2f}")]
        least = "optimal" if best["optimal"] else f"{best['bound'] / best['peak_load'] if best['peak_load'] else 1:.4f}"
        sizes = [str(best["buffers"]), str(best["peak_load"])]
        lines.append([best["instance"], *sizes, *cells, f"{best['ratio']:.4f}", least])
    return columns(lines)


def _groups(rows: list[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    """Cut rows into those of one trace each: names do not say, two may have the same."""
    return [rows[k : k + count] for k in range(0, len(rows), count)]


TABLES: Mapping[str, Callable[[Any], str]] = {"table1": ratio_table, "instances": instance_table, "cost": cost_table}
