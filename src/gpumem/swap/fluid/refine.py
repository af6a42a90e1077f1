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

# Breakpoints to begin with, and how many of each kind a round adds. Not tuned: any choice gives a valid bound.
FIRST, MORE = 32, 20
# Of the peak: live bytes this far above the level call for a breakpoint, a quarter of it is a gain. Not tuned.
FINE = 2e-4
# Rounds without a gain before refinement may stop. Not tuned: a lower one stops earlier at a looser bound.
PATIENCE = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Refined(Shown):
    """What became of it: the largest `dual`, the breakpoints that there are then, whether it is `has_converged`.

    `last`: the solution of the last program, None where the time was up before the first.
    """

    dual: float
    breaks: I64
    has_converged: bool
    last: Solution | None


def refine(fluid: Fluid, peak: int, limit: int | None, rounds: int, size: int) -> Refined:
    """Solve, add breakpoints, solve again; every round's dual is a bound, the largest counts.

    `fluid` in a program for `limit`, or for the least level where that is None; at most `rounds` programs, none
    after one of more than `size` variables, until the time is up: 0, which nothing is below, if before the first.
    """
    breaks, best, idle, last = _first(fluid), 0.0, 0, None
    for _ in work.each(range(rounds)):
        program = FlowProgram(fluid, breaks, peak, limit)
        solution = program.solve()
        if solution is None:
            break
        last = solution
        scale = float(max(fluid.time[-1], 1)) if limit is not None else 1.0  # a turn of no time has no parts
        idle = idle + 1 if solution.dual - best < FINE / 4 * scale else 0
        best = max(best, solution.dual)
        work.tell(f"{len(breaks)} breakpoints: " + (f"{best:.2%} of the peak" if limit is None else f"{best:.0f} ns"))
        over = _over(fluid, breaks, solution, peak)
        if work.over():
            break
        more = _split(fluid, breaks, solution, over, scale)
        missing = max(over.max(), solution.crammed[1].max(initial=0.0) / scale if fluid.stalls else 0.0)
        has_converged = not len(more) or (idle >= PATIENCE and missing < 5 * FINE)
        if has_converged or idle > PATIENCE or program.rows.columns > size:
            return Refined(best, breaks, bool(has_converged), last)
        breaks = np.union1d(breaks, more)
    return Refined(best, breaks, False, last)


def _first(fluid: Fluid) -> I64:
    """Breakpoints to begin with: all if they are few; else even in time, and where most is held."""
    if fluid.n <= FIRST:
        return np.arange(0, 2 * fluid.n, 1 if fluid.stalls else 2)
    even = np.searchsorted(fluid.time, np.linspace(0, fluid.time[-1], FIRST, endpoint=False), side="right") - 1
    top = int(np.argmax(fluid.held))
    return np.unique(2 * np.append(np.clip(even, 0, fluid.n - 1), [top, (top + 1) % fluid.n]))


def _over(fluid: Fluid, breaks: I64, solution: Solution, peak: int) -> F64:
    """By how much each instant's live bytes are above the level, where absence changes linearly between breakpoints.

    Of no use where the time was up before all gaps were looked at.
    """
    load, absent, clock = (
        np.repeat(fluid.held, 2).astype(np.float64),
        solution.absent + solution.dropped,
        _clock(fluid, breaks, solution),
    )
    starts = np.flatnonzero(np.diff(solution.gap, prepend=-1))
    for begin, end in work.each(zip(starts.tolist(), np.append(starts[1:], len(solution.gap)).tolist())):
        gap = solution.gap[begin]
        instant = np.arange(2 * fluid.w.after[gap] + 2, 2 * fluid.w.before[gap])
        inside = (fluid.first[gap] <= instant) & (instant <= fluid.last[gap])
        off_device = np.interp(clock[instant], clock[solution.instant[begin:end]], absent[begin:end]) * inside
        load[instant % (2 * fluid.n)] -= fluid.w.size[gap] * off_device
    excess: F64 = load / peak - solution.level
    return excess


def _clock(fluid: Fluid, breaks: I64, solution: Solution) -> F64:
    """When each instant comes, in ns; what a segment grows by spreads over its instants, and none are at once."""
    instant = np.arange(10 * fluid.n)
    turn, within = np.divmod(instant, 2 * fluid.n)
    grown = np.append(0.0, np.cumsum(solution.stall))
    late = np.interp(within, np.append(breaks, breaks[0] + 2 * fluid.n), grown) + turn * grown[-1]
    clock: F64 = fluid.at(instant) + (late + instant if fluid.stalls else 0.0)
    return clock


def _split(fluid: Fluid, breaks: I64, solution: Solution, over: F64, scale: float) -> I64:
    """Breakpoints to add: where live bytes are above the level, and amid the segments whose time is worth most."""
    more: list[int] = []
    for instant in np.argsort(-over, kind="stable").tolist():
        if over[instant] < FINE or len(more) >= MORE:
            break
        instant = instant if fluid.stalls else (instant + 1) // 2 * 2 % (2 * fluid.n)
        if instant not in breaks and all(abs(instant - other) > 4 for other in more):
            more.append(instant)
    if fluid.stalls:
        more += _crammed(solution, scale)
    ends = np.append(breaks[1:], breaks[0] + 2 * fluid.n)
    for segment in np.argsort(-solution.price, kind="stable").tolist()[:MORE]:
        if solution.price[segment] < FINE / 4 * scale:
            break
        instants = np.arange(breaks[segment] + 1, ends[segment])
        instants = instants[fluid.stalls | (instants % 2 == 0)]
        if len(instants):
            middle = fluid.at(np.array([breaks[segment], ends[segment]])).sum() / 2
            more.append(int(instants[np.argmin(np.abs(fluid.at(instants) - middle))]) % (2 * fluid.n))
    return np.array(sorted(set(more) - set(breaks.tolist())), np.int64)


def _crammed(solution: Solution, scale: float) -> list[int]:
    """Where copies run before their values are made, or after these are due."""
    where, missing = solution.crammed
    order = np.argsort(-missing, kind="stable")
    most = order[missing[order] >= FINE / 4 * scale]
    return list(dict.fromkeys(where[most].tolist()))[:MORE]
