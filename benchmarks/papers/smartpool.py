"""Table I of the SmartPool paper (Zhang et al. 2019, section VI-A), what calls cost, and planners on instances."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Any

from benchmarks.papers import published, singa
from gpumem.base.arguments import strict
from gpumem.pipeline.footprint import Allocators, Footprint, by_allocators, by_planners
from gpumem.pipeline.report import columns
from gpumem.pool import Allocator, CnMem, Native, SmartPool, best_fit
from gpumem.pool.allocators.protocol import stepwise
from gpumem.trace import Trace


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a malloc and a free together, the median of some replays.

    Parameters
    ----------
    trace, allocator : str
        Names.
    pairs : int
        Mallocs, and as many frees, of one iteration.
    ns : float
        Nanoseconds, those of the loop around the calls among them.
    """

    trace: str
    allocator: str
    pairs: int
    ns: float


@strict
def costs(
    trace: Trace,
    allocators: Mapping[str, Callable[[], Allocator]],
    *,
    replays: int = 7,
    warm: int = 2,
    clock: Callable[[], int] = time.thread_time_ns,
) -> list[Cost]:
    """Time the requests of an iteration on several allocators, in turn.

    Parameters
    ----------
    trace : Trace
        Its requests are those of `gpumem.pool.allocators.protocol.replay`, all on one stream.
    allocators : mapping of str to callable
        Each returns a fresh allocator.
    replays : int
        Timed iterations of each allocator. They take turns, so that what slows the machine down slows all.
    warm : int
        Iterations before, so that pools have grown and iterations are known.
    clock : callable
        In nanoseconds: CPU time, which other programs do not disturb; take wall time where a driver makes us wait.

    Returns
    -------
    list of Cost
        In the order of `allocators`.

    Raises
    ------
    ValueError
        A number of replays below 1; no buffer of the trace comes and goes.

    Notes
    -----
    The allocators of this package are Python, so times compare their algorithms and nothing else: `Native` calls no
    driver. `benchmarks/gpu/__main__.py` measures what does.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.pool import ALLOCATORS
    >>> [cost.pairs for cost in costs(bundled("mlp3"), ALLOCATORS, replays=1)]
    [22, 22, 22, 22, 22, 22, 22]
    """
    if replays < 1:
        raise ValueError(f"replays: {replays}, time at least one")
    requests, first = stepwise(trace)
    head, cycle = requests[:first], requests[first:]
    size = trace.buffers.size.tolist()
    if not cycle:
        raise ValueError(f"trace {trace.name!r}: no buffer comes and goes, so there is nothing to time")
    pools = [(make(), [0] * len(size)) for make in allocators.values()]
    for pool, at in pools:
        _request(pool, head, size, at)
        for _ in range(warm):
            _request(pool, cycle, size, at)
    taken: list[list[int]] = [[] for _ in pools]
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(replays):
            for times, (pool, at) in zip(taken, pools):
                begin = clock()
                _request(pool, cycle, size, at)
                times.append(clock() - begin)
    finally:
        if collecting:
            gc.enable()
    pairs = len(cycle) // 2
    return [Cost(trace.name, name, pairs, median(times) / pairs) for name, times in zip(allocators, taken)]


def _request(pool: Allocator, requests: list[int], size: list[int], at: list[int]) -> None:
    """Make requests: `b` for a malloc of buffer `b`, `~b` for its free; `at` says where each lies."""
    allocate, free = pool.allocate, pool.free
    for r in requests:
        if r >= 0:
            at[r] = allocate(size[r])
        else:
            free(at[~r])


MIB = 2**20
QUOTED = "paper: SmartPool up to 13.3 % below CnMem (VGG11), and itself at most at 1.016 (VGG13)"
RATIOS = ("native", "cnmem", "cnmem_first_fit", "cnmem_singa", "smartpool")
SAVINGS = ("below_cnmem", "below_cnmem_first_fit", "below_cnmem_singa")  # of SmartPool
FAMILIES = {"vgg": "VGGs", "resnet": "ResNets"}


@strict
def ratios(trace: Trace, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return a line of Table I: footprints over that of cudaMalloc, which is the peak live bytes.

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
        "peak_live_bytes": trace.peak_live_bytes,
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
        peak = f"{r['peak_live_bytes'] / MIB:.1f}" if "peak_live_bytes" in r else ""
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
    lines = [["instance", "buffers", "peak live", *(cell for name in names for cell in (name, "s")), "lowest", "bound"]]
    for mine in _groups(rows, len(names)):
        best = min(mine, key=lambda r: r["footprint"])
        cells = [text for r in mine for text in (f"{r['ratio']:.4f}", f"{r['seconds']:.2f}")]
        least = (
            "optimal"
            if best["optimal"]
            else f"{best['bound'] / best['peak_live_bytes'] if best['peak_live_bytes'] else 1:.4f}"
        )
        sizes = [str(best["buffers"]), str(best["peak_live_bytes"])]
        lines.append([best["instance"], *sizes, *cells, f"{best['ratio']:.4f}", least])
    return columns(lines)


def _groups(rows: list[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    """Cut rows into those of one trace each: names do not say, two may have the same."""
    return [rows[k : k + count] for k in range(0, len(rows), count)]


TABLES: Mapping[str, Callable[[Any], str]] = {"table1": ratio_table, "instances": instance_table, "cost": cost_table}
