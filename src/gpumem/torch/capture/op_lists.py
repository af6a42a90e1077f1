"""The ops of an iteration as a list to compare, and the longest common part of two such lists."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpumem.trace import Csr, Trace


@dataclass(frozen=True, slots=True)
class ComparedOp:
    """What is compared of an op: where it stands, its name, the bytes of what it reads and writes, in their order."""

    phase: str
    module: str
    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def ops_of(trace: Trace) -> list[ComparedOp]:
    """Return the ops of a captured iteration; O(accesses)."""
    ops = trace.ops
    modules = ops.module or ("",) * trace.n
    phases = [str((here or {}).get("phase", "")) for here in ops.attributes or (None,) * trace.n]
    reads, writes = _sizes(trace, ops.reads), _sizes(trace, ops.writes)
    return [ComparedOp(*row) for row in zip(phases, modules, ops.name, reads, writes)]


def _sizes(trace: Trace, rows: Csr) -> list[tuple[int, ...]]:
    size, ptr = trace.buffers.size[rows.idx].tolist(), rows.ptr.tolist()
    return [tuple(size[lo:hi]) for lo, hi in pairwise(ptr)]


def in_common(first: Sequence[Hashable], second: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence of two lists, as pairs.

    Notes
    -----
    Hunt and Szymanski (1977): what is common is a rising sequence of places in `second`, over the pairs of places with
    equal entries. O(p log p) for p such pairs, which are few: an entry has its module, and ends that are alike are left
    out.

    Examples
    --------
    >>> in_common("abcd", "acxd")
    [(0, 0), (2, 1), (3, 3)]
    """
    least = min(len(first), len(second))
    begin = next((offset for offset in range(least) if first[offset] != second[offset]), least)
    end = next((offset for offset in range(least - begin) if first[-1 - offset] != second[-1 - offset]), least - begin)
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place in range(
        len(second) - end - 1, begin - 1, -1
    ):  # falling, so that a rising sequence takes one of them at most
        places[second[place]].append(place)
    pairs = [
        (first_place, place)
        for first_place in range(begin, len(first) - end)
        for place in places.get(first[first_place], ())
    ]
    between = [pairs[offset] for offset in rising([place for _, place in pairs])]
    last = [(len(first) - end + offset, len(second) - end + offset) for offset in range(end)]
    return [*((offset, offset) for offset in range(begin)), *between, *last]


def rising(values: Sequence[int]) -> list[int]:
    """Return the places of a longest strictly rising subsequence; O(n log n).

    >>> rising([3, 1, 2, 5, 4])
    [1, 2, 4]
    """
    tails: list[int] = []  # by length: the least value that a sequence so long ends with
    at: list[int] = []  # the place of that value
    before = []
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        tails[length : length + 1], at[length : length + 1] = [value], [place]
        before.append(at[length - 1] if length else -1)
    places, place = [], at[-1] if at else -1
    while place >= 0:
        places.append(place)
        place = before[place]
    return places[::-1]
