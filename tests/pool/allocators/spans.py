"""Bytes of a small arena that are taken and freed one after another, by streams."""

from __future__ import annotations

from hypothesis import strategies as st

EVENTS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 6), st.integers(0, 2)), min_size=12, max_size=40)


def run(taken: list[bool], start: int, size: int) -> range:
    """The bytes from `start` on, at most `size`, that are all free or all taken."""
    end = start
    while end < min(start + size, len(taken)) and taken[end] == taken[start]:
        end += 1
    return range(start, end)
