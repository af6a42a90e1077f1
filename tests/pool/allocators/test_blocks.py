"""Free ranges and how they merge, against a list that looks at each byte."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gpumem.pool.allocators._blocks import FreeRanges
from tests.pool.allocators.spans import EVENTS, run


@given(EVENTS, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_free_ranges_merge_within_their_segments(events: list[tuple[int, int, int]], segments: list[int]) -> None:
    free = FreeRanges()
    heads = [sum(segments[:k]) for k in range(len(segments))]
    for start, size in reversed(list(zip(heads, segments))):
        free.open(start, size)
    taken = [False] * sum(segments)
    for at, size, _ in events:
        pieces = naive_ranges(taken, heads)
        assert free.ranges() == pieces
        assert free.whole() == [piece for piece in pieces if piece in list(zip(heads, segments))]
        fits = [(room, start) for start, room in pieces if room >= size]
        assert free.best(size) == (min(fits)[1] if fits else None)
        assert free.lowest(size) == min((start for _, start in fits), default=None)
        assert free.from_size(size) == sorted(fits)
        at %= len(taken)
        if taken[at]:
            end = min([*[h for h in heads if h > at], len(taken)])
            span = run(taken[:end], at, size)
            merged = free.put(at, len(span))
            taken[at : span.stop] = [False] * len(span)
            assert merged == max(start for start, _ in naive_ranges(taken, heads) if start <= at)
        else:
            start, room = next((s, r) for s, r in pieces if s <= at < s + r)
            size = min(size, room)
            free.take(start, size)
            taken[start : start + size] = [True] * size


def naive_ranges(taken: list[bool], heads: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for i in range(len(taken)):
        if not taken[i] and ranges and sum(ranges[-1]) == i and i not in heads:
            ranges[-1] = ranges[-1][0], ranges[-1][1] + 1
        elif not taken[i]:
            ranges.append((i, 1))
    return ranges
