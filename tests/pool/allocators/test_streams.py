"""Waterwave's allocator: by hand, against a naive list of chunks, and under a trace's own order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from gpumem import bundled, check
from gpumem.jobs.waterwave import co_schedule, partition, pipeline
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.allocators.streams import MultiStream
from gpumem.simulator.machine import Machine
from gpumem.testing import Witness
from gpumem.trace import Buffers, Ops, Trace
from tests.pool.allocators.naive_log import timed_log
from tests.requests import KIB, MIB, waits
from tests.strategies import traces


def arena(chunks: int) -> MultiStream:
    """All of its memory from the start, in chunks of 256 bytes."""
    return MultiStream(capacity=256 * chunks, allow_growth=False)


# By hand


def test_its_own_come_first_then_the_synchronised_ones_then_a_sync() -> None:
    pool = arena(8)
    waited = waits(pool)
    a, b, c = (pool.allocate(256 * size, stream=stream) for size, stream in ((2, 0), (1, 1), (1, 0)))
    assert (a, b, c) == (0, 512, 768)
    pool.free(a, stream=0)
    pool.free(b, stream=1)
    assert pool.allocate(256, stream=0) == 0  # of its two chunks, though the synchronised ones begin at 1024
    assert pool.allocate(256, stream=1) == 512
    assert pool.allocate(512, stream=1) == 1024  # 256 are stream 0's
    assert pool.allocate(512, stream=1) == 1536
    assert not waited
    assert pool.allocate(256, stream=1) == 256  # only stream 0's is left
    assert len(waited) == pool.syncs == 1
    with pytest.raises(MemoryError, match="no room for 1 bytes: 2048 of 2048 are reserved"):
        pool.allocate(1, stream=0)
    assert pool.syncs == 1  # all is live: no sync makes room


def test_unlike_neighbours_merge_at_a_sync() -> None:
    pool = arena(4)
    a, b = pool.allocate(256, stream=0), pool.allocate(256, stream=0)
    pool.free(a, stream=0)
    pool.free(b, stream=0)  # 512 of stream 0 below 512 that are synchronised
    assert pool.allocate(512, stream=0) == 0
    pool.free(0, stream=0)
    assert pool.allocate(256, stream=1) == 512  # the synchronised ones stayed so
    pool.free(512, stream=1)
    assert pool.syncs == 0
    assert (pool.allocate(1024, stream=1), pool.syncs) == (0, 1)


def test_the_executor_syncs_and_nothing_waits_twice() -> None:
    pool = arena(4)
    waited = waits(pool)
    pool.sync_and_coalesce()
    a = pool.allocate(1024, stream=0)
    pool.sync_and_coalesce()
    assert not waited  # nothing was freed
    pool.free(a, stream=0)
    pool.sync_and_coalesce()
    pool.sync_and_coalesce()
    assert pool.allocate(1024, stream=1) == a
    assert len(waited) == pool.syncs == 1


def test_a_chunk_of_two_streams_is_nobodys() -> None:
    for syncs in (False, True):
        pool = arena(2)
        a = pool.allocate(256, stream=0)
        pool.use(a, stream=0)
        if syncs:
            pool.sync_and_coalesce()  # what stream 0 did is over before all that comes
        assert pool.syncs == syncs
        pool.free(a, stream=1)
        assert pool.allocate(256, stream=1) == (a if syncs else 256)
        assert pool.syncs == syncs
        assert pool.allocate(256, stream=0) == (256 if syncs else a)
        assert pool.syncs == 1
    pool = arena(1)
    a = pool.allocate(256, stream=1)
    pool.use(a, stream=1)
    pool.free(a, stream=1)  # the same stream twice
    assert (pool.allocate(256, stream=1), pool.syncs) == (a, 0)
    for offset in (a + 1, 256, None, 0.0):
        with pytest.raises(ValueError, match="no live block starts there"):
            pool.use(offset)  # type: ignore[arg-type]


def test_it_waits_before_it_grows() -> None:
    pool = MultiStream()
    a = pool.allocate(2 * MIB, stream=0)
    pool.free(a, stream=0)
    assert (pool.allocate(2 * MIB, stream=1), pool.syncs) == (a, 1)
    assert pool.allocate(MIB, stream=1) == 2 * MIB
    assert (pool.statistics.reserved.current, pool.syncs) == (6 * MIB, 1)
    with pytest.raises(ValueError, match="allow_growth: False, but there is no capacity"):
        MultiStream(allow_growth=False)


# Against a list of chunks


class Naive:
    """Free chunks (first byte, bytes, whose): a stream's, nobody's (-2), or synchronised (-1)."""

    def __init__(self, size: int) -> None:
        self.chunks = [(0, size, -1)]
        self.live: dict[int, tuple[int, set[int]]] = {}
        self.syncs = 0

    def merge(self) -> None:
        for i in range(len(self.chunks) - 1, 0, -1):
            (a, size, whose), (b, more, other) = self.chunks[i - 1 : i + 1]
            if a + size == b and whose == other:
                self.chunks[i - 1 : i + 1] = [(a, size + more, whose)]

    def allocate(self, size: int, *, stream: int = 0) -> int:
        need = -(-size // 256) * 256
        fits = [((whose == -1), room, at) for at, room, whose in self.chunks if whose in (stream, -1) and room >= need]
        if not fits:
            if all(whose == -1 for _, _, whose in self.chunks):
                raise MemoryError
            self.sync_and_coalesce()
            return self.allocate(size, stream=stream)
        synced, room, at = min(fits)
        self.chunks.remove((at, room, -1 if synced else stream))
        self.chunks = sorted(self.chunks + [(at + need, room - need, -1 if synced else stream)] * (room > need))
        self.live[at] = need, set()
        return at

    def use(self, offset: int, *, stream: int = 0) -> None:
        self.live[offset][1].add(stream)

    def free(self, offset: int, *, stream: int = 0) -> None:
        size, users = self.live.pop(offset)
        self.chunks = sorted([*self.chunks, (offset, size, stream if users <= {stream} else -2)])
        self.merge()

    def sync_and_coalesce(self) -> None:
        if all(whose == -1 for _, _, whose in self.chunks) and not any(users for _, users in self.live.values()):
            return
        self.syncs += 1
        self.chunks = [(at, size, -1) for at, size, _ in self.chunks]
        self.live = {at: (size, set()) for at, (size, _) in self.live.items()}
        self.merge()


EVENTS = st.lists(
    st.tuples(st.sampled_from("++++--=s"), st.integers(1, 3 * KIB), st.integers(0, 2)), min_size=10, max_size=60
)


def trail(pool: Any, events: Iterable[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Offsets, -1 where there is no room, and syncs so far."""
    live: list[int] = []
    found = []
    for kind, number, stream in events:
        if kind == "+":
            try:
                live.append(pool.allocate(number, stream=stream))
                found.append((live[-1], pool.syncs))
            except MemoryError:
                found.append((-1, pool.syncs))
        elif kind == "s":
            pool.sync_and_coalesce()
        elif live and kind == "=":
            pool.use(live[number % len(live)], stream=stream)
        elif live:
            pool.free(live.pop(number % len(live)), stream=stream)
    return found


@given(EVENTS)
@settings(max_examples=100)
def test_it_is_its_chunks(events: list[tuple[str, int, int]]) -> None:
    assert trail(arena(32), events) == trail(Naive(8 * KIB), events)


# Under a trace


def test_jobs_in_turn_wait_between_slots_and_nowhere_else() -> None:
    machine = Machine.named("v100")
    trace = bundled("mlp3")
    job = partition(trace, machine, 16 * MIB)
    pair = co_schedule(pipeline([job, job], 2 * trace.peak_live_bytes), machine)
    pool = MultiStream(capacity=2 * pair.trace.peak_live_bytes, allow_growth=False)
    placed = replay(pair.trace, Witness(pool), iterations=3)
    check.placement(pair.trace, placed)
    assert 1 < pool.syncs <= 20 * pair.pipeline.period


class Watched(MultiStream):
    """Writes down where chunks are and at which request it waited."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity=capacity, allow_growth=False)
        self.at: list[int] = []  # of each request: the offset
        self.waited: list[int] = []  # requests done before
        self.synchronize = lambda: self.waited.append(len(self.at))

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self.at.append(super().allocate(size, stream=stream))
        return self.at[-1]

    def use(self, offset: int, *, stream: int = 0) -> None:
        super().use(offset, stream=stream)
        self.at.append(offset)

    def free(self, offset: int, *, stream: int = 0) -> None:
        super().free(offset, stream=stream)
        self.at.append(offset)


def life(b: Buffers, x: int, k: int, n: int) -> int:
    """The step at which what op `k` calls buffer `x` was made."""
    return 0 if b.end[x] - b.start[x] == n else k - int((k - b.start[x]) % n)


def comes_before(trace: Trace, number: int, fences: list[int]) -> list[set[int]]:
    """Of each of `number` ops, one iteration after another: those that it comes after, by stream, data and fences."""
    n, b, ops = trace.n, trace.buffers, [(op.stream, {*op.reads}, {*op.writes}) for op in trace.ops]
    before: list[set[int]] = []
    for k in range(number):
        mine: set[int] = set()
        for j in range(k):
            (stream, reads, writes), (other, read, wrote) = ops[k % n], ops[j % n]
            shared = (reads | writes) & wrote | writes & read
            data = any(life(b, x, j, n) == life(b, x, k, n) for x in shared)
            if stream == other or data or any(j < fence <= k for fence in fences):
                mine |= {j} | before[j]
        before.append(mine)
    return before


@given(traces())
@example(
    Trace(  # op 1 reads last, on the other stream; op 2 would like its bytes
        Buffers.make([8, 8, 8], [0, 2, 0], [2, 3, 1]),
        Ops.make([[], [0], []], [[0], [], [1]], stream=[0, 1, 0], streams=["compute0", "compute1"]),
    )
)
@example(
    Trace(  # two read, one on each stream
        Buffers.make([8, 8], [0, 3], [3, 4]),
        Ops.make([[], [0], [0], []], [[0], [], [], [1]], stream=[0, 0, 1, 1], streams=["compute0", "compute1"]),
    )
)
@example(
    Trace(  # made while stream 0 works, first touched on stream 1
        Buffers.make([8, 8], [0, 1], [1, 3]),
        Ops.make([[], [], []], [[0], [], [1]], stream=[0, 0, 1], streams=["compute0", "compute1"]),
    )
)
def test_what_a_trace_does_with_bytes_is_in_order(trace: Trace) -> None:
    n, b = trace.n, trace.buffers
    held = [int((~b.host & (b.size > 0) & ((t - b.start) % n < b.end - b.start)).sum()) for t in range(n)]
    pool = Watched(256 * max(held))  # a chunk for each buffer, and none to spare
    try:
        replay(trace, pool, iterations=2)
    except ValueError:
        return  # a buffer wraps and lies elsewhere in each iteration
    rounds = next(r for r in range(2, 30) if len(timed_log(trace, r, uses=True)) >= len(pool.at))
    events = timed_log(trace, rounds, uses=True)
    before = comes_before(trace, rounds * n, [events[k][0] for k in pool.waited])
    last: dict[int, set[int]] = {}  # of an offset: ops that had these bytes
    for (time, (kind, x, _)), offset in zip(events, pool.at):
        if kind == "+":
            made = life(b, x, time, n)
            mine = {
                k
                for k in range(rounds * n)
                if x in (*trace.ops[k % n].reads, *trace.ops[k % n].writes) and life(b, x, k, n) == made
            }
            assert all(last.get(offset, set()) <= before[k] for k in mine), f"buffer {x} at {offset}, made at {time}"
            last[offset] = last.get(offset, set()) | mine
