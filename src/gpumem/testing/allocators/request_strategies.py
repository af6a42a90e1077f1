"""Hypothesis strategies of requests to allocators."""

from __future__ import annotations

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("gpumem.testing needs Hypothesis: pip install 'gpumem[test]'") from missing

from gpumem.testing.allocators.patterns import UNITS
from gpumem.testing.requests import Allocate, Free


def request_sizes(max_size: int) -> st.SearchStrategy[int]:
    """Draw sizes in [1, max_size]: often next to a multiple of a rounding unit, or to a part of the largest."""
    beside = {unit * multiple + distance for unit in UNITS for multiple in (1, 2, 3, 4) for distance in (-1, 0, 1)}
    parts = {max_size // multiple + distance for multiple in range(1, 13) for distance in (-1, 0, 1)}
    return st.sampled_from(sorted(size for size in beside | parts if 1 <= size <= max_size)) | st.integers(1, max_size)


@st.composite
def requests(
    draw: st.DrawFn,
    *,
    max_size: int = 2**26,
    max_requests: int = 40,
    streams: int = 2,
    sizes: st.SearchStrategy[int] | None = None,
) -> list[Allocate | Free]:
    """Draw a legal sequence of requests to an online allocator.

    Parameters
    ----------
    max_size : int
        Bytes of one request at most.
    max_requests : int
    streams : int
        Streams that blocks are allocated for and freed on.
    sizes : SearchStrategy of int, optional
        Bytes of a request; by default `request_sizes(max_size)`.

    Returns
    -------
    SearchStrategy of list of Allocate or Free
        A `Free` refers to the number `block` of an earlier `Allocate`, each at most once. `play` performs them and
        leaves out the `Free` of what was refused.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=20, derandomize=True, database=None, deadline=None)
    ... @given(requests(max_size=1000))
    ... def no_block_is_freed_before_it_is_made(requests):
    ...     made = set()
    ...     for request in requests:
    ...         made.add(request.block) if isinstance(request, Allocate) else made.remove(request.block)
    >>> no_block_is_freed_before_it_is_made()
    """
    ask = st.tuples(sizes or request_sizes(max_size), st.integers(0, streams - 1))
    give = st.tuples(st.integers(0, 7), st.integers(0, streams - 1))
    steps = draw(
        st.lists(
            ask.map(lambda drawn: ("ask", *drawn)) | give.map(lambda drawn: ("give", *drawn)), max_size=max_requests
        )
    )
    drawn_requests: list[Allocate | Free] = []
    live: list[int] = []
    made = 0
    for kind, number, stream in steps:
        if kind == "ask":
            drawn_requests.append(Allocate(made, number, stream))
            live.append(made)
            made += 1
        elif live:
            drawn_requests.append(Free(live.pop(number % len(live)), stream))
    return drawn_requests
