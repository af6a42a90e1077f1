"""Cutting an iteration out of a recording: what crosses its boundary, and what is no steady iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.trace import Ops
from gpumem.trace.record.recorder import Recorder
from gpumem.trace.record.recording import BEFORE, NEVER, Recording
from tests.trace.rows import lifetimes


def recording(rows: list[tuple[int, int, int]], reads: list[list[int]], **columns: Any) -> Recording:
    """Blocks as `(size, alloc, free)`; ops that only read."""
    size, alloc, free = (np.array(column, np.int64) for column in zip(*rows))
    ops = Ops.make(reads, [[]] * len(reads), **columns)
    return Recording(size, alloc, free, ("",) * len(rows), ("",) * len(rows), ops)


def training(iterations: int, *, before_zero: int, layers: int = 3, size: int = 16) -> Recorder:
    """A small training loop: forward, backward, step; zero_grad after `before_zero` ops of the next iteration.

    One iteration of `2 * layers + 2` ops::

        batch | forward 0 .. | backward .. 0 | step
    """
    device = Recorder()
    weights = [device.malloc(size, kind="param") for _ in range(layers)]
    gradients: list[int] = []
    for _ in range(iterations):
        schedule: list[tuple[str, int]] = [("batch", 0)]
        schedule += [("forward", k) for k in range(layers)]
        schedule += [("backward", k) for k in reversed(range(layers))]
        schedule += [("step", 0)]
        old, made, values = gradients, [], []
        for i, (name, k) in enumerate(schedule):
            if i == before_zero:
                for g in old:
                    device.free(g)
            if name == "batch":
                values.append(device.malloc(4, kind="input"))
                device.exec(name, writes=[values[0]])
            elif name == "forward":
                values.append(device.malloc(8, kind="activation"))
                device.exec(name, reads=[weights[k], values[-2]], writes=[values[-1]])
            elif name == "backward":
                made.append(device.malloc(size, kind="gradient"))
                device.exec(name, reads=[values[k], weights[k]], writes=[made[-1]])
                device.free(values.pop())
            else:
                device.exec(name, reads=[*weights, *made], writes=weights)
                device.free(values.pop())
        gradients = made
    return device


@pytest.mark.parametrize("before_zero", [1, 2, 3, 4])
@pytest.mark.parametrize("iteration", [1, 2])
def test_gradients_freed_in_the_next_iteration_are_arcs(before_zero: int, iteration: int) -> None:
    n = 8
    trace = training(3, before_zero=before_zero).trace(iteration * n, (iteration + 1) * n)
    gradients = [b for b in trace.buffers if b.kind == "gradient"]
    # made by op 4, 5, 6 of this iteration; held through op before_zero - 1 of the next one
    assert [(b.start, b.end) for b in gradients] == [(4 + k, n + before_zero) for k in range(3)]
    assert not any(b.persistent for b in gradients)
    assert [(b.start, b.end, b.persistent) for b in trace.buffers if b.kind == "param"] == [(0, n, True)] * 3
    load = trace.live_bytes().tolist()
    assert load[0] == 3 * 16 + 3 * 16 + 4
    assert load[before_zero] - load[before_zero - 1] == (8 if before_zero < 4 else 16) - 3 * 16


def test_the_last_iteration_and_the_one_before_it_look_the_same() -> None:
    device = training(4, before_zero=2)
    cuts = [device.trace(k * 8, (k + 1) * 8) for k in (1, 2, 3)]  # in the last, nobody has freed the gradients
    assert lifetimes(cuts[0]) == lifetimes(cuts[1]) == lifetimes(cuts[2])
    assert cuts[0].ops.reads.tolist() == cuts[1].ops.reads.tolist() == cuts[2].ops.reads.tolist()
    assert cuts[1].ops.of.tolist() == list(range(16, 24))
    made = [b.of for b in cuts[1].buffers if b.kind == "gradient"]
    assert [device.recording().alloc[j] for j in made] == [20, 21, 22]


def test_gradients_freed_before_the_first_op_end_with_the_iteration() -> None:
    trace = training(3, before_zero=0).trace(16, 24)
    assert [(b.start, b.end) for b in trace.buffers if b.kind == "gradient"] == [(4, 8), (5, 8), (6, 8)]


def test_what_is_never_freed_and_has_no_example_is_not_steady() -> None:
    rows = [(8, 1, 1), (8, 3, NEVER)]  # the first dies at once; the second is not known to
    assert lifetimes(recording(rows, [[]] * 4).iteration(2, 4)) == [(8, 1, 2, False)]
    rows = [(8, 0, 0), (8, 2, NEVER)]  # the first is gone before the end of its iteration
    with pytest.raises(ValueError, match=r"buffer 1: made at op 2, is never freed"):
        recording(rows, [[]] * 4).iteration(2, 4)
    rows = [(8, 1, 1), (8, 1, 2), (8, 3, NEVER), (8, 3, 3)]  # the first is the last's example
    assert lifetimes(recording(rows, [[]] * 4).iteration(2, 4)) == [(8, 1, 3, False), (8, 1, 2, False)]
    rows[-1] = (8, 3, NEVER)  # nothing is known: in order
    assert lifetimes(recording(rows, [[]] * 4).iteration(2, 4)) == [(8, 1, 2, False), (8, 1, 3, False)]


def test_gradients_that_are_never_freed_are_no_steady_iteration() -> None:
    with pytest.raises(ValueError, match=r"buffer 7: made at op 4, is never freed; .* 8 ops \(\[0, 8\)\)"):
        training(1, before_zero=1).trace()


def same_size_twice(*, third: bool = False) -> Recorder:
    """Op 0 makes two blocks of one size; the first is freed after op 0 of the next iteration, the second after op 1.

    Ops of an iteration: 0 reads the old first and writes both new, 1 reads the old second, 2 nothing.
    """
    device = Recorder()
    old: list[int] = []
    for _ in range(3 if third else 2):
        if old:
            device.exec("use first", reads=[old[0]])
        else:
            device.exec("warm up")
        device.free(old[0]) if old else None
        device.exec("use second", reads=old[1:])
        device.free(old[1]) if old else None
        new = [device.malloc(8), device.malloc(8)]
        device.exec("make both", writes=new)
        old = new
    return device


@pytest.mark.parametrize("third", [False, True])
def test_several_of_one_size_made_at_one_op_are_matched_one_to_one(third: bool) -> None:
    trace = same_size_twice(third=third).trace(3, 6)
    assert lifetimes(trace) == [(8, 2, 4, False), (8, 2, 5, False)]
    assert trace.ops.reads.tolist() == [[0], [1], []]
    assert trace.ops.writes.tolist() == [[], [], [0, 1]]
    assert trace.live_bytes().tolist() == [16, 8, 16]


def test_where_the_recording_says_how_long_they_live_that_decides_who_is_who() -> None:
    # both blocks of op 2 have 8 bytes; the next pair lists them the other way round
    rows = [(8, 2, 3), (8, 2, 4), (8, 5, 7), (8, 5, 6), (1, BEFORE, NEVER)]
    trace = recording(rows, [[4]] * 3 + [[0, 1], [1], []] + [[4]] * 3).iteration(3, 6)
    assert lifetimes(trace) == [(8, 2, 5, False), (8, 2, 4, False), (1, 0, 3, True)]
    assert trace.ops.reads.tolist() == [[1, 0], [0], []]


def test_what_goes_over_the_boundary_and_never_comes_back_is_not_steady() -> None:
    rows = [(8, 1, 2), (9, 3, 4)]
    reads: list[list[int]] = [[]] * 6
    with pytest.raises(
        ValueError,
        match=r"buffer 0 \(8 bytes\), made at op 1: freed at op 2 in the iteration \[2, 4\), which makes no buffer",
    ):
        recording(rows, reads).iteration(2, 4)  # the other one has another size
    with pytest.raises(ValueError, match=r"buffer 0 .* makes no buffer like it"):
        recording([(8, 1, 2), (8, 2, 3)], reads).iteration(2, 4)  # was made at another op
    with pytest.raises(ValueError, match=r"buffer 0 .* makes no buffer like it"):
        recording([(8, 1, 2), (8, 3, 5)], reads).iteration(2, 4)  # is freed at another op
    with pytest.raises(ValueError, match=r"buffer 1 .* makes no buffer like it"):
        recording([(8, 1, 2), (8, 1, 2), (8, 3, 4)], reads).iteration(2, 4)  # there were two of them
    assert lifetimes(recording([(8, 1, 2), (8, 3, 4)], reads).iteration(2, 4)) == [(8, 1, 3, False)]


def test_what_was_there_before_the_recording_and_is_freed_has_an_unknown_origin() -> None:
    for lo in (0, 1):  # the op before the recording is no op of the iteration before
        with pytest.raises(ValueError, match=r"buffer 0 \(8 bytes\), made before the recording: freed at op 1 in"):
            recording([(8, BEFORE, 1), (8, 1, NEVER), (8, 2, NEVER), (8, 3, NEVER)], [[]] * 4).iteration(lo, lo + 2)


def test_a_block_made_two_iterations_ago_is_not_steady() -> None:
    rows = [(8, 1, 4), (8, 5, NEVER)]
    with pytest.raises(ValueError, match=r"buffer 0 .*, made at op 1: freed at op 4 in the iteration \[4, 6\)"):
        recording(rows, [[]] * 6).iteration(4, 6)


def test_a_block_that_lives_longer_than_an_iteration_is_not_steady() -> None:
    with pytest.raises(ValueError, match=r"buffer 0: made at op 2, lives 3 ops; in a steady iteration of 2 ops"):
        recording([(8, 2, 4)], [[]] * 6).iteration(2, 4)
    with pytest.raises(ValueError, match=r"buffer 1: made at op 2, lives 3 ops"):
        recording([(8, 0, 2), (8, 2, NEVER)], [[]] * 6).iteration(2, 4)


def test_a_block_of_exactly_one_iteration_is_an_arc_of_the_whole_circle() -> None:
    trace = recording([(8, 1, 2), (8, 3, NEVER)], [[], [0], [0], [1]]).iteration(2, 4)
    assert lifetimes(trace) == [(8, 1, 3, False)]
    assert trace.ops.reads.tolist() == [[0], [0]]


def test_optimiser_state_made_in_the_first_iteration_is_persistent_in_the_next() -> None:
    rows = [(8, 1, NEVER), (4, 0, 1), (4, 2, 3)]
    assert lifetimes(recording(rows, [[], [0], [], [0]]).iteration(2, 4)) == [(8, 0, 2, True), (4, 0, 2, False)]


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (0, 7), (2, 2), (3, 2), (9, 12)])
def test_ops_that_were_not_recorded_are_no_iteration(lo: int, hi: int) -> None:
    with pytest.raises(ValueError, match=rf"iteration \[{lo}, {hi}\): the recording has ops \[0, 6\)"):
        recording([(8, 0, 1)], [[]] * 6).iteration(lo, hi)


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ([[], [], [1]], r"op 2: reads buffer 1, but there are 1 buffers"),
        ([[-1], [], []], r"op 0: reads buffer -1, but there are 1 buffers"),
        ([[0], [], []], r"op 0: reads buffer 0 before it is allocated: it lives during ops \[1, 1\]"),
        ([[], [], [0]], r"op 2: reads buffer 0 after it is freed: it lives during ops \[1, 1\]"),
    ],
)
def test_a_recording_in_which_an_op_touches_what_is_not_there_is_refused(reads: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recording([(8, 1, 1)], reads)
    ops = Ops.make([[]] * 3, reads)
    with pytest.raises(ValueError, match=message.replace("reads", "writes")):
        Recording(np.array([8]), np.array([1]), np.array([1]), ("",), ("",), ops)


@given(st.data())
def test_cutting_a_repeated_iteration_gives_back_the_iteration(data: st.DataObject) -> None:
    """Unroll random arcs three times, forget what the recording cannot know, cut the middle and the last."""
    n = data.draw(st.integers(1, 6))
    arcs = data.draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(0, 4)), min_size=1, max_size=6)
    )
    rows = [(size, k * n + start, k * n + start + length - 1) for k in range(3) for start, length, size in sorted(arcs)]
    rows = [(size, alloc, free if free < 3 * n else NEVER) for size, alloc, free in rows]
    cut = recording(rows, [[]] * (3 * n))
    want = sorted((size, start, start + length, False) for start, length, size in arcs)
    assert sorted(lifetimes(cut.iteration(n, 2 * n))) == want
    assert sorted(lifetimes(cut.iteration(2 * n, 3 * n))) == want
