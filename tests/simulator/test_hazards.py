"""The near-linear sweep against the rule taken literally, pair by pair."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.simulator.hazards import hazards
from gpumem.simulator.timeline import COPY, DATA, MEMORY, NONE
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.plain import plain
from tests.strategies import plans, traces

module = import_module("gpumem.simulator.hazards")  # the room shows the function of that name


def literal(trace: Trace, placement: Placement | None, host: Placement | None = None) -> dict[tuple[int, int], int]:
    """All pairs (y, x): op x of one iteration waits for position y, negative in the iteration before; and why.

    For the bytes, where another buffer had them, or the same in an earlier lifetime; else for a copy, or for data.
    """
    n, b, copies = trace.n, [*trace.buffers], trace.ops.copies
    touches = [set(o.reads) | set(o.writes) for o in trace.ops]
    writes = [set(o.writes) for o in trace.ops]

    def meet(p: int, q: int, y: int, x: int) -> int:
        place, full = host if b[p].space == "host" else placement, b[p].end - b[p].start == n
        if p == q:
            born = x - (x - b[p].start) % n
            if y < born and not (placement is not None or b[p].space == "host" or (b[p].persistent and full)):
                return NONE
            if y < born and place is not None and not full and b[p].size:
                return MEMORY
            return COPY if copies[y % n] else DATA
        if place is None or b[p].space != b[q].space:
            return NONE
        at, to = place.offset[p], place.offset[q]
        return MEMORY if at < to + b[q].size and to < at + b[p].size and b[p].size and b[q].size else NONE

    found: dict[tuple[int, int], int] = {}
    for x in range(n):
        for y in range(x - n, x):
            for p in touches[y % n]:
                for q in touches[x]:
                    why = meet(p, q, y, x) if p in writes[y % n] or q in writes[x] else NONE
                    if why != NONE:
                        found[y, x] = min(why, found.get((y, x), why))
    return found


def implied(trace: Trace, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Everything that the edges and the order within streams enforce together, over three iterations."""
    n, stream = trace.n, trace.ops.stream.tolist()
    reach: dict[int, set[int]] = {}
    for x in range(3 * n):
        before = [x + y - x % n for y, z in edges if z == x % n and x + y - x % n >= 0]
        same = [y for y in range(x) if stream[y % n] == stream[x % n]]
        reach[x] = set().union(*(reach[y] | {y} for y in [*before, *same[-1:]]), set())
    return {(y - 2 * n, x - 2 * n) for x in range(2 * n, 3 * n) for y in reach[x]}


def edges_of(trace: Trace, placement: Placement | None, host: Placement | None = None) -> dict[tuple[int, int], int]:
    found = hazards(trace, placement, host)
    return dict(zip(zip(found.after.idx.tolist(), found.after.rows().tolist()), found.cause.tolist()))


def holds(trace: Trace, placement: Placement | None, host: Placement | None = None) -> set[tuple[int, int]]:
    """The edges, if they are of the rule, by its causes, and enforce all of it."""
    rule, edges = literal(trace, placement, host), edges_of(trace, placement, host)
    assert edges.items() <= rule.items()
    assert rule.keys() <= implied(trace, {*edges})
    return {*edges}


@settings(max_examples=60)
@given(st.data())
def test_hazards_enforce_the_rule_with_nothing_to_spare(data: st.DataObject) -> None:
    trace = data.draw(traces(max_ops=7, max_buffers=6, streams=3))
    if data.draw(st.booleans()):
        trace = data.draw(plans(trace)).apply(trace)
    planner = data.draw(st.sampled_from([best_fit, first_fit, None]))
    alignment = data.draw(st.sampled_from([1, 4]))
    placement = planner(trace, alignment=alignment) if planner else None
    host = best_fit(trace.host_side(), alignment=alignment) if planner and data.draw(st.booleans()) else None
    edges = holds(trace, placement, host)
    for edge in edges:
        assert edge not in implied(trace, edges - {edge}), f"{edge} follows from the others"


def test_no_edge_within_a_stream_and_one_for_each_other_stream() -> None:
    ops = Ops.make([[], [], [0, 1]], [[0], [1], []], stream=[0, 0, 1], streams=["a", "b"])
    trace = Trace(Buffers.make([4, 4], [0, 0], [3, 3]), ops)
    assert hazards(trace).after.tolist() == [[], [], [1]]


def test_a_write_waits_for_reads_of_the_bytes() -> None:
    # 0 writes A; 1 reads A; 2 writes C there, or A anew: either waits for 1, which waits for 0
    for written, sizes, starts, ends in (([1], [4, 4], [0, 2], [2, 3]), ([0], [4], [0], [3])):
        ops = Ops.make([[], [0], []], [[0], [], written], stream=[0, 1, 2], streams=["a", "b", "c"])
        trace = Trace(Buffers.make(sizes, starts, ends), ops)
        found = edges_of(trace, Placement.at(trace, [0] * len(sizes)))
        why = DATA if written == [0] else MEMORY
        assert found == {(-1, 0): why, (0, 1): DATA, (1, 2): why}


def test_without_a_placement_each_iteration_has_buffers_of_its_own() -> None:
    # op 0 and op 1, on two streams, write X, which lives through the whole iteration, but for ever only in the second
    ops = Ops.make([[], [0]], [[0], [0]], stream=[0, 1], streams=["a", "b"])
    for forever in (False, True):
        trace = Trace(Buffers.make([4], [0], [2], persistent=[forever]), ops)
        assert edges_of(trace, None) == {(0, 1): DATA} | ({(-1, 0): DATA} if forever else {})


def test_of_two_waits_for_a_stream_the_later_counts_and_of_two_for_an_op_the_lesser_cause() -> None:
    # op 2 reads U, never written, where A was, and D. Op 1 writes A, after op 0 has written D, or both itself
    ahead = Ops.make([[], [], [0, 2]], [[2], [1], []], stream=[0, 0, 1], streams=["a", "b"])
    both = Ops.make([[], [], [0, 2]], [[], [1, 2], []], stream=[0, 0, 1], streams=["a", "b"])
    for ops, start, edges in (
        (ahead, 0, {(-1, 0): DATA, (1, 2): MEMORY}),
        (both, 1, {(-1, 1): MEMORY, (1, 2): DATA}),
    ):
        trace = Trace(Buffers.make([4] * 3, [2, 1, start], [3, 2, 3]), ops)
        assert edges_of(trace, Placement.at(trace, [0, 0, 4])) == edges


def test_a_placement_of_another_trace_is_refused() -> None:
    trace = Trace(Buffers.make([4, 4], [0, 1], [2, 2]), Ops.make([[], []], [[0], [1]]))
    other = Placement.at(Trace.from_lifetimes([4], [0], [1]), [0])
    for wrong in ({"placement": other}, {"host": other}):
        with pytest.raises(ValueError, match=r"placement: 1 offsets, but trace .* has 2 buffers"):
            hazards(trace, **wrong)


def test_a_buffer_that_is_never_written_guards_its_bytes() -> None:
    # 0 writes A at 0..4; 1 reads B, never written, at the same bytes; 2 writes C there: waits for 1, hence for 0
    ops = Ops.make([[], [1], []], [[0], [], [2]], stream=[0, 1, 2], streams=["a", "b", "c"])
    trace = Trace(Buffers.make([4, 4, 4], [0, 1, 2], [1, 2, 3]), ops)
    assert hazards(trace, Placement.at(trace, [0, 0, 0])).after.tolist() == [[-1], [0], [1]]


@pytest.mark.parametrize("size, cause", [(4, MEMORY), (0, DATA)])
def test_only_bytes_are_waited_for_as_memory(size: int, cause: int) -> None:
    # op 0 writes X, op 1 reads it; at its place op 0 makes another one in the next iteration
    ops = Ops.make([[], [0], []], [[0], [], []], stream=[0, 1, 1], streams=["a", "b"])
    for end, why in ((2, cause), (3, DATA)):  # a full circle shares its bytes with nobody
        trace = Trace(Buffers.make([size], [0], [end]), ops)
        assert edges_of(trace, Placement.at(trace, [0])) == {(-2, 0): why, (0, 1): DATA}


def pieces(seed: int, count: int, takers: int) -> tuple[Trace, Placement]:
    """So many bytes with an owner each; then ranges of them are taken over in turn by three streams."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, count, takers)
    size = [1] * count + [int(rng.integers(1, count - x + 1)) for x in low]
    start = [0] * count + list(range(1, takers + 1))
    ops = Ops.make(
        [[] for _ in range(takers + 1)],
        [list(range(count)), *([count + k] for k in range(takers))],
        stream=[0, *rng.integers(0, 3, takers)],
        streams=["a", "b", "c"],
    )
    trace = Trace(Buffers.make(size, start, [s + 1 for s in start]), ops)
    return trace, Placement.at(trace, [*range(count), *low.tolist()])


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_an_address_space_of_many_pieces(seed: int) -> None:
    holds(*pieces(seed, 300, 12))


@pytest.mark.parametrize("block", [2, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_in_small_blocks(seed: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "_sweep", plain(module)._sweep)
    holds(*pieces(seed, 30, 16))


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
    holds(trace, placement)


@given(st.data())
def test_what_was_read_last_in_a_range_of_cells(data: st.DataObject) -> None:
    loops, count = plain(module), data.draw(st.integers(1, 20))
    tree, last = loops._unwritten(1, count)[0], np.full(count, -1)
    for t in range(data.draw(st.integers(0, 12))):
        low = data.draw(st.integers(0, count - 1))
        high = data.draw(st.integers(low + 1, count))
        if data.draw(st.booleans()):
            loops._note_read(tree, low, high, t)
            last[low:high] = t
        assert loops._last_read(tree, low, high) == last[low:high].max()
    for low in range(count):
        for high in range(low + 1, count + 1):
            assert loops._last_read(tree, low, high) == last[low:high].max()


@given(st.data())
def test_intervals_of_cells_are_found_across_blocks(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", data.draw(st.sampled_from([1, 3, 4])))
        loops, cells = plain(module), module._Cells.of(count)
    owner = {0: -1}
    for b in range(data.draw(st.integers(0, 10))):
        low = data.draw(st.integers(0, count - 1))
        high = data.draw(st.integers(low + 1, count))
        for cell in (low, high) if high < count else (low,):
            loops._split(cells, cell)
            owner.setdefault(cell, owner[max(begin for begin in owner if begin <= cell)])
        for cell in [begin for begin in owner if low < begin < high]:  # taken over, as a write does it
            del owner[cell]
            cells.begins[cell] = False
            cells.population[cell // loops.BLOCK] -= 1
        owner[low] = cells.owner[low] = b
        cells.after[low] = high
        begins = sorted(owner)
        assert [int(cells.after[cell]) for cell in begins] == [*begins[1:], count]
        assert [int(cells.owner[cell]) for cell in begins] == [owner[cell] for cell in begins]
        assert [loops._interval(cells, cell) for cell in range(count)] == [
            max(begin for begin in begins if begin <= cell) for cell in range(count)
        ]
