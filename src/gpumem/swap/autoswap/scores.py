"""AutoSwap's priority scores: how much a gap is worth swapping.

Time goes to the right::

    load |        ____
         |    ___/    \\__         DOA   gap - copy out - copy in
         |  _/  |      | \\_       AOA   DOA x size
         | /    |      |   \\      WDOA  area under the live bytes in the gap
         +------a======b-------   SWDOA the same, under the live bytes that earlier choices leave
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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

    `gap_ns`: time between the two accesses without swapping; `out_ns`, `in_ns`: of the two copies. `load`: live bytes
    at each op, `duration` in ns, `line`: the iteration without swapping. `peaks`: which peaks the gaps straddle.
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


def doa(candidates: Candidates) -> F64:
    """Duration of absence: nanoseconds between the accesses, less both copies (section IV-B i)."""
    return (candidates.gap_ns - candidates.out_ns - candidates.in_ns).astype(np.float64)


def aoa(candidates: Candidates) -> F64:
    """Area of absence: DOA times size where DOA is positive, else DOA over size (section IV-B ii)."""
    absence, size = doa(candidates), candidates.gaps.size
    return np.where(absence >= 0, absence * size, absence / np.maximum(size, 1))


def wdoa(candidates: Candidates) -> F64:
    """Weighted duration of absence: byte-nanoseconds of live bytes between the accesses (section IV-B iii)."""
    held = candidates.load.astype(np.float64) * candidates.duration  # as int64 bytes x nanoseconds would overflow
    area = np.concatenate([[0.0], np.cumsum(np.tile(held, 2))])  # twice round, since a gap may wrap
    result: F64 = area[candidates.gaps.before] - area[candidates.gaps.after + 1]
    return result


def swdoa(candidates: Candidates) -> F64:
    """Submodular WDOA: take the gap with the largest WDOA, lower the live bytes by it, repeat (section IV-B iv).

    A gap's score is its value when it is taken, so the order of the scores is the order of taking. Scores only
    fall as the live bytes do, hence the evaluation is lazy: O((n + m + r) log n) for m candidates, where r counts the
    scores at the top of the heap that had fallen since they were last evaluated.
    """
    score = np.zeros(len(candidates), np.int64)
    # Whole numbers, so that equal areas are equal; huge ones in units that keep them below 2**62.
    unit = int(float(candidates.load.max(initial=0)) * float(candidates.duration.sum()) / 2**62) + 1
    if len(candidates):
        tree = _AreaTree(*_tree.build_area(candidates.load // unit, candidates.duration), n=len(candidates.load))
        _submodular(candidates.gaps.after, candidates.gaps.before, candidates.gaps.size // unit, tree=tree, score=score)
    return score.astype(np.float64) * unit


SCORES: dict[str, Callable[[Candidates], F64]] = {"doa": doa, "aoa": aoa, "wdoa": wdoa, "swdoa": swdoa}


class _AreaTree(NamedTuple):
    """Byte-nanoseconds under the live bytes, as `segment_tree.build_area` returns them, over `n` ops."""

    area: I64
    wide: I64
    added: I64
    n: int


@jit
def _submodular(after: I64, before: I64, size: I64, tree: _AreaTree, score: I64) -> None:
    """Take gap by gap, always the one with the largest area, the earlier one of two; write their `score`."""
    heap = [(-_area(tree, after[gap] + 1, before[gap]), gap) for gap in range(len(size))]
    heapq.heapify(heap)
    while len(heap) > 0:
        gap = heap[0][1]
        area = _area(tree, after[gap] + 1, before[gap])
        heapq.heapreplace(heap, (-area, gap))
        if heap[0][1] != gap:  # it has fallen behind another one, whose score may be out of date as well
            continue
        heapq.heappop(heap)
        score[gap] = area
        _lower(tree, after[gap] + 1, before[gap], size[gap])


@inner
def _area(tree: _AreaTree, start: int, stop: int) -> int:
    """The area of the ops `[start, stop)`, which may wrap."""
    columns, n = (tree.area, tree.wide, tree.added), tree.n
    area: int = _tree.area_of(*columns, start, min(stop, n)) + _tree.area_of(*columns, max(start - n, 0), stop - n)
    return area


@inner
def _lower(tree: _AreaTree, start: int, stop: int, size: int) -> None:
    """Take `size` bytes off the live bytes of the ops `[start, stop)`, which may wrap."""
    columns, n = (tree.area, tree.wide, tree.added), tree.n
    _tree.add_to_area(*columns, start, min(stop, n), -size)
    _tree.add_to_area(*columns, max(start - n, 0), stop - n, -size)
