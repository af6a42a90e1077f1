"""Which gaps are swapped, in which order each engine copies, and random draws."""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inner, jit
from gpumem.swap.search._evaluate import IN, OUT, SwapProblem, SwapState
from gpumem.swap.search._recompute_state import RecomputeState
from gpumem.trace import I64

# Lehmer's generator, Park and Miller's "minimal standard" with the factor that they recommended later.
# Its state is the caller's: NumPy's global one is another in compiled code, which no seed outside reaches.
MODULUS, FACTOR = 2**31 - 1, 48271
SHIFT = 3  # places that a copy moves within its engine's order, at most; not tuned


class Key(NamedTuple):
    """By which an engine's copies are ordered where none has been moved: gap `g` by `time[at[g] // per]`."""

    time: I64  # ns, of each op
    at: I64  # of each gap: an op, or a position
    per: int  # 1 for ops, 2 for positions


@inner
def draw(random: I64, below: int) -> int:
    """Return a random integer in [0, below)."""
    random[0] = random[0] * FACTOR % MODULUS
    drawn: int = random[0] % below
    return drawn


@jit
def toggle(problem: SwapProblem, drops: RecomputeState, swaps: SwapState, gap: int) -> None:
    """Select a gap, or unselect it; a value is copied out in its first selected gap, unless the host has it."""
    value = problem.value[gap]
    copied_before = _copied_by(problem, swaps, value)
    swaps.selected[gap] = not swaps.selected[gap]
    copied_by = _copied_by(problem, swaps, value)
    if copied_by != copied_before:
        if copied_before >= 0:
            swaps.lengths[OUT] = remove(swaps.outs, swaps.lengths[OUT], copied_before)
        if copied_by >= 0:
            swaps.lengths[OUT] = insert(swaps.outs, swaps.lengths[OUT], copied_by, Key(problem.end, problem.after, 1))
        for other in range(problem.first[value], problem.last[value]):
            swaps.copied_by[other] = copied_by
    if swaps.selected[gap]:
        swaps.lengths[IN] = insert(swaps.ins, swaps.lengths[IN], gap, Key(problem.begin, drops.due, 2))
    else:
        swaps.lengths[IN] = remove(swaps.ins, swaps.lengths[IN], gap)


@inner
def reorder(problem: SwapProblem, drops: RecomputeState, swaps: SwapState, gap: int) -> None:
    """Sort a copy-in anew, whose gap has another deadline now."""
    count = remove(swaps.ins, swaps.lengths[IN], gap)
    swaps.lengths[IN] = insert(swaps.ins, count, gap, Key(problem.begin, drops.due, 2))


@inner
def _copied_by(problem: SwapProblem, swaps: SwapState, value: int) -> int:
    for gap in range(problem.first[value], problem.last[value]):
        if swaps.selected[gap]:
            return gap if problem.out_ns[gap] > 0 else -1
    return -1


@inner
def remove(order: I64, count: int, gap: int) -> int:
    """Take a gap out of an order; return how many are left."""
    left = 0
    for turn in range(count):
        if order[turn] != gap:
            order[left] = order[turn]
            left += 1
    return left


@inner
def insert(order: I64, count: int, gap: int, key: Key) -> int:
    """Put a gap behind the last one whose key is lower, ties by index; return how many there are then.

    From the end: copies that were moved may be out of order, and the last ones stay where they are.
    """
    turn, moment = count, key.time[key.at[gap] // key.per]
    while turn > 0:
        other = key.time[key.at[order[turn - 1]] // key.per]
        if other < moment or (other == moment and order[turn - 1] < gap):
            break  # the last one with a lower key; what lies before it stays, in whatever order
        order[turn] = order[turn - 1]
        turn -= 1
    order[turn] = gap
    return count + 1


@inner
def shift(order: I64, count: int, random: I64) -> None:
    """Move one copy by up to three places."""
    if count < 2:
        return
    turn = draw(random, count)
    target = min(max(turn + (1 + draw(random, SHIFT)) * (1 if draw(random, 2) else -1), 0), count - 1)
    gap = order[turn]
    while turn != target:
        step = 1 if target > turn else -1
        order[turn] = order[turn + step]
        turn += step
    order[target] = gap
