"""Tables by columns: Buffers, Ops and Csr give back the rows that they were made of, and take what is a column."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.trace import Buffer, Buffers, Csr, Op, Ops, Trace, int_column


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=6), st.data())
def test_csr_take_reorders_and_repeats_rows(rows: list[list[int]], data: st.DataObject) -> None:
    packed = Csr.of(rows)
    order = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=8)) if rows else []
    taken = packed.take(np.array(order, np.int64))
    assert taken.tolist() == [rows[k] for k in order]
    assert packed.tolist() == rows and len(packed) == len(rows)
    assert packed.rows().tolist() == [i for i, row in enumerate(rows) for _ in row]
    assert taken.ptr.dtype == taken.idx.dtype == np.int64


def test_records_read_one_row_and_negative_positions_count_from_the_end() -> None:
    buffers = Buffers.make(
        [8, 4],
        [0, 1],
        [2, 2],
        persistent=[True, False],
        host=[False, True],
        kind=["param", ""],
        of=[7, -1],
        name=["w", ""],
    )
    ops = Ops.make(
        [[0], [0, 1]],
        [[], [1]],
        name=["a", "b"],
        stream=[0, 1],
        streams=["x", "y"],
        duration=[3, -1],
        role=[0, 4],
        of=[9, -1],
    )
    trace = Trace(buffers, ops)
    assert trace.buffers[0] == Buffer(0, 8, 0, 2, True, "device", "param", 7, "w")
    assert trace.buffers[-1] == Buffer(1, 4, 1, 2, False, "host", "", -1, "")
    assert trace.ops[0] == Op(0, "a", "x", "compute", (0,), (), 3, 9)
    assert trace.ops[-1] == Op(1, "b", "y", "sync", (0, 1), (1,), -1, -1)
    assert [b.id for b in trace.buffers] == [0, 1] and [op.id for op in trace.ops] == [0, 1]
    for table in (trace.buffers, trace.ops):
        with pytest.raises(IndexError):
            table[2]


def test_int_column_keeps_small_integer_types_and_copies_nothing_it_need_not() -> None:
    given = np.arange(3, dtype=np.int64)
    assert int_column(given, "x") is given
    assert int_column(np.array([1, 2], np.uint8), "x").tolist() == [1, 2]
    assert int_column((i for i in range(3)), "x").tolist() == [0, 1, 2]
    assert int_column([], "x").dtype == np.int64


def test_columns_take_shapes_as_lists_and_refuse_what_is_none() -> None:
    assert Buffers.make([8, 8], [0, 0], [1, 1], shape=[[2, 3], None]).shape == ((2, 3), None)
    for shape, why in (([2, -3], r"\[2, -3\] has a negative dimension"), ([2.5], r"\[2.5\] is not a list of integers")):
        with pytest.raises(ValueError, match=f"buffer 1: shape {why}"):
            Buffers.make([8, 8], [0, 0], [1, 1], shape=[None, shape])
