"""The simulated runtime against one that is read from the paper with sets, and small steps by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from gpumem.simulator.machine import Machine
from gpumem.swap.dtr import OnlineRun
from gpumem.swap.dtr.online import NO_ROOM, POLICIES, RAN, TOO_LONG
from gpumem.swap.dtr.planner import online
from gpumem.swap.dtr.scores import HEURISTICS
from gpumem.trace import Buffers, Ops, Trace
from tests.swap.dtr.naive import Naive

GTX = Machine.named("gtx1080ti")
ENDS = {RAN: "ran", NO_ROOM: "no room", TOO_LONG: "too long"}


@st.composite
def made_once(draw: st.DrawFn) -> Trace:
    """Steps whose storages are made by one op each, with constants; some storages are kept after their last use."""
    n, constants = draw(st.integers(2, 14)), draw(st.integers(0, 2))
    rows: list[tuple[int, int, int]] = []  # of a storage: first op, last op, tail
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    for op in range(n):
        there = range(constants + len(rows))
        reads.append(draw(st.lists(st.sampled_from(there), max_size=3, unique=True)) if len(there) else [])
        made = draw(st.sampled_from([1, 1, 1, 2, 3]))
        writes.append([constants + len(rows) + index for index in range(made)])
        rows += [(op, op, draw(st.sampled_from([0, 0, 1, 4]))) for _ in range(made)]
        for storage in reads[-1]:
            if storage >= constants:
                rows[storage - constants] = (rows[storage - constants][0], op, rows[storage - constants][2])
    size = draw(st.lists(st.integers(0, 5), min_size=constants + len(rows), max_size=constants + len(rows)))
    start, end = (
        [0] * constants + [row[0] for row in rows],
        [n] * constants + [min(row[1] + 1 + row[2], n) for row in rows],
    )
    kept = [storage < constants for storage in range(len(size))]
    duration = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7]), min_size=n, max_size=n))
    buffers = Buffers.make(
        size, start, end, persistent=kept, kind=["param" if index else "activation" for index in kept]
    )
    return Trace(buffers, Ops.make(reads, writes, duration=duration, name=["ones"] * n))


def summary(run: OnlineRun) -> tuple[str, int, int, int, int]:
    return ENDS[run.how], run.recompute_ns, run.recomputations, run.evictions, run.peak


@pytest.mark.parametrize("free", POLICIES)
@pytest.mark.parametrize("heuristic", HEURISTICS)
@given(trace=made_once(), part=st.integers(30, 100))
def test_the_runtime_does_what_the_paper_says(heuristic: str, free: str, trace: Trace, part: int) -> None:
    budget = trace.peak_live_bytes * part // 100
    found = online(trace, GTX, budget, heuristic=heuristic, free=free, overhead=3)
    assert summary(found) == Naive(trace, budget, heuristic, free, most=3 * int(trace.ops.duration.sum())).run()
    assert found.base == int(trace.ops.duration.sum())


@given(trace=made_once())
def test_where_all_fits_nothing_is_evicted(trace: Trace) -> None:
    found = online(trace, GTX, trace.peak_live_bytes)
    assert summary(found)[:4] == ("ran", 0, 0, 0)


@given(trace=made_once(), part=st.integers(30, 100), heuristic=st.sampled_from(sorted(HEURISTICS)))
def test_residency_intervals_are_what_is_on_the_device(trace: Trace, part: int, heuristic: str) -> None:
    """At each op no more than the budget, and all that it touches; the intervals of a storage follow one another."""
    budget = trace.peak_live_bytes * part // 100
    run = online(trace, GTX, budget, heuristic=heuristic)
    if run.how != RAN:
        return
    intervals = [row for row in zip(*(column.tolist() for column in run.residency)) if row[0] >= 0]
    constant = int(trace.buffers.size[trace.buffers.persistent].sum())
    for op, (reads, writes) in enumerate(zip(trace.ops.reads.tolist(), trace.ops.writes.tolist())):
        there = Counter(storage for storage, first, until, _ in intervals if first <= op < until)
        assert set(there.values()) <= {1}
        assert {storage for storage in (*reads, *writes) if not trace.buffers.persistent[storage]} <= set(there)
        assert constant + sum(int(trace.buffers.size[storage]) for storage in there) <= budget
    assert all(first < until and read <= until for _, first, until, read in intervals)


def chain() -> Trace:
    """A, B, C of 4 bytes, each made of the one before in 10, 20, 30 ns; then D of C, and B and A are read once more."""
    ops = Ops.make(
        [[], [0], [1], [2], [1, 3], [0]],
        [[0], [1], [2], [3], [], []],
        duration=[10, 20, 30, 5, 5, 5],
        name=["ones", *["f"] * 5],
    )
    return Trace(Buffers.make([4] * 4, [0, 1, 2, 3], [6, 5, 4, 5]), ops)


@pytest.mark.parametrize(
    ("heuristic", "recompute_ns"),
    [("lru", 10), ("local", 10), ("size", 20), ("msps", 10), ("dtr", 10), ("eq", 10)],
)
def test_a_chain_by_hand(heuristic: str, recompute_ns: int) -> None:
    """D takes the bytes of A or of B. A was used longest ago, is the cheapest by itself and has the least sources.

    By size alone both are the same, and the one that came to the pool last is evicted: B, which C unlocked last.
    """
    found = online(chain(), GTX, 12, heuristic=heuristic)
    assert summary(found) == ("ran", recompute_ns, 1, 1, 12)


def test_what_cannot_be_recomputed_stays() -> None:
    """`load` reads nothing: it may take its data from outside."""
    ops = Ops.make([[], [0], [1], [0]], [[0], [1], [2], []], duration=[1] * 4, name=["load", "f", "f", "f"])
    found = online(Trace(Buffers.make([4, 4, 4], [0, 1, 2], [4, 3, 3]), ops), GTX, 8)
    assert summary(found)[0] == "no room"


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="heuristic: 'foo'"):
        online(chain(), GTX, 12, heuristic="foo")
    with pytest.raises(ValueError, match="free: 'foo'"):
        online(chain(), GTX, 12, free="foo")
    with pytest.raises(ValueError, match="overhead: -1"):
        online(chain(), GTX, 12, overhead=-1)
