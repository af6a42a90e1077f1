"""Trees over the steps of an iteration: add to a range, ask for its largest value or area, or what is above a bound.

Node `p` has the children `2 p` and `2 p + 1`; leaf `i` is node `half + 1 + i`, so that a range always has a
neighbour on both sides. What is added to a whole subtree is noted at its root (`add`) and stays there: whoever
comes up from below takes it along. Areas are sums, so prefixes of them do. Each call costs O(log n).
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.trace import I64

# Below every value; half of int64's range, so that what is added to a node without steps does not overflow.
LOW = -(2**62)


def build(values: I64) -> tuple[I64, I64]:
    """Return `top` (the largest value below each node) and `add` of a tree over `values`."""
    half = 1 << int(len(values) + 1).bit_length()
    top = np.full(2 * half, LOW, np.int64)
    top[half + 1 : half + 1 + len(values)] = values
    for level in range(half.bit_length() - 2, -1, -1):
        first, stop = 1 << level, 2 << level
        top[first:stop] = np.maximum(top[2 * first : 2 * stop : 2], top[2 * first + 1 : 2 * stop : 2])
    return top, np.zeros(2 * half, np.int64)


def build_area(values: I64, width: I64) -> tuple[I64, I64, I64]:
    """Return area (value times width) and width before each step, and `added`: what `add_to_area` notes.

    That is a pair of Fenwick trees: what values rise by from each step on, and the same times the width before it.
    """
    area, wide = (np.concatenate([[0], np.cumsum(column)]).astype(np.int64) for column in (values * width, width))
    return area, wide, np.zeros((2, len(area) + 1), np.int64)


@jit
def add_to(top: I64, add: I64, start: int, stop: int, amount: int) -> None:
    """Add `amount` to the steps `[start, stop)`."""
    if start >= stop:
        return
    left, right = len(top) // 2 + start, len(top) // 2 + 1 + stop
    while left ^ right != 1:
        if left % 2 == 0:
            top[left + 1] += amount
            add[left + 1] += amount
        if right % 2 == 1:
            top[right - 1] += amount
            add[right - 1] += amount
        left, right = left // 2, right // 2
        top[left] = max(top[2 * left], top[2 * left + 1]) + add[left]
        top[right] = max(top[2 * right], top[2 * right + 1]) + add[right]
    while left > 1:
        left //= 2
        top[left] = max(top[2 * left], top[2 * left + 1]) + add[left]


@jit
def largest(top: I64, add: I64, start: int, stop: int) -> int:
    """Return the largest value of the steps `[start, stop)`; of none, a very low one."""
    if start >= stop:
        return LOW
    low, high = len(top) // 2 + start, len(top) // 2 + 1 + stop
    most_left, most_right = LOW, LOW
    while low ^ high != 1:
        if low % 2 == 0:
            most_left = max(most_left, top[low + 1])
        if high % 2 == 1:
            most_right = max(most_right, top[high - 1])
        low, high = low // 2, high // 2
        most_left += add[low]
        most_right += add[high]
    best = max(most_left, most_right)
    while low > 1:
        low //= 2
        best += add[low]
    return best


@jit
def first_largest(top: I64, add: I64) -> int:
    """Return the first step that has the largest value."""
    node, half = 1, len(top) // 2
    while node < half:
        node = 2 * node if top[2 * node] >= top[2 * node + 1] else 2 * node + 1
    return node - half - 1


def values(top: I64, add: I64, steps: int) -> I64:
    """Return the values of the first `steps` steps; O(n)."""
    half, above = len(top) // 2, np.zeros(1, np.int64)
    for level in range(half.bit_length() - 1):
        above = np.repeat(above + add[1 << level : 2 << level], 2)
    summed: I64 = (top[half:] + above)[1 : steps + 1]
    return summed


@jit
def above(  # noqa: PLR0917  compiled: no keyword-only parameters
    top: I64, add: I64, start: int, stop: int, bound: int, last: bool
) -> int:
    """Return the first or the `last` step of `[start, stop)` whose value is above `bound`, -1 if there is none.

    From the root down, back where a subtree has none; only the two at the ends of the range can disappoint.
    """
    node, low, wide, noted, far = 1, -1, len(top) // 2, 0, int(last)  # `noted` above `p`, whose steps are `low` and on
    while True:
        if low < stop and low + wide > start and top[node] + noted > bound:
            if wide == 1:
                return low
            noted, wide, node = noted + add[node], wide // 2, 2 * node + far
            low += far * wide
            continue
        while node > 1 and node % 2 != far:  # both children have been looked at
            low, wide, node = low - node % 2 * wide, 2 * wide, node // 2
            noted -= add[node]
        if node == 1:
            return -1
        node, low = node ^ 1, low + (1 - 2 * far) * wide


@jit
def above_around(  # noqa: PLR0917  compiled: no keyword-only parameters
    top: I64, add: I64, steps: int, start: int, stop: int, bound: int, last: bool
) -> int:
    """As `above`, of the circle of `steps`, `stop - start <= n`; steps count on from `start`."""
    first = start - start % steps
    low, high = start - first, stop - first
    for turn in (1, 0) if last else (0, 1):
        begin, end = (0, high - steps) if turn else (low, min(high, steps))
        step = above(top, add, begin, end, bound=bound, last=last)
        if step >= 0:
            return first + turn * steps + step
    return -1


@jit
def add_around(  # noqa: PLR0917  compiled: no keyword-only parameters
    top: I64, add: I64, steps: int, start: int, stop: int, amount: int
) -> None:
    """Add `amount` to the steps `[start, stop)` of the circle of `steps`, `stop - start <= n`."""
    first = start - start % steps
    low, high = start - first, stop - first
    add_to(top, add, low, min(high, steps), amount=amount)
    add_to(top, add, 0, high - steps, amount=amount)


@jit
def largest_around(top: I64, add: I64, steps: int, start: int, stop: int) -> int:
    """Return the largest value of the steps `[start, stop)` of the circle of `steps`, `stop - start <= n`."""
    first = start - start % steps
    low, high = start - first, stop - first
    return max(largest(top, add, low, min(high, steps)), largest(top, add, 0, high - steps))


@jit
def add_to_area(  # noqa: PLR0917  compiled: no keyword-only parameters
    area: I64, wide: I64, added: I64, start: int, stop: int, amount: int
) -> None:
    """Add `amount` to the values of the steps `[start, stop)`."""
    if start >= stop:
        return
    for step, more in ((start, amount), (stop, -amount)):
        node = step + 1
        while node < added.shape[1]:
            added[0, node] += more
            added[1, node] += more * wide[step]
            node += node & -node


@jit
def area_of(area: I64, wide: I64, added: I64, start: int, stop: int) -> int:
    """Return the area of the steps `[start, stop)`."""
    if start >= stop:
        return 0
    return _area_before(area, wide, added, stop) - _area_before(area, wide, added, start)


@inner
def _area_before(area: I64, wide: I64, added: I64, step: int) -> int:
    total, node = area[step], step
    while node > 0:
        total += added[0, node] * wide[step] - added[1, node]
        node -= node & -node
    return int(total)
