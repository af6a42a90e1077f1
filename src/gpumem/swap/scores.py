"""AutoSwap's priority scores: how much a gap is worth swapping.

Time goes to the right::

    load |        ____
         |    ___/    \\__         DOA   gap - copy out - copy in
         |  _/  |      | \\_       AOA   DOA x size
         | /    |      |   \\      WDOA  area under the load in the gap
         +------a======b-------   SWDOA the same, under the load that earlier choices leave
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpumem.columns import F64, I64
from gpumem.swap.gaps import Gaps


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Gaps that may be swapped, and what the scores need to know of them.

    Parameters
    ----------
    gaps : Gaps
        m of them.
    size : int64[m]
        Bytes.
    gap_ns, out_ns, in_ns : int64[m]
        Time between the two accesses without swapping, and of the two copies.
    load : int64[n]
        Bytes held at each op, without swapping.
    duration : int64[n]
        Nanoseconds of each op.
    """

    gaps: Gaps
    size: I64
    gap_ns: I64
    out_ns: I64
    in_ns: I64
    load: I64
    duration: I64

    def __len__(self) -> int:
        return len(self.size)


def doa(c: Candidates) -> F64:
    """Duration of absence: nanoseconds between the accesses, less both copies (section IV-B i)."""
    return (c.gap_ns - c.out_ns - c.in_ns).astype(np.float64)


def aoa(c: Candidates) -> F64:
    """Area of absence: DOA times size where DOA is positive, else DOA over size (section IV-B ii)."""
    absence = doa(c)
    return np.where(absence >= 0, absence * c.size, absence / np.maximum(c.size, 1))


def wdoa(c: Candidates) -> F64:
    """Weighted duration of absence: byte-nanoseconds of load between the accesses (section IV-B iii)."""
    return _area(c, c.load)


def swdoa(c: Candidates) -> F64:
    """Submodular WDOA: take the gap with the largest WDOA, lower the load by it, repeat (section IV-B iv).

    A gap's score is its value when it is taken, so the order of the scores is the order of taking.
    O(m (n + m)) for m candidates.
    """
    load = c.load.astype(np.float64)
    score = np.full(len(c), -np.inf)
    left = np.ones(len(c), np.bool_)
    for _ in range(len(c)):
        area = np.where(left, _area(c, load), -np.inf)
        k = int(np.argmax(area))
        score[k], left[k] = area[k], False
        load[absent(c.gaps, k, len(load))] -= c.size[k]
    return score


SCORES: dict[str, Callable[[Candidates], F64]] = {"doa": doa, "aoa": aoa, "wdoa": wdoa, "swdoa": swdoa}


def absent(gaps: Gaps, k: int, n: int) -> I64:
    """Return the ops of gap `k`, those strictly between its accesses."""
    return np.arange(gaps.after[k] + 1, gaps.before[k]) % n


def _area(c: Candidates, load: I64 | F64) -> F64:
    """Area under `load` in each gap, in float64: bytes x nanoseconds overflow int64."""
    area = np.concatenate([[0.0], np.cumsum(np.tile(load.astype(np.float64) * c.duration, 2))])
    result: F64 = area[c.gaps.before] - area[c.gaps.after + 1]
    return result
