"""Trees over the steps of an iteration: add to a range, ask for its largest value or area, or what is above a bound.

Node `p` has the children `2 p` and `2 p + 1`; leaf `i` is node `half + 1 + i`, so that a range always has a
neighbour on both sides. What is added to a whole subtree is noted at its root (`add`) and stays there: whoever
comes up from below takes it along. Areas are sums, so prefixes of them do. Each call costs O(log n).
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.trace import I64

LOW = -(2**62)


def build(values: I64) -> tuple[I64, I64]:
    """Return `top` (the largest value below each node) and `add` of a tree over `values`."""
    half = 1 << int(len(values) + 1).bit_length()
    top = np.full(2 * half, LOW, np.int64)
    top[half + 1 : half + 1 + len(values)] = values
    for level in range(half.bit_length() - 2, -1, -1):
        a, b = 1 << level, 2 << level
        top[a:b] = np.maximum(top[2 * a : 2 * b : 2], top[2 * a + 1 : 2 * b : 2])
    return top, np.zeros(2 * half, np.int64)


def build_area(values: I64, width: I64) -> tuple[I64, I64, I64]:
    """Return area (value times width) and width before each step, and `added`: what `add_to_area` notes.

    That is a pair of Fenwick trees: what values rise by from each step on, and the same times the width before it.
    """
    area, wide = (np.concatenate([[0], np.cumsum(column)]).astype(np.int64) for column in (values * width, width))
    return area, wide, np.zeros((2, len(area) + 1), np.int64)


@jit
def add_to(top: I64, add: I64, start: int, stop: int, x: int) -> None:
    """Add `x` to the steps `[start, stop)`."""
    if start >= stop:
        return
    s, t = len(top) // 2 + start, len(top) // 2 + 1 + stop
    while s ^ t != 1:
        if s % 2 == 0:
            top[s + 1] += x
            add[s + 1] += x
        if t % 2 == 1:
            top[t - 1] += x
            add[t - 1] += x
        s, t = s // 2, t // 2
        top[s] = max(top[2 * s], top[2 * s + 1]) + add[s]
        top[t] = max(top[2 * t], top[2 * t + 1]) + add[t]
    while s > 1:
        s //= 2
        top[s] = max(top[2 * s], top[2 * s + 1]) + add[s]


@jit
def largest(top: I64, add: I64, start: int, stop: int) -> int:
    """Return the largest value of the steps `[start, stop)`; of none, a very low one."""
    if start >= stop:
        return LOW
    s, t = len(top) // 2 + start, len(top) // 2 + 1 + stop
    left, right = LOW, LOW
    while s ^ t != 1:
        if s % 2 == 0:
            left = max(left, top[s + 1])
        if t % 2 == 1:
            right = max(right, top[t - 1])
        s, t = s // 2, t // 2
        left += add[s]
        right += add[t]
    best = max(left, right)
    while s > 1:
        s //= 2
        best += add[s]
    return best


@jit
def first_largest(top: I64, add: I64) -> int:
    """Return the first step that has the largest value."""
    p, half = 1, len(top) // 2
    while p < half:
        p = 2 * p if top[2 * p] >= top[2 * p + 1] else 2 * p + 1
    return p - half - 1


def values(top: I64, add: I64, n: int) -> I64:
    """Return the values of the first `n` steps; O(n)."""
    half, above = len(top) // 2, np.zeros(1, np.int64)
    for level in range(half.bit_length() - 1):
        above = np.repeat(above + add[1 << level : 2 << level], 2)
    found: I64 = (top[half:] + above)[1 : n + 1]
    return found


@jit
def above(top: I64, add: I64, start: int, stop: int, bound: int, last: bool) -> int:
    """Return the first or the `last` step of `[start, stop)` whose value is above `bound`, -1 if there is none.

    From the root down, back where a subtree has none; only the two at the ends of the range can disappoint.
    """
    p, low, wide, noted, far = 1, -1, len(top) // 2, 0, int(last)  # `noted` above `p`, whose steps are `low` and on
    while True:
        if low < stop and low + wide > start and top[p] + noted > bound:
            if wide == 1:
                return low
            noted, wide, p = noted + add[p], wide // 2, 2 * p + far
            low += far * wide
            continue
        while p > 1 and p % 2 != far:  # both children have been looked at
            low, wide, p = low - p % 2 * wide, 2 * wide, p // 2
            noted -= add[p]
        if p == 1:
            return -1
        p, low = p ^ 1, low + (1 - 2 * far) * wide


@jit
def above_around(top: I64, add: I64, n: int, start: int, stop: int, bound: int, last: bool) -> int:
    """As `above`, of the circle of `n`, `stop - start <= n`; steps count on from `start`."""
    first = start - start % n
    a, b = start - first, stop - first
    for turn in (1, 0) if last else (0, 1):
        found = above(top, add, 0 if turn else a, b - n if turn else min(b, n), bound, last)
        if found >= 0:
            return first + turn * n + found
    return -1


@jit
def add_around(top: I64, add: I64, n: int, start: int, stop: int, x: int) -> None:
    """Add `x` to the steps `[start, stop)` of the circle of `n`, `stop - start <= n`."""
    first = start - start % n
    a, b = start - first, stop - first
    add_to(top, add, a, min(b, n), x)
    add_to(top, add, 0, b - n, x)


@jit
def largest_around(top: I64, add: I64, n: int, start: int, stop: int) -> int:
    """Return the largest value of the steps `[start, stop)` of the circle of `n`, `stop - start <= n`."""
    first = start - start % n
    a, b = start - first, stop - first
    return max(largest(top, add, a, min(b, n)), largest(top, add, 0, b - n))


@jit
def add_to_area(area: I64, wide: I64, added: I64, start: int, stop: int, x: int) -> None:
    """Add `x` to the values of the steps `[start, stop)`."""
    if start >= stop:
        return
    for step, more in ((start, x), (stop, -x)):
        k = step + 1
        while k < added.shape[1]:
            added[0, k] += more
            added[1, k] += more * wide[step]
            k += k & -k


@jit
def area_of(area: I64, wide: I64, added: I64, start: int, stop: int) -> int:
    """Return the area of the steps `[start, stop)`."""
    if start >= stop:
        return 0
    return _area_before(area, wide, added, stop) - _area_before(area, wide, added, start)


@inner
def _area_before(area: I64, wide: I64, added: I64, step: int) -> int:
    total, k = area[step], step
    while k > 0:
        total += added[0, k] * wide[step] - added[1, k]
        k -= k & -k
    return int(total)
