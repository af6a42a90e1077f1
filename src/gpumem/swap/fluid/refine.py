"""Where to look: breakpoints are added where they matter to the program, until they do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base import work
from gpumem.base.display import Shown
from gpumem.swap.fluid.flows import FlowProgram
from gpumem.swap.fluid.program import Solution
from gpumem.swap.fluid.relax import Fluid
from gpumem.trace import F64, I64

FIRST, MORE = 32, 20  # breakpoints to begin with, and how many of each kind a round adds
FINE = 2e-4  # of the peak: by how much a load has to be too high to matter; a quarter of it is a gain
PATIENCE = 4  # rounds without a gain


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Refined(Shown):
    """What became of it: the largest `dual`, the breakpoints that there are then, whether it is `settled`.

    `last`: the solution of the last program, None where the time was up before the first.
    """

    dual: float
    breaks: I64
    settled: bool
    last: Solution | None


def refine(f: Fluid, peak: int, limit: int | None, rounds: int, size: int) -> Refined:
    """Solve, add breakpoints, solve again; every round's dual is a bound, the largest counts.

    `f` in a program for `limit`, or for the least level where that is None; at most `rounds` programs of at most `size`
    variables, until the time is up: 0, which nothing is below, where that was before the first.
    """
    breaks, best, idle, last = _first(f), 0.0, 0, None
    for _ in work.each(range(rounds)):
        program = FlowProgram(f, breaks, peak, limit)
        found = program.solve()
        if found is None:
            break
        last = found
        scale = float(max(f.time[-1], 1)) if limit is not None else 1.0  # a turn of no time has no parts
        idle = idle + 1 if found.dual - best < FINE / 4 * scale else 0
        best = max(best, found.dual)
        work.tell(f"{len(breaks)} breakpoints: " + (f"{best:.2%} of the peak" if limit is None else f"{best:.0f} ns"))
        over = _over(f, breaks, found, peak)
        if work.over():
            break
        more = _split(f, breaks, found, over, scale)
        missing = max(over.max(), found.crammed[1].max(initial=0.0) / scale if f.stalls else 0.0)
        settled = not len(more) or (idle >= PATIENCE and missing < 5 * FINE)
        if settled or idle > PATIENCE or program.rows.columns > size:
            return Refined(best, breaks, bool(settled), last)
        breaks = np.union1d(breaks, more)
    return Refined(best, breaks, False, last)


def _first(f: Fluid) -> I64:
    """Breakpoints to begin with: all if they are few; else even in time, and where most is held."""
    if f.n <= FIRST:
        return np.arange(0, 2 * f.n, 1 if f.stalls else 2)
    even = np.searchsorted(f.time, np.linspace(0, f.time[-1], FIRST, endpoint=False), side="right") - 1
    top = int(np.argmax(f.held))
    return np.unique(2 * np.append(np.clip(even, 0, f.n - 1), [top, (top + 1) % f.n]))


def _over(f: Fluid, breaks: I64, found: Solution, peak: int) -> F64:
    """By how much each instant's load is above the level, where absence changes evenly in time between breakpoints.

    Of no use where the time was up before all gaps were looked at.
    """
    load, absent, clock = (
        np.repeat(f.held, 2).astype(np.float64),
        found.absent + found.dropped,
        _clock(f, breaks, found),
    )
    starts = np.flatnonzero(np.diff(found.gap, prepend=-1))
    for a, b in work.each(zip(starts.tolist(), np.append(starts[1:], len(found.gap)).tolist())):
        g = found.gap[a]
        instant = np.arange(2 * f.w.after[g] + 2, 2 * f.w.before[g])
        inside = (f.first[g] <= instant) & (instant <= f.last[g])
        away = np.interp(clock[instant], clock[found.instant[a:b]], absent[a:b]) * inside
        load[instant % (2 * f.n)] -= f.w.size[g] * away
    excess: F64 = load / peak - found.level
    return excess


def _clock(f: Fluid, breaks: I64, found: Solution) -> F64:
    """When each instant comes, in ns; what a segment grows by spreads over its instants, and none are at once."""
    instant = np.arange(10 * f.n)
    turn, within = np.divmod(instant, 2 * f.n)
    grown = np.append(0.0, np.cumsum(found.stall))
    late = np.interp(within, np.append(breaks, breaks[0] + 2 * f.n), grown) + turn * grown[-1]
    clock: F64 = f.at(instant) + (late + instant if f.stalls else 0.0)
    return clock


def _split(f: Fluid, breaks: I64, found: Solution, over: F64, scale: float) -> I64:
    """Breakpoints to add: where the load is above the level, and amid the segments whose time is worth most."""
    more: list[int] = []
    for x in np.argsort(-over, kind="stable").tolist():
        if over[x] < FINE or len(more) >= MORE:
            break
        x = x if f.stalls else (x + 1) // 2 * 2 % (2 * f.n)
        if x not in breaks and all(abs(x - y) > 4 for y in more):
            more.append(x)
    if f.stalls:
        more += _crammed(found, scale)
    ends = np.append(breaks[1:], breaks[0] + 2 * f.n)
    for s in np.argsort(-found.price, kind="stable").tolist()[:MORE]:
        if found.price[s] < FINE / 4 * scale:
            break
        instants = np.arange(breaks[s] + 1, ends[s])
        instants = instants[f.stalls | (instants % 2 == 0)]
        if len(instants):
            middle = f.at(np.array([breaks[s], ends[s]])).sum() / 2
            more.append(int(instants[np.argmin(np.abs(f.at(instants) - middle))]) % (2 * f.n))
    return np.array(sorted(set(more) - set(breaks.tolist())), np.int64)


def _crammed(found: Solution, scale: float) -> list[int]:
    """Where copies run before their values are made, or after these are due."""
    where, missing = found.crammed
    order = np.argsort(-missing, kind="stable")
    most = order[missing[order] >= FINE / 4 * scale]
    return list(dict.fromkeys(where[most].tolist()))[:MORE]
