"""Construction validates, and the live bytes are that of a brute-force loop over arcs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.trace import Buffers, Csr, Ops, Trace

Arcs = tuple[int, list[tuple[int, int, int, bool]]]


@st.composite
def arcs(draw: st.DrawFn) -> Arcs:
    """Steps of the circle, and `(size, start, end, host)` of some arcs on it."""
    n = draw(st.integers(1, 12))
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, n - 1))
        length = draw(st.one_of(st.integers(1, n), st.just(n)))
        rows.append((draw(st.integers(0, 9)), start, start + length, draw(st.booleans())))
    return n, rows


def bare(case: Arcs) -> Trace:
    n, rows = case
    size, start, end, host = zip(*rows) if rows else ((), (), (), ())
    return Trace(Buffers.make(list(size), list(start), list(end), host=list(host)), Ops.make([], []), n)


def brute_force(case: Arcs, host: bool) -> list[int]:
    """Walk each arc step by step round the circle."""
    n, rows = case
    load = [0] * n
    for size, start, end, on_host in rows:
        for step in range(start, end):
            if on_host == host:
                load[step % n] += size
    return load


@given(arcs(), st.booleans())
def test_load_is_what_walking_each_arc_adds_up_to(case: Arcs, host: bool) -> None:
    load = bare(case).live_bytes(host=host)
    assert load.tolist() == brute_force(case, host)
    assert load.dtype == np.int64


@given(arcs())
def test_peak_is_the_first_step_of_the_largest_device_load(case: Arcs) -> None:
    trace, load = bare(case), brute_force(case, host=False)
    assert trace.peak == (load.index(max(load)), max(load))
    assert trace.peak_live_bytes == max(load)


@given(arcs(), st.booleans())
def test_steps_is_the_load_without_repetitions_of_the_time(case: Arcs, host: bool) -> None:
    time, load = bare(case).steps(host=host)
    assert time[0] == 0 and (np.diff(time) > 0).all() and time[-1] < case[0]
    expected = brute_force(case, host)
    ends = [*time.tolist()[1:], case[0]]
    for begin, end, held in zip(time.tolist(), ends, load.tolist()):
        assert expected[begin:end] == [held] * (end - begin)


def test_steps_costs_nothing_for_a_huge_circle() -> None:
    n = 10**12
    trace = Trace.from_lifetimes([4, 2, 1], [0, n - 5, 7], [10, n + 3, n + 7], n=n)
    time, load = trace.steps()
    assert time.tolist() == [0, 3, 7, 10, n - 5]
    assert load.tolist() == [7, 5, 5, 1, 3]
    assert trace.peak == (0, 7)


def test_a_buffer_held_all_the_time_counts_once_wherever_its_arc_starts() -> None:
    assert Trace.from_lifetimes([5, 5], [0, 2], [3, 5], n=3).live_bytes().tolist() == [10, 10, 10]


def test_two_buffers_that_touch_at_a_step_are_not_held_together() -> None:
    assert Trace.from_lifetimes([4, 3], [0, 2], [2, 4]).live_bytes().tolist() == [4, 4, 3, 3]


def test_from_lifetimes_takes_the_last_end_for_the_length_of_the_circle() -> None:
    trace = Trace.from_lifetimes(np.array([4, 2], np.int32), (0, 1), [2, 9], name="bare")
    assert (trace.n, trace.name, len(trace.ops)) == (9, "bare", 0)
    assert trace.buffers.end.dtype == np.int64
    assert Trace.from_lifetimes([], [], []).n == 1
    assert Trace.from_lifetimes([], [], []).peak == (0, 0)
    assert Trace.from_lifetimes([1], [0], [2], n=5).live_bytes().tolist() == [1, 1, 0, 0, 0]


def test_the_largest_total_is_just_below_2_to_the_62() -> None:
    trace = Trace.from_lifetimes([2**61, 2**60], [0, 0], [1, 1])
    assert trace.peak_live_bytes == 2**61 + 2**60
    with pytest.raises(ValueError, match=r"2\*\*62 bytes or more \(the largest is 2305843009213693952\)"):
        Trace.from_lifetimes([2**61, 2**61], [0, 0], [1, 1])
    with pytest.raises(ValueError, match=r"2\*\*62"):
        Trace.from_lifetimes([2**62] * 4, [0] * 4, [1] * 4)  # the int64 sum is 0


# --- what construction refuses -------------------------------------------------------------------------

GOOD_BUFFERS: dict[str, Any] = {"size": [8, 4, 8], "start": [0, 2, 1], "end": [3, 5, 2], "host": [False, False, True]}
GOOD_OPS: dict[str, Any] = {"reads": [[0], [0], [1]], "writes": [[], [2], []], "duration": [5, -1, 0]}


def make(buffers: dict[str, Any] | None = None, ops: dict[str, Any] | None = None, n: int = 0) -> Trace:
    """A valid trace of three ops, with some columns changed."""
    b, o = GOOD_BUFFERS | (buffers or {}), GOOD_OPS | (ops or {})
    return Trace(Buffers.make(**b), Ops.make(**o), n, name="t")


def test_the_unchanged_trace_is_valid() -> None:
    assert make().live_bytes().tolist() == [12, 12, 12]
    assert make(n=3).n == 3
    assert make({"persistent": [True, True, False]}).buffers.persistent.tolist() == [True, True, False]


REFUSED: list[tuple[Callable[[], Trace], str]] = [
    (lambda: Trace(Buffers.make([], [], []), Ops.make([], [])), r"trace '': empty, .*\(n = 0\)"),
    (lambda: Trace.from_lifetimes([1], [0], [1], n=-3), r"n = -3"),
    (lambda: Trace.from_lifetimes([1], [0], [1], n=2**62), r"4611686018427387904 steps are 2\*\*62 or more"),
    (lambda: Trace.from_lifetimes([1], [5], [6], n=2**63 - 1), r"9223372036854775807 steps"),
    (lambda: Trace.from_lifetimes([1], [5], [6], n=2**70), r"1180591620717411303424 steps"),
    (lambda: make(n=4), r"trace 't': 4 steps, but there are 3 ops"),
    # columns
    (lambda: make({"start": [0, 2]}), r"buffers: 3 rows, but column 'start' has 2"),
    (lambda: make({"end": [3, 5, 2, 4]}), r"buffers: 3 rows, but column 'end' has 4"),
    (lambda: make({"host": [True]}), r"buffers: 3 rows, but column 'host' has 1"),
    (lambda: make({"persistent": [True]}), r"buffers: 3 rows, but column 'persistent' has 1"),
    (lambda: make({"kind": ["param"]}), r"buffers: 3 rows, but column 'kind' has 1"),
    (lambda: make({"of": [0]}), r"buffers: 3 rows, but column 'of' has 1"),
    (lambda: make({"name": ["w"]}), r"buffers: 3 rows, but column 'name' has 1"),
    (lambda: make(ops={"writes": [[], [2]]}), r"ops: 3 rows, but column 'writes' has 2"),
    (lambda: make(ops={"name": ["a", "b"]}), r"ops: 2 rows, but column 'reads' has 3"),
    (lambda: make(ops={"duration": [5, 5]}), r"ops: 3 rows, but column 'duration' has 2"),
    (lambda: make(ops={"stream": [0]}), r"ops: 3 rows, but column 'stream' has 1"),
    (lambda: make(ops={"flops": [0.0]}), r"ops: 3 rows, but column 'flops' has 1"),
    (lambda: make(ops={"moved": [0.0]}), r"ops: 3 rows, but column 'moved' has 1"),
    (lambda: make(ops={"role": [0]}), r"ops: 3 rows, but column 'role' has 1"),
    (lambda: make(ops={"of": [0]}), r"ops: 3 rows, but column 'of' has 1"),
    (lambda: make(ops={"rng": [True]}), r"ops: 3 rows, but column 'rng' has 1"),
    # numbers that are no int64
    (lambda: make({"size": [8, 4.5, 8]}), r"buffers: size: expected a list of integers .* float64"),
    (lambda: make({"size": ["8", "4", "8"]}), r"buffers: size: expected a list of integers"),
    (lambda: make({"size": [8, 2**70, 8]}), r"buffers: size: expected a list of integers .* object"),
    (lambda: make({"end": np.array([3, 2**63, 2], np.uint64)}), r"end: 9223372036854775808 does not fit"),
    (lambda: make({"start": [[0, 2, 1]]}), r"buffers: start: .*\(1, 3\)"),
    (lambda: make(ops={"reads": [[0], [0.5], [1]]}), r"ops: reads: expected a list of integers"),
    (lambda: make(ops={"duration": [5, None, 0]}), r"ops: duration: expected a list of integers"),
    # buffers
    (lambda: make({"size": [8, -4, 8]}), r"buffer 1: size -4 is negative"),
    (lambda: make({"start": [0, -1, 1]}), r"buffer 1: start -1 is not in \[0, 3\)"),
    (lambda: make({"start": [0, 3, 1]}), r"buffer 1: start 3 is not in \[0, 3\)"),
    (lambda: make({"end": [3, 2, 2]}), r"buffer 1: lifetime \[2, 2\) must last 1 to 3 steps"),
    (lambda: make({"end": [3, 1, 2]}), r"buffer 1: lifetime \[2, 1\) must last 1 to 3 steps"),
    (lambda: make({"end": [3, 6, 2]}), r"buffer 1: lifetime \[2, 6\) must last 1 to 3 steps"),
    (
        lambda: make({"persistent": [False, False, True]}),
        r"buffer 2: persistent, but \[1, 2\) does not cross the boundary at 3",
    ),
    # ops
    (lambda: make(ops={"reads": [[0], [3], [1]]}), r"op 1: reads buffer 3, but there are 3 buffers"),
    (lambda: make(ops={"reads": [[0], [-1], [1]]}), r"op 1: reads buffer -1, but there are 3 buffers"),
    (lambda: make(ops={"writes": [[], [], [7]]}), r"op 2: writes buffer 7, but there are 3 buffers"),
    (lambda: make(ops={"stream": [0, 1, 0]}), r"op 1: stream 1, but there are 1 streams"),
    (lambda: make(ops={"host": [0, 1, 0]}), r"op 1: host 1, but there are 1 hosts"),
    (lambda: make(ops={"host": [0, 0, -1]}), r"op 2: host -1, but there are 1 hosts"),
    (lambda: make(ops={"host": [0, 0, 2], "hosts": ["main", "copier"]}), r"op 2: host 2, but there are 2 hosts"),
    (lambda: make(ops={"host": [0]}), r"ops: 3 rows, but column 'host' has 1"),
    (lambda: make(ops={"blocking": [True]}), r"ops: 3 rows, but column 'blocking' has 1"),
    (lambda: make(ops={"attributes": [None, {}, [1]]}), r"ops: attributes of op 2: \[1\] is no mapping"),
    (lambda: make(ops={"blocking": ["no"] * 3}), r"ops: blocking: expected a list of truth values, got <U2"),
    (lambda: make(ops={"stream": [0, 0, -1]}), r"op 2: stream -1, but there are 1 streams"),
    (lambda: make(ops={"duration": [5, -2, 0]}), r"op 1: duration -2 ns is not in \[0, 2\*\*53\)"),
    (lambda: make(ops={"duration": [5, 2**53, 0]}), r"op 1: duration 9007199254740992 ns is not"),
    (lambda: make(ops={"duration": [2**52] * 3}), r"durations add up to 2\*\*53 ns or more .* 4503599627370496\)"),
    (lambda: make(ops={"role": [0, 5, 0]}), r"op 1: role 5, but there are 5 roles"),
    (lambda: make(ops={"role": [0, 0, -1]}), r"op 2: role -1, but there are 5 roles"),
    (lambda: make(ops={"flops": [0, -1.0, 0]}), r"op 1: flops -1.0 is not a finite number >= 0"),
    (lambda: make(ops={"flops": [0, 0, np.nan]}), r"op 2: flops nan is not"),
    (lambda: make(ops={"moved": [np.inf, 0, 0]}), r"op 0: bytes moved inf is not"),
    # lifetimes of what ops touch
    (lambda: make(ops={"reads": [[2], [0], [1]]}), r"op 0: reads buffer 2 before it is allocated: .* \[1, 2\)"),
    (lambda: make(ops={"reads": [[0], [0], [2]]}), r"op 2: reads buffer 2 after it is freed: .* \[1, 2\)"),
    (lambda: make(ops={"writes": [[2], [], []]}), r"op 0: writes buffer 2 before it is allocated"),
    (lambda: make({"end": [3, 4, 2]}, {"writes": [[], [1], []]}), r"op 1: writes buffer 1 after it is freed"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_a_broken_trace_is_refused_with_the_place_and_the_value(build: Callable[[], Trace], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_an_op_may_touch_a_wrapping_buffer_on_both_sides_of_the_boundary() -> None:
    trace = make({"end": [3, 4, 2]}, {"reads": [[0, 1], [0], [1]]})
    assert trace.live_bytes().tolist() == [12, 8, 12]


@pytest.mark.parametrize(
    "rows",
    [
        Csr(np.array([0, 2, 1, 2]), np.array([0, 1])),
        Csr(np.array([0, 1, 2, 9]), np.array([0, 1])),
        Csr(np.array([1, 1, 2, 2]), np.array([0, 1])),
        Csr(np.array([0, 1, 1, 1]), np.array([0, 1])),
    ],
)
def test_rows_that_are_no_csr_are_refused(rows: Csr) -> None:
    trace = make()
    with pytest.raises(ValueError, match=r"ops: reads are no CSR: ptr does not ascend from 0 to 2"):
        Trace(trace.buffers, replace(trace.ops, reads=rows))


def copying(**changes: Any) -> Trace:
    """Copy out of buffer 0 into host buffer 1, copy in from there into buffer 2."""
    given: dict[str, Any] = {"reads": [[0], [1]], "writes": [[1], [2]], "role": [1, 2], "host": [False, True, False]}
    given |= {"size": [8, 8, 8]} | changes
    buffers = Buffers.make(given["size"], [0, 0, 1], [1, 2, 3], host=given["host"])
    return Trace(buffers, Ops.make(given["reads"], given["writes"], role=given["role"]))


def test_copies_between_the_spaces_are_valid() -> None:
    assert [op.role for op in copying().ops] == ["copy_out", "copy_in"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": [8, 9, 9]}, r"op 0: a copy_out reads one buffer and writes another of the same size"),
        ({"size": [8, 8, 9]}, r"op 1: a copy_in reads one buffer and writes another of the same size"),
        ({"reads": [[], [1]]}, r"op 0: a copy_out reads one buffer"),
        ({"reads": [[0], [1, 2]]}, r"op 1: a copy_in reads one buffer"),
        ({"writes": [[1, 0], [2]]}, r"op 0: a copy_out reads one buffer"),
        ({"writes": [[1], []]}, r"op 1: a copy_in reads one buffer"),
        ({"host": [False, False, False]}, r"op 0: a copy_out goes from device to host"),
        ({"host": [True, True, False]}, r"op 0: a copy_out goes from device to host"),
        ({"host": [False, True, True]}, r"op 1: a copy_in goes from host to device"),
        ({"role": [2, 2]}, r"op 0: a copy_in goes from host to device"),
        ({"role": [1, 1]}, r"op 1: a copy_out goes from device to host"),
    ],
)
def test_a_copy_that_is_none_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        copying(**changes)


# --- reading ---------------------------------------------------------------------------------------------


def test_accesses_lists_the_ops_of_each_buffer_in_issue_order() -> None:
    reads = [[0], [0, 1], [], [1, 1]]
    writes = [[1], [1], [0], []]
    found = Trace(Buffers.make([1, 1, 1], [0, 0, 0], [4, 4, 4]), Ops.make(reads, writes)).accesses()
    assert found.op.tolist() == [[0, 1, 2], [0, 1, 3], []]
    assert found.reads.tolist() == [True, True, False, False, True, True]
    assert found.writes.tolist() == [False, False, True, True, True, False]


@given(st.lists(st.tuples(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4))), min_size=1, max_size=8))
def test_accesses_is_what_a_loop_over_ops_finds(rows: list[tuple[set[int], set[int]]]) -> None:
    n = len(rows)
    ops = Ops.make([sorted(r) for r, _ in rows], [sorted(w) for _, w in rows])
    found = Trace(Buffers.make([1] * 5, [0] * 5, [n] * 5), ops).accesses()
    for b in range(5):
        touching = [i for i, (r, w) in enumerate(rows) if b in r or b in w]
        at = slice(found.op.ptr[b], found.op.ptr[b + 1])
        assert found.op[b].tolist() == touching
        assert found.reads[at].tolist() == [b in rows[i][0] for i in touching]
        assert found.writes[at].tolist() == [b in rows[i][1] for i in touching]


def test_accesses_of_a_bare_instance_are_empty() -> None:
    assert Trace.from_lifetimes([1, 2], [0, 0], [1, 5]).accesses().op.tolist() == [[], []]
