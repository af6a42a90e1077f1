"""AutoSwap's priority scores: how much a gap is worth swapping.

Time goes to the right::

    load |        ____
         |    ___/    \\__         DOA   gap - copy out - copy in
         |  _/  |      | \\_       AOA   DOA x size
         | /    |      |   \\      WDOA  area under the load in the gap
         +------a======b-------   SWDOA the same, under the load that earlier choices leave
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpumem.base.display import Shown
from gpumem.base.jit import inner, jit
from gpumem.simulator.timeline import Timeline
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.plan.gaps import Gaps
from gpumem.trace import F64, I64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Candidates(Shown):
    """Gaps that may be swapped, and what the scores need to know of them: m gaps, n ops.

    `gap_ns`: time between the two accesses without swapping; `out_ns`, `in_ns`: of the two copies. `load` in bytes,
    `duration` in ns, `line`: the iteration without swapping. `peaks`: which peaks the gaps straddle.
    """

    gaps: Gaps
    gap_ns: I64
    out_ns: I64
    in_ns: I64
    load: I64
    duration: I64
    line: Timeline
    peaks: str

    def __len__(self) -> int:
        return len(self.gaps)


def doa(c: Candidates) -> F64:
    """Duration of absence: nanoseconds between the accesses, less both copies (section IV-B i)."""
    return (c.gap_ns - c.out_ns - c.in_ns).astype(np.float64)


def aoa(c: Candidates) -> F64:
    """Area of absence: DOA times size where DOA is positive, else DOA over size (section IV-B ii)."""
    absence = doa(c)
    return np.where(absence >= 0, absence * c.gaps.size, absence / np.maximum(c.gaps.size, 1))


def wdoa(c: Candidates) -> F64:
    """Weighted duration of absence: byte-nanoseconds of load between the accesses (section IV-B iii)."""
    held = c.load.astype(np.float64) * c.duration  # bytes x nanoseconds overflow int64
    area = np.concatenate([[0.0], np.cumsum(np.tile(held, 2))])
    result: F64 = area[c.gaps.before] - area[c.gaps.after + 1]
    return result


def swdoa(c: Candidates) -> F64:
    """Submodular WDOA: take the gap with the largest WDOA, lower the load by it, repeat (section IV-B iv).

    A gap's score is its value when it is taken, so the order of the scores is the order of taking. Scores only
    fall as the load does, hence the evaluation is lazy: O((n + m + r) log n) for m candidates, where r counts the
    scores at the top of the heap that had fallen since they were last looked at.
    """
    score = np.zeros(len(c), np.int64)
    # Whole numbers, so that equal areas are equal; of huge loads in units that keep them below 2**62.
    unit = int(float(c.load.max(initial=0)) * float(c.duration.sum()) / 2**62) + 1
    if len(c):
        tree = _tree.build_area(c.load // unit, c.duration)
        _submodular(c.gaps.after, c.gaps.before, c.gaps.size // unit, *tree, len(c.load), score)
    return score.astype(np.float64) * unit


SCORES: dict[str, Callable[[Candidates], F64]] = {"doa": doa, "aoa": aoa, "wdoa": wdoa, "swdoa": swdoa}


@jit
def _submodular(after: I64, before: I64, size: I64, area: I64, wide: I64, add: I64, n: int, score: I64) -> None:
    """Take gap by gap, always the one with the largest area, the earlier one of two; write their `score`."""
    heap = [(-_within(area, wide, add, n, after[k] + 1, before[k]), k) for k in range(len(size))]
    heapq.heapify(heap)
    while len(heap) > 0:
        k = heap[0][1]
        now = _within(area, wide, add, n, after[k] + 1, before[k])
        heapq.heapreplace(heap, (-now, k))
        if heap[0][1] != k:
            continue  # it has fallen behind another one
        heapq.heappop(heap)
        score[k] = now
        _tree.add_to_area(area, wide, add, after[k] + 1, min(before[k], n), -size[k])
        _tree.add_to_area(area, wide, add, max(after[k] + 1 - n, 0), before[k] - n, -size[k])


@inner
def _within(area: I64, wide: I64, add: I64, n: int, start: int, stop: int) -> int:
    """The area of the steps `[start, stop)` of the circle."""
    return _tree.area_of(area, wide, add, start, min(stop, n)) + _tree.area_of(
        area, wide, add, max(start - n, 0), stop - n
    )
