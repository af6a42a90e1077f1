"""What tests ask of allocators, and what they read off them."""

from __future__ import annotations

from hypothesis import strategies as st

from gpumem.pool.allocators.protocol import Allocator, Pool

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.one_of(
    st.integers(1, 3000),
    st.sampled_from([512, 513, 2 * KIB, 512 * KIB, MIB - 511, MIB, MIB + 1, 2 * MIB, 5 * MIB, 10 * MIB - 1, 10 * MIB]),
    st.integers(1, 24).map(lambda m: m * MIB),
)
Request = tuple[bool, int, int]  # allocate? the size or which live block; the stream
REQUESTS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 2)), max_size=40)


def footprint(allocator: Pool) -> tuple[int, int]:
    """Bytes reserved now and at most, in MiB."""
    reserved = allocator.statistics.reserved
    return reserved.current // MIB, reserved.peak // MIB


def waits(allocator: Pool) -> list[None]:
    """A list that grows by one whenever the allocator waits for all streams."""
    counted: list[None] = []
    allocator.synchronize = lambda: counted.append(None)
    return counted


def play(allocator: Allocator, requests: list[Request]) -> list[int]:
    """Make the requests, then free what is left; return all offsets, -1 where there was no room."""
    live: list[int] = []
    offsets = []
    for fresh, size, stream in requests:
        if fresh:
            try:
                live.append(allocator.allocate(size, stream=stream))
                offsets.append(live[-1])
            except MemoryError:
                offsets.append(-1)
        elif live:
            allocator.free(live.pop(size % len(live)), stream=stream)
    for offset in live:
        allocator.free(offset)
    return offsets
