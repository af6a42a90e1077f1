"""Table 1 in a pool: the largest batch of two jobs whose rounds an allocator serves, or that fit from two ends.

A pool has as many bytes as the machine. In the order in which ops are handed over,

- *solo*: `MultiStream` serves one job on one stream; by *load* it is the solo batch of Table 1.
- *served*: `MultiStream` serves two jobs' rounds online, round after round. *Flat*: the paper's rounds, in which all
  jobs end together. *Wrapped*: ours, which begin before the one before has ended.
- *offline*: `best_fit` of the wrapped round, all of which is known.
- *two ends*: each job has a stack of its own, and the two grow towards each other; whatever the order within a slot.

*Delayed*: groups wait, so that the pipeline keeps within a limit. From two ends that is the machine's; where an
allocator serves, which limit does is searched, down to 0.7 of it. Jobs in turn are such a pipeline too, so what counts
is not whether a batch fits with delays, but how much of the work then runs side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product

from benchmarks.papers.waterwave.batches import (
    FEW,
    Row,
    Sizing,
    at_batch,
    beside,
    delayed,
    most_of,
    needed,
    ordered,
    parts_of,
    solo,
)
from benchmarks.papers.waterwave.published import TABLE1, model_of
from gpumem import best_fit, check
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible
from gpumem.jobs.waterwave import Pipeline, co_schedule, in_pool, pipeline, two_ends
from gpumem.pool import MultiStream, replay, stacked
from gpumem.trace import Trace

OF_LIMIT = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # where an allocator serves with delays
Size = tuple[float, float]  # of a node group, as a piece of a job's peak; of the limit, as a part of the memory
Fits = Callable[[Sizing, Sequence[Trace], Size], Pipeline | None]


def is_served(trace: Trace, capacity: int) -> bool:
    """Whether a pool of so many bytes serves a trace until an iteration repeats the one before, or 20 have run.

    >>> from gpumem import bundled
    >>> [is_served(bundled("vgg16"), int(part * bundled("vgg16").peak_live_bytes)) for part in (1.0, 1.02)]
    [False, True]
    """
    try:
        replay(trace, MultiStream(capacity=capacity, allow_growth=False))
    except MemoryError:
        return False
    except ValueError:  # what wraps lies elsewhere in each iteration: no placement, but all were served
        pass
    return True


def _rounds(sizing: Sizing, traces: Sequence[Trace], size: Size, *, wrap: bool, delayed: bool) -> Pipeline | None:
    """The pipeline, None where it has no delays that keep it within the limit, or its load is above the memory."""
    piece, part = size
    parts = parts_of(traces, sizing.machine, int(max(trace.peak_live_bytes for trace in traces) / piece))
    try:
        line = (
            pipeline(parts, int(part * sizing.limit), wrap=wrap) if delayed else pipeline(parts, overlap=0, wrap=wrap)
        )
    except Infeasible:
        return None
    return line if co_schedule(line, sizing.machine).trace.peak_live_bytes <= sizing.limit else None


def served(sizing: Sizing, traces: Sequence[Trace], size: Size, *, wrap: bool, delayed: bool) -> Pipeline | None:
    """The pipeline, if `MultiStream` serves its rounds."""
    line = _rounds(sizing, traces, size, wrap=wrap, delayed=delayed)
    return line if line and is_served(co_schedule(line, sizing.machine).trace, sizing.limit) else None


def offline(sizing: Sizing, traces: Sequence[Trace], size: Size) -> Pipeline | None:
    """The pipeline without delays, if `best_fit` places its round."""
    line = _rounds(sizing, traces, size, wrap=True, delayed=False)
    return line if line and best_fit(co_schedule(line, sizing.machine).trace).height <= sizing.limit else None


def from_two_ends(sizing: Sizing, traces: Sequence[Trace], size: Size, *, delayed: bool) -> Pipeline | None:
    """The pipeline, if the jobs' stacks fit."""
    place = cache(stacked)
    parts = parts_of(traces, sizing.machine, int(max(trace.peak_live_bytes for trace in traces) / size[0]))
    tall = [in_pool(part, place(part.trace)) for part in parts]
    try:
        line = pipeline(tall, sizing.limit) if delayed else pipeline(tall, overlap=0)
    except Infeasible:
        return None
    return line if line.bound().max() <= sizing.limit else None


class Sizes:
    """Whether jobs fit at one of several sizes; what fitted last is tried first."""

    def __init__(self, sizing: Sizing, fits: Fits, pieces: Sequence[float], limits: Sequence[float] = (1.0,)) -> None:
        self.sizing, self.fits, self.sizes = sizing, fits, list(product(pieces, limits))
        self.found: Pipeline | None = None

    def __call__(self, traces: Sequence[Trace]) -> bool:
        for size in self.sizes:
            line = self.fits(self.sizing, traces, size)
            if line is not None:
                self.found = line
                self.sizes.remove(size)
                self.sizes.insert(0, size)
                return True
        return False


@strict
def in_pools(sizing: Sizing, trace: Trace, order: str = "recorded") -> Row:
    """Find the largest batches of two jobs that are the same, by a pool: Table 1 as an allocator has it.

    Returns
    -------
    dict
        `load` and `solo`, of one job by load and in a pool; `flat`, `wrapped`, `offline`, `ends` and `ends delayed`,
        of two; `at most`, by load with delays: no pool has more. How much of the work runs side by side: `ends beside`
        at the last one, `load at 90`, `served at 90` and `ends at 90` at 90 % of `load`. The paper's row.
    """
    mine = ordered(trace, order)
    load = solo(sizing, mine)
    make = cache(partial(at_batch, mine, 2))
    row: Row = {"trace": trace.name, "machine": sizing.machine.name, "order": order, "load": load}
    row["solo"] = most_of(partial(at_batch, mine, 1), lambda traces: is_served(traces[0], sizing.limit), max(load, 1))
    few = FEW if len(sizing.pieces) > len(FEW) else sizing.pieces
    sizes = {
        "flat": Sizes(sizing, partial(served, wrap=False, delayed=False), sizing.pieces),
        "wrapped": Sizes(sizing, partial(served, wrap=True, delayed=False), sizing.pieces),
        "offline": Sizes(sizing, offline, sizing.pieces),
        "ends": Sizes(sizing, partial(from_two_ends, delayed=False), sizing.pieces),
        "ends delayed": Sizes(sizing, partial(from_two_ends, delayed=True), few),
    }
    for name, fits in sizes.items():
        sizing.progress(f"{trace.name}, {order}: {name}")
        row[name] = most_of(make, fits, max(load * 7 // 8, 1))
    row["at most"] = most_of(make, lambda traces: needed(traces) <= sizing.limit, max(load, 1))
    sizing.progress(f"{trace.name}, {order}: side by side")
    line = best_from_two_ends(sizing, make(row["ends delayed"])) if row["ends delayed"] else None
    row["ends beside"] = None if line is None else beside(line)
    row |= side_by_side(sizing, make(max(-(-9 * load // 10), 1)))
    return row | {"paper": TABLE1.get((sizing.machine.name, model_of(trace.name)))}


def best_from_two_ends(sizing: Sizing, traces: Sequence[Trace]) -> Pipeline | None:
    """The delayed pipeline from two ends in which most runs side by side; an oracle is asked about its addresses."""
    lines = [from_two_ends(sizing, traces, (piece, 1.0), delayed=True) for piece in sizing.pieces]
    best = max((line for line in lines if line is not None), key=beside, default=None)
    if best is not None:
        both = co_schedule(best, sizing.machine)
        check.placement(both.trace, two_ends(both, [stacked(part.trace) for part in best.parts], sizing.limit))
    return best


def best_served(sizing: Sizing, traces: Sequence[Trace]) -> Pipeline | None:
    """The pipeline that `MultiStream` serves in which most runs side by side, flat or wrapped, delayed or not."""
    sizes = product(FEW if len(sizing.pieces) > len(FEW) else sizing.pieces, OF_LIMIT)
    ways = product(sizes, (False, True), (False, True))
    lines = [_rounds(sizing, traces, size, wrap=wrap, delayed=delayed) for size, wrap, delayed in ways]
    for line in sorted((line for line in lines if line is not None), key=beside, reverse=True):
        if is_served(co_schedule(line, sizing.machine).trace, sizing.limit):
            return line
    return None


def side_by_side(sizing: Sizing, traces: Sequence[Trace]) -> Row:
    """How much of the work runs side by side at a batch, with delays; None where nothing fits."""
    fits = needed(traces) <= sizing.limit
    lines = {
        "load at 90": delayed(sizing, traces) if fits else None,
        "served at 90": best_served(sizing, traces),
        "ends at 90": best_from_two_ends(sizing, traces),
    }
    return {name: None if line is None else beside(line) for name, line in lines.items()}
