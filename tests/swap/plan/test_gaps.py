"""Gaps are the spaces between the accesses of each buffer, by a slow loop; and so is what else is said of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import given, strategies as st

from gpumem.simulator.simulate import simulate
from gpumem.swap.plan.gaps import around, gaps, lasts, needs_copy_out, straddle, windows, without
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import traces


class Naive(NamedTuple):
    """A gap and the value that it keeps: which write of its buffer made it, counted from 1; 0: none in the lifetime."""

    buffer: int
    after: int
    before: int
    value: int
    since: int  # `after`, in ops from the iteration of that write on
    writes: int
    forever: bool


def naive(trace: Trace) -> list[Naive]:
    """All gaps of a trace, one by one."""
    n, found = trace.n, []
    for b, x in enumerate(trace.buffers):
        life = [t for t in range(x.start, x.end) if b in trace.ops.reads[t % n] or b in trace.ops.writes[t % n]]
        writes = [t for t in life if b in trace.ops.writes[t % n]]
        forever = x.persistent and x.end - x.start == n
        for s, t in pairwise([*life, life[0] + n] if forever and life else life):
            wrote = sum(w <= s for w in writes)
            carried = forever and wrote == 0 < len(writes)
            value, since = (len(writes), s + n) if carried else (wrote, s)
            found.append(Naive(b, s % n, s % n + t - s, value, since, len(writes), forever))
    return found


@given(traces())
def test_gaps_are_the_spaces_between_accesses(trace: Trace) -> None:
    found, want = gaps(trace), naive(trace)
    columns = found.buffer, found.after, found.before, found.size
    rows = [(g.buffer, g.after, g.before, trace.buffers[g.buffer].size) for g in want]
    assert list(zip(*(column.tolist() for column in columns))) == rows
    assert found.constant.tolist() == [g.forever and not g.writes for g in want]
    values = sorted({(g.buffer, g.value) for g in want})
    assert found.value.tolist() == [values.index((g.buffer, g.value)) for g in want]
    assert found.since.tolist() == [g.since for g in want]
    later = found.where(np.arange(len(found)) % 2 == 1)
    assert later.rows(trace.n) == {(g.buffer, g.after): k for k, g in enumerate(want[1::2])}


@given(st.data())
def test_the_first_gap_of_a_value_needs_the_copy_out(data: st.DataObject) -> None:
    trace = data.draw(traces())
    found, want = gaps(trace), naive(trace)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(want) - 1)))) if want else []
    mine = [want[k] for k in chosen]
    first = [
        not any((h.buffer, h.value) == (g.buffer, g.value) and h.since < g.since for h in mine)
        and (g.writes > 0 or not g.forever)
        for g in mine
    ]
    assert needs_copy_out(found.where(np.array(chosen, np.int64))).tolist() == first


@given(st.data())
def test_what_lies_in_gaps_by_loops_over_their_ops(data: st.DataObject) -> None:
    trace = data.draw(traces())
    n, found, want = trace.n, gaps(trace), naive(trace)
    within = [[t % n for t in range(g.after + 1, g.before)] for g in want]
    ops = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assert straddle(found, ops).tolist() == [any(ops[i] for i in row) for row in within]
    size = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(want), max_size=len(want))), np.int64)
    load = np.arange(100, 100 + n)
    held = [int(load[i]) - sum(int(bytes_) * row.count(i) for bytes_, row in zip(size, within)) for i in range(n)]
    assert without(load, replace(found, size=size)).tolist() == held
    line = simulate(trace, tiny_machine(), iterations=20)
    span = [int(line.start[g.before % n]) + (g.before >= n) * line.makespan - int(line.end[g.after]) for g in want]
    assert lasts(found, line).tolist() == span


def test_an_arc_may_be_a_whole_turn() -> None:
    turns, none = around(np.array([0, 3, 2]), np.array([4, 7, 2]), np.array([1, 10, 100]), 4), np.zeros(0, np.int64)
    assert turns.tolist() == [11, 11, 11, 11] and around(none, none, none, 3).tolist() == [0, 0, 0]
    assert around(np.array([5]), np.array([7]), np.array([1]), 4).tolist() == [0, 1, 1, 0]  # ops count on over turns


def test_what_has_no_bytes_has_no_window() -> None:
    ops = Ops.make([[], [], [0, 1]], [[0, 1], [], []])
    found = windows(Trace(Buffers.make([0, 1], [0, 0], [3, 3]), ops), tiny_machine())
    assert (found.buffer.tolist(), found.after.tolist(), found.before.tolist()) == ([1], [0], [2])


@given(traces())
def test_windows_are_gaps_with_room_for_copies(trace: Trace) -> None:
    machine, want = tiny_machine(), naive(trace)
    values = sorted({(g.buffer, g.value) for g in want})
    rows = []
    for g in want:
        size = int(trace.buffers.size[g.buffer])
        opens = min(h.since for h in want if (h.buffer, h.value) == (g.buffer, g.value))
        constant = g.forever and not g.writes
        out, into = (int(link.copy_ns(np.array(size))) for link in (machine.out, machine.into))
        if size and g.before - g.after > 1:
            value, before = values.index((g.buffer, g.value)), g.since + g.before - g.after
            rows.append((value, g.since, g.buffer, before, size, opens, constant, 0 if constant else out, into))
    w = windows(trace, machine)
    columns = w.value, w.after, w.buffer, w.before, w.size, w.opens, w.constant, w.out_ns, w.in_ns
    assert list(zip(*(column.tolist() for column in columns))) == sorted(rows)
