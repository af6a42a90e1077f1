"""Greedy recomputation: drop what gives most bytes for the time that it really takes, until the load has come down.

Worth is bytes per ns of what runs again. It is what a value would take alone, until it is tried: then it is what its
drop adds to all that is made again already. The best few over the highest load are tried, the best of them is dropped.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.search._evaluate import Evaluation, SwapProblem, SwapState, evaluate, retime
from gpumem.swap.search._recompute_changes import choose, drop, settle
from gpumem.swap.search._recompute_state import Drops, Replays, make_room, remember
from gpumem.trace import F64, Bool

TRIES = 12  # at one load


@jit
def relieve(r: Replays, d: Drops, was: Drops, worth: F64, goal: int, most: int) -> int:
    """Drop values until the load is at most `goal`, or nothing helps; return how many of `most` tries are left.

    `was`: as `d`, to go back to. `worth`, float64[m], is changed; 0: not to be dropped.
    """
    tried = np.zeros(len(worth), np.bool_)
    while most > 0:
        settle(r, d)
        top = int(np.argmax(d.held))
        if d.held[top] <= goal:
            return most
        make_room(d)
        remember(r, was, d)
        tried[:], best, chosen, some = False, 0.0, -1, False
        for _ in range(TRIES):
            g = _next(r, d, worth, tried, top)
            if g < 0 or worth[g] <= best:
                break
            tried[g] = some = True
            most -= 1
            worth[g] = _worth(r, d, was, g, top)
            if worth[g] > best:
                best, chosen = worth[g], g
        if chosen >= 0:
            drop(r, d, chosen, r.lasts[chosen])
        elif not some:
            return most
    return 0


@inner
def _next(r: Replays, d: Drops, worth: F64, tried: Bool, top: int) -> int:
    """The gap over a position that is worth most, of those that were not tried; -1 where there is none."""
    best, chosen, after, lasts, at = 0.0, -1, r.made.after, r.lasts, d.c.at
    for g in r.can:
        if worth[g] > best and not at[g] and not tried[g] and 2 * after[g] + 1 < top < 2 * lasts[g]:
            best, chosen = worth[g], g
    return int(chosen)


@inner
def _worth(r: Replays, d: Drops, was: Drops, g: int, top: int) -> float:
    """Bytes per ns of a drop as things are; 0 where it cannot be, or makes a load as high elsewhere."""
    worth = 0.0
    if drop(r, d, g, r.lasts[g]):
        settle(r, d)
        if d.held[2 * r.lasts[g]] < was.held[top]:
            worth = r.made.size[r.made.buffer[g]] / max(d.added.sum() - was.added.sum(), 1)
    remember(r, d, was)
    return float(worth)


@jit
def quicken(p: SwapProblem, r: Replays, d: Drops, s: SwapState, x: Evaluation, limit: int) -> None:
    """Run each op by its fastest way that makes the load no higher above a limit, those that gain most first."""
    first, longer = r.ways.first, r.ways.longer
    _, over = _look(p, r, d, s, x, limit)
    for k in np.argsort(-longer[d.c.by], kind="mergesort"):
        now = d.c.by[k]
        for way in range(first[k], now):
            make_room(d)
            fine = choose(r, d, k, way)
            after = _look(p, r, d, s, x, limit)[1]
            if fine and after <= over:
                over = after
                break
            choose(r, d, k, now)


@inner
def _look(p: SwapProblem, r: Replays, d: Drops, s: SwapState, x: Evaluation, limit: int) -> tuple[float, int]:
    settle(r, d)
    retime(p, d, s, x)
    return evaluate(p, d, s, x, limit)
