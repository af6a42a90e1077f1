"""Greedy recomputation: drop what frees most bytes for the time that it really takes, until few enough are live.

Worth is bytes per ns of recomputation. It is what a value would take alone, until it is tried: then it is what its drop
adds to all that is recomputed already. The best few over the highest peak are tried, the best of them is dropped.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.search._evaluate import State, evaluate, retime
from gpumem.swap.search._recompute_changes import drop, propagate, switch_variant
from gpumem.swap.search._recompute_state import RecomputeProblem, RecomputeState, compact_if_full, copy_drops
from gpumem.trace import F64

TRIES = 12  # gaps at one peak; not tuned


@jit
def drop_greedily(  # noqa: PLR0917  compiled: no keyword-only parameters
    recompute: RecomputeProblem, drops: RecomputeState, before: RecomputeState, worth: F64, goal: int, most: int
) -> int:
    """Drop values until at most `goal` bytes are live, or nothing helps; return how many of `most` tries are left.

    `before`: as `drops`, to go back to. `worth`, float64[m], is changed; 0: not to be dropped.
    """
    while most > 0:
        propagate(recompute, drops)
        peak = int(np.argmax(drops.occupied))
        if drops.occupied[peak] <= goal:
            return most
        compact_if_full(drops)
        copy_drops(recompute, before, drops)
        best, chosen, any_tried = 0.0, -1, False
        for _ in range(TRIES):
            gap = _most_promising(recompute, drops, worth, peak)
            # As lazy greedy does: nothing is lost where worth only falls with each drop, since the others are worth no
            # more than they were. One that shares a replay can rise, which is seen when it is tried the next time.
            # What was tried at this peak is worth no more than the best, so it is not tried twice.
            if gap < 0 or worth[gap] <= best:
                break
            any_tried = True
            most -= 1
            worth[gap] = _try_drop(recompute, drops, before, gap, peak=peak)
            if worth[gap] > best:
                best, chosen = worth[gap], gap
        if chosen >= 0:
            drop(recompute, drops, chosen, recompute.last_place[chosen])
        elif not any_tried:
            return most
    return 0


@inner
def _most_promising(recompute: RecomputeProblem, drops: RecomputeState, worth: F64, position: int) -> int:
    """The gap over a position that is worth most, -1 where there is none."""
    best, chosen = 0.0, -1
    after, last_place, recompute_at = recompute.columns.after, recompute.last_place, drops.choice.recompute_at
    for gap in recompute.droppable:
        # A drop frees bytes from behind its access up to its replay, nowhere else.
        frees = 2 * after[gap] + 1 < position < 2 * last_place[gap]
        if frees and worth[gap] > best and not recompute_at[gap]:
            best, chosen = worth[gap], gap
    return int(chosen)


@inner
def _try_drop(recompute: RecomputeProblem, drops: RecomputeState, before: RecomputeState, gap: int, peak: int) -> float:
    """Bytes per ns of a drop as things are; 0 where it cannot be, or where its replay needs as much as the peak."""
    worth, place = 0.0, recompute.last_place[gap]
    if drop(recompute, drops, gap, place):
        propagate(recompute, drops)
        if drops.occupied[2 * place] < before.occupied[peak]:
            added_ns = drops.added_ns.sum() - before.added_ns.sum()
            worth = recompute.columns.size[recompute.columns.buffer[gap]] / max(added_ns, 1)
    copy_drops(recompute, drops, before)
    return float(worth)


@jit
def speed_up_ops(state: State, recompute: RecomputeProblem, limit: int) -> None:
    """Run each op, which runs its smallest variant, by the fastest that exceeds a limit by no more than that one.

    Those that gain most come first: where copies need the time, not all can be faster.
    """
    drops, first, extra_ns = state.drops, recompute.variants.first, recompute.variants.extra_ns
    _, excess = _evaluate_drops(state, recompute, limit)
    for row in np.argsort(-extra_ns[drops.choice.variant], kind="mergesort"):
        current = drops.choice.variant[row]
        for variant in range(first[row], current):
            compact_if_full(drops)
            possible = switch_variant(recompute, drops, row, variant)
            _, excess_after = _evaluate_drops(state, recompute, limit)
            # It is never less: a faster op leaves less time to its copies, and has no smaller a workspace.
            if possible and excess_after <= excess:
                break
            switch_variant(recompute, drops, row, current)


@inner
def _evaluate_drops(state: State, recompute: RecomputeProblem, limit: int) -> tuple[float, int]:
    propagate(recompute, state.drops)
    retime(state)
    return evaluate(state, limit)
