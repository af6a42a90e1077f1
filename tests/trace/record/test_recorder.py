"""The Recorder as programs call it: what it is told comes out, what no block or op has is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpumem.trace.record.recorder import Recorder
from tests.trace.rows import columns, lifetimes


def test_a_block_lives_from_the_next_op_to_the_last_one_before_its_free() -> None:
    device = Recorder()
    device.exec("a")
    x = device.malloc(8, kind="activation")
    device.exec("b", writes=[x])
    device.exec("c", reads=[x])
    device.free(x)
    device.exec("d")
    trace = device.trace(name="net")
    assert lifetimes(trace) == [(8, 1, 3, False)]
    assert trace.buffers[0].kind == "activation"
    assert (trace.name, trace.n) == ("net", 4)
    assert [(op.name, op.reads, op.writes, op.of) for op in trace.ops] == [
        ("a", (), (), 0),
        ("b", (), (0,), 1),
        ("c", (0,), (), 2),
        ("d", (), (), 3),
    ]


def test_a_block_that_no_op_touches_still_takes_memory_for_one_op() -> None:
    device = Recorder()
    device.exec("a")
    device.free(device.malloc(8))
    device.exec("b")
    assert lifetimes(device.trace()) == [(8, 1, 2, False)]


def test_what_was_there_before_the_first_op_and_stays_is_persistent() -> None:
    device = Recorder()
    w, x = device.malloc(40), device.malloc(8)
    device.exec("a", reads=[w, x])
    device.free(x)
    device.exec("b", writes=[w])
    assert lifetimes(device.trace()) == [(40, 0, 2, True), (8, 0, 1, False)]


def test_an_op_in_place_reads_and_writes_the_block() -> None:
    device = Recorder()
    w = device.malloc(8)
    device.exec("relu_", reads=[w], writes=[w])
    op = device.trace().ops[0]
    assert (op.reads, op.writes) == ((0,), (0,))


def test_streams_are_numbered_as_they_come_and_costs_are_kept() -> None:
    device = Recorder()
    device.exec("a", stream="main", duration=7)
    device.exec("b", stream="side", flops=3.0, moved=4)
    device.exec("c", stream="main", rng=True)
    ops = device.trace().ops
    assert ops.rng.tolist() == [False, False, True]
    assert ops.streams == ("main", "side")
    assert [op.stream for op in ops] == ["main", "side", "main"]
    assert ops.duration.tolist() == [7, -1, -1]
    assert (ops.flops.tolist(), ops.moved.tolist()) == ([0, 3, 0], [0, 4, 0])


def test_what_an_op_keeps_as_statistics_is_told_or_known_by_kind() -> None:
    device = Recorder()
    r, s = device.malloc(8, kind="buffer"), device.malloc(8)
    for statistics in (None, [s], []):
        x = device.malloc(8)
        device.exec("norm", [r, s], [r, s, x], statistics=statistics)
        device.free(x)
    assert device.trace().statistics.tolist() == [[r], [s], []]
    assert device.trace(1).statistics.tolist() == [[s], []]
    with pytest.raises(ValueError, match=r"op 3 \(norm\): statistics in block 1, not both read and written"):
        device.exec("norm", [s], [r], statistics=[s])
    plain = Recorder()
    plain.exec("a")
    assert plain.trace().ops.statistics is None


def test_statistics_keep_their_buffers_where_blocks_are_renumbered() -> None:
    device = Recorder()
    gone = device.malloc(4)
    device.exec("before", [], [gone])
    device.free(gone)
    r = device.malloc(8)
    device.exec("norm", [], [r])
    device.exec("norm", [r], [r], statistics=[r])
    assert device.trace(2).statistics.tolist() == [[0]]


def test_events_are_what_happened_in_order() -> None:
    device = Recorder()
    x = device.malloc(8)
    device.exec("a", reads=[x], writes=[x])
    device.free(x)
    assert list(device.events) == [("malloc", 0, 8), ("read", 0, 8), ("write", 0, 8), ("free", 0, 8)]


def test_a_block_that_was_never_allocated_is_unknown() -> None:
    device = Recorder()
    x = device.malloc(8)
    device.exec("a", writes=[x])
    with pytest.raises(ValueError, match=r"op 1 \(b\): block 1 was never allocated"):
        device.exec("b", reads=[x, 1])
    with pytest.raises(ValueError, match=r"op 1 \(b\): block -1 was never allocated"):
        device.exec("b", writes=[-1])
    with pytest.raises(ValueError, match=r"free: block 5 was never allocated"):
        device.free(5)
    assert device.trace().n == 1  # what was refused was not recorded
    assert [event[0] for event in device.events] == ["malloc", "write"]


def test_a_freed_block_is_gone() -> None:
    device = Recorder()
    x = device.malloc(8)
    device.exec("a", writes=[x])
    device.free(x)
    with pytest.raises(ValueError, match=r"op 1 \(b\): block 0 was already freed after op 0"):
        device.exec("b", reads=[x])
    with pytest.raises(ValueError, match=r"op 1 \(b\): block 0 was already freed after op 0"):
        device.exec("b", writes=[x])
    with pytest.raises(ValueError, match=r"free: block 0 was already freed after op 0"):
        device.free(x)


@pytest.mark.parametrize("size", [-1, 2**62, 2**64])
def test_a_size_out_of_range_is_refused_at_once(size: int) -> None:
    with pytest.raises(ValueError, match=rf"malloc: size {size} is not in \[0, 2\*\*62\)"):
        Recorder().malloc(size)


def test_a_size_is_a_whole_number() -> None:
    with pytest.raises(TypeError):
        Recorder().malloc(1.5)  # type: ignore[arg-type]
    device = Recorder()
    device.malloc(np.int32(7))  # type: ignore[arg-type]
    device.exec("a")
    assert lifetimes(device.trace()) == [(7, 0, 1, True)]


def test_nothing_recorded_is_no_iteration() -> None:
    with pytest.raises(ValueError, match=r"iteration \[0, 0\): the recording has ops \[0, 0\)"):
        Recorder().trace()


def test_what_a_recorder_is_told_comes_out() -> None:
    device = Recorder()
    w = device.malloc(48, kind="param", shape=[3, 4], dtype="float32")
    for _ in range(2):
        x = device.malloc(8, shape=(2,))
        device.exec("conv", [w], [x], attributes={"stride": [2, 2]}, module="net.conv", host="loader")
        device.exec("loss", [x], blocking=True)
        device.free(x)
    trace = device.trace(2, 4)
    assert [(b.shape, b.dtype) for b in trace.buffers] == [((3, 4), "float32"), ((2,), "")]
    assert columns(trace.ops) == [
        ({"stride": [2, 2]}, "net.conv", "loader", False),
        (None, "", "host", True),
    ]
    assert device.recording().ops.hosts == ("loader", "host")


def test_a_recorder_that_is_told_nothing_has_no_such_columns() -> None:
    device = Recorder()
    device.exec("a", writes=[device.malloc(8)])
    trace = device.trace()
    assert (trace.buffers.shape, trace.buffers.dtype, trace.ops.attributes, trace.ops.module) == (None,) * 4
    assert trace.ops.hosts == ("host",) and not trace.ops.blocking.any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": [2, -1]}, r"malloc: shape \[2, -1\] has a negative dimension"),
        ({"shape": [1.5]}, r"malloc: shape \[1.5\] is not a list of integers"),
        ({"shape": 3}, r"shape: .*3"),
        ({"dtype": 4}, r"dtype: .*4"),
    ],
)
def test_a_recorder_refuses_what_is_no_shape(given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder().malloc(8, **given)


@pytest.mark.parametrize("given", [{"attributes": [1]}, {"module": 3}, {"host": 3}, {"blocking": "yes"}])
def test_a_recorder_refuses_what_no_op_has(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(given))}: "):
        Recorder().exec("a", **given)
