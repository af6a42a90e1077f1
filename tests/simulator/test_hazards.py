"""The near-linear sweep against the rule taken literally, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.simulator.hazards import hazards
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.strategies import plans, traces


def literal(trace: Trace, placement: Placement | None, host: Placement | None = None) -> set[tuple[int, int]]:
    """All pairs (y, x): op x of one iteration waits for position y, negative in the iteration before."""
    n, b = trace.n, trace.buffers
    touches = [set(o.reads) | set(o.writes) for o in trace.ops]
    writes = [set(o.writes) for o in trace.ops]

    def meet(p: int, q: int, y: int, x: int) -> bool:
        if p == q:
            same_place = placement is not None or b[p].space == "host"
            forever = b[p].persistent and b[p].end - b[p].start == n
            born = x - (x - b[p].start) % n
            return same_place or forever or y >= born
        place = host if b[p].space == "host" else placement
        if place is None or b[p].space != b[q].space:
            return False
        at, to = place.offset[p], place.offset[q]
        return bool(at < to + b[q].size and to < at + b[p].size and b[p].size and b[q].size)

    return {
        (y, x)
        for x in range(n)
        for y in range(x - n, x)
        for p in touches[y % n]
        for q in touches[x]
        if (p in writes[y % n] or q in writes[x]) and meet(p, q, y, x)
    }


def implied(trace: Trace, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Everything that the edges and the order within streams enforce together, over three iterations."""
    n, stream = trace.n, trace.ops.stream.tolist()
    reach: dict[int, set[int]] = {}
    for x in range(3 * n):
        before = [x + y - x % n for y, z in edges if z == x % n and x + y - x % n >= 0]
        same = [y for y in range(x) if stream[y % n] == stream[x % n]]
        reach[x] = set().union(*(reach[y] | {y} for y in [*before, *same[-1:]]), set())
    return {(y - 2 * n, x - 2 * n) for x in range(2 * n, 3 * n) for y in reach[x]}


def edges_of(trace: Trace, placement: Placement | None, host: Placement | None = None) -> set[tuple[int, int]]:
    return {(y, x) for x, row in enumerate(hazards(trace, placement, host).after.tolist()) for y in row}


@given(st.data())
def test_hazards_enforce_the_rule_with_nothing_to_spare(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=7, max_buffers=6, streams=3))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    planner = data.draw(st.sampled_from([best_fit, first_fit, None]))
    alignment = data.draw(st.sampled_from([1, 4]))
    placement = planner(trace, alignment=alignment) if planner else None
    host = best_fit(trace.host_side(), alignment=alignment) if planner and data.draw(st.booleans()) else None
    rule, edges = literal(trace, placement, host), edges_of(trace, placement, host)
    assert edges <= rule
    assert rule <= implied(trace, edges)
    for edge in edges:
        assert edge not in implied(trace, edges - {edge}), f"{edge} follows from the others"


def test_no_edge_within_a_stream_and_one_for_each_other_stream() -> None:
    ops = Ops.make([[], [], [0, 1]], [[0], [1], []], stream=[0, 0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4, 4], [0, 0], [3, 3]), ops)
    assert hazards(trace).after.tolist() == [[], [], [1]]


def test_a_buffer_that_is_never_written_guards_its_bytes() -> None:
    # 0 writes A at 0..4; 1 reads B, never written, at the same bytes; 2 writes C there: waits for 1, hence for 0
    ops = Ops.make([[], [1], []], [[0], [], [2]], stream=[0, 1, 2], streams=["a", "b", "c"])
    trace = Trace(Buffers.make([4, 4, 4], [0, 1, 2], [1, 2, 3]), ops)
    assert hazards(trace, Placement.at(trace, [0, 0, 0])).after.tolist() == [[-1], [0], [1]]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_an_address_space_of_many_pieces(seed: int) -> None:
    # 300 bytes with an owner each, then ranges of them taken over in turn by three streams
    rng = np.random.default_rng(seed)
    takers = 12
    low = rng.integers(0, 300, takers)
    size = [1] * 300 + [int(rng.integers(1, 300 - x + 1)) for x in low]
    start = [0] * 300 + list(range(1, takers + 1))
    ops = Ops.make(
        [[] for _ in range(takers + 1)],
        [list(range(300)), *([300 + k] for k in range(takers))],
        stream=[0, *rng.integers(0, 3, takers)],
        streams=["a", "b", "c"],
    )
    trace = Trace(Buffers.make(size, start, [s + 1 for s in start]), ops)
    placement = Placement.at(trace, [*range(300), *low.tolist()])
    rule, edges = literal(trace, placement), edges_of(trace, placement)
    assert edges <= rule <= implied(trace, edges)


@pytest.mark.parametrize("seed", range(4))
def test_many_buffers_that_are_never_written_guard_their_bytes(seed: int) -> None:
    # ranges of 40 bytes are read, never written, on three streams; between these reads others write where they lay
    rng = np.random.default_rng(seed)
    n = 24
    low = rng.integers(0, 40, n)
    size = [int(rng.integers(1, 41 - x)) for x in low]
    writes = rng.random(n) < 0.4
    ops = Ops.make(
        [[] if write else [i] for i, write in enumerate(writes)],
        [[i] if write else [] for i, write in enumerate(writes)],
        stream=rng.integers(0, 3, n),
        streams=["a", "b", "c"],
    )
    trace = Trace(Buffers.make(size, range(n), range(1, n + 1)), ops)
    placement = Placement.at(trace, low.tolist())
    rule, edges = literal(trace, placement), edges_of(trace, placement)
    assert edges <= rule <= implied(trace, edges)
