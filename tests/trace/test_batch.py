"""Another batch size: by hand, against a naive model, on recorded traces."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.io import bundled, load
from gpumem.simulator.machine import Machine
from gpumem.trace import UNKNOWN, Buffers, Ops, Trace
from gpumem.trace.batch import rebatch
from gpumem.trace.kinds import PER_SAMPLE
from tests.conftest import shared
from tests.strategies import traces

NAMES = st.sampled_from([*sorted(PER_SAMPLE), "param", "opt_state", "gradient", "buffer", "opt_temp", ""])
FACTORS = st.sampled_from([0.001, 0.25, 0.5, 1.0, 1.1, 2.0, 3.7])


@st.composite
def recorded(draw: st.DrawFn) -> Trace:
    """A trace with kinds, of which one at least depends on the batch, and with flops and bytes."""
    trace = draw(traces(max_ops=8, max_buffers=8))
    kinds = [draw(NAMES) for _ in range(len(trace.buffers))]
    kinds[draw(st.integers(0, len(kinds) - 1))] = "activation"
    numbers = st.lists(st.integers(0, 100), min_size=trace.n, max_size=trace.n)
    flops, moved = np.array(draw(numbers), float), np.array(draw(numbers), float)
    known = np.array(draw(st.lists(st.booleans(), min_size=trace.n, max_size=trace.n)))
    duration = np.where(known, trace.ops.duration, UNKNOWN)
    buffers = replace(trace.buffers, kind=tuple(kinds))
    return replace(trace, buffers=buffers, ops=replace(trace.ops, flops=flops, moved=moved, duration=duration))


def same(a: Trace, b: Trace) -> bool:
    """Whether two traces agree in every column."""

    def flat(table: Buffers | Ops) -> list[object]:
        columns = [getattr(table, name) for name in table.__slots__]
        return [c.tolist() if hasattr(c, "tolist") else c for c in columns]

    return (a.n, a.name, flat(a.buffers), flat(a.ops)) == (b.n, b.name, flat(b.buffers), flat(b.ops))


@given(recorded())
def test_factor_1_is_the_identity(trace: Trace) -> None:
    assert same(rebatch(trace, 1.0), trace)


@given(recorded(), FACTORS)
def test_every_number_is_what_the_model_says(trace: Trace, factor: float) -> None:
    found = rebatch(trace, factor)
    assert same(replace(found, buffers=trace.buffers, ops=replace(found.ops, **numbers(trace.ops))), trace)
    for before, after in zip(trace.buffers, found.buffers):
        want = before.size
        if before.kind in PER_SAMPLE and before.size:
            want = max(round(Fraction(factor) * before.size), 1)
        assert after.size == want
    for i, op in enumerate(trace.ops):
        touched = {*op.reads, *op.writes}
        times = factor if any(trace.buffers.kind[b] in PER_SAMPLE for b in touched) else 1
        assert found.ops.flops[i] == pytest.approx(trace.ops.flops[i] * times)
        known = op.duration > 0
        want = max(round(Fraction(times) * op.duration), 1) if known else op.duration
        assert found.ops.duration[i] == want
        whole = sum(int(trace.buffers.size[b]) for b in touched)
        rate = sum(int(found.buffers.size[b]) for b in touched) / whole if whole else 1
        assert found.ops.moved[i] == pytest.approx(trace.ops.moved[i] * rate)


def numbers(ops: Ops) -> dict[str, object]:
    return {"flops": ops.flops, "moved": ops.moved, "duration": ops.duration}


def test_by_hand() -> None:
    #   forward reads x and w, writes y; the update reads g and changes w
    buffers = Buffers.make(
        [100, 50, 200, 50], [0, 0, 0, 1], [1, 2, 2, 2], kind=["input", "param", "activation", "gradient"]
    )
    ops = Ops.make([[0, 1], [1, 3]], [[2], [1]], duration=[1000, 10], flops=[600.0, 50.0], moved=[350.0, 150.0])
    found = rebatch(Trace(buffers, ops), 1.5)
    assert found.buffers.size.tolist() == [150, 50, 300, 50]
    assert found.ops.duration.tolist() == [1500, 10]
    assert found.ops.flops.tolist() == [900.0, 50.0]
    assert found.ops.moved.tolist() == pytest.approx([500.0, 150.0])


def test_shapes_follow_the_batch_where_it_stays_whole() -> None:
    shape = [(10, 2, 5), (5, 10), None, (), (10,), (30, 4), (7,)]  # tokens of all samples in a row; statistics
    kind = ["activation", "param", "temp", "act_grad", "input", "activation", "activation"]
    buffers = Buffers.make([400, 200, 8, 4, 40, 480, 28], [0] * 7, [1] * 7, kind=kind, shape=shape)
    trace = Trace(buffers, Ops.make([[*range(7)]], [[]]))
    assert rebatch(trace, 2.5).buffers.shape == ((25, 2, 5), (5, 10), None, (), (25,), (75, 4), None)
    assert rebatch(trace, 0.3).buffers.shape == ((3, 2, 5), (5, 10), None, (), (3,), (9, 4), None)
    assert rebatch(trace, 1.25).buffers.shape == (None, (5, 10), None, (), None, None, None)
    assert rebatch(rebatch(trace, 0.5), 2).buffers.shape == (*shape[:6], None)


def test_shapes_have_the_last_word_where_the_batch_is_known() -> None:
    #        samples  statistics  a loss  second, not first  tokens in a row  unknown: by kind  a weight
    shape = [(10, 2), (7,), (), (3, 10), (30, 4), None, (10, 10)]
    kind = ["input", "activation", "act_grad", "activation", "temp", "temp", "param"]
    buffers = Buffers.make([80, 28, 4, 120, 480, 8, 400], [0] * 7, [2] * 7, kind=kind, shape=shape)
    ops = Ops.make([[0], [1, 6]], [[2, 3, 4, 5], []], flops=[100.0, 100.0], moved=[692.0, 428.0])
    found = rebatch(Trace(buffers, ops), 2.5, batch=10)
    assert found.buffers.size.tolist() == [200, 28, 4, 300, 1200, 20, 400]
    assert found.buffers.shape == ((25, 2), (7,), (), (3, 25), (75, 4), None, (10, 10))
    assert found.ops.flops.tolist() == [250.0, 100.0]
    assert found.ops.moved.tolist() == pytest.approx([1724.0, 428.0])


RECORDED = {"unet_256": (120, [16]), "resnet34_224": (512, [128, 256])}


@pytest.mark.shared
@pytest.mark.skipif(not shared("traces/unet_256_b16.json.gz"), reason="no shared traces")
@pytest.mark.parametrize("net", RECORDED)
def test_it_is_what_was_recorded_at_other_batch_sizes(net: str) -> None:
    large, sizes = RECORDED[net]
    trace = load(*shared(f"traces/{net}_b{large}.json.gz")).trace
    for batch in sizes:
        found, want = rebatch(trace, batch / large, batch=large), load(*shared(f"traces/{net}_b{batch}.json.gz")).trace
        assert found.ops.name == want.ops.name and (found.ops.flops == want.ops.flops).all()
        apart = np.flatnonzero(found.buffers.size != want.buffers.size)
        by_chance = {want.buffers.shape[j] for j in apart.tolist()} if want.buffers.shape else set()
        assert by_chance <= {(large,)}  # as many channels as samples
        assert found.peak_live_bytes == pytest.approx(want.peak_live_bytes, rel=1e-5)
        assert found.ops.moved.sum() == pytest.approx(want.ops.moved.sum(), rel=1e-2)


def test_without_an_input_no_batch_is_known() -> None:
    buffers = Buffers.make([8, 8], [0, 0], [1, 1], kind=["activation", "param"], shape=[(2,), (2,)])
    assert rebatch(Trace(buffers, Ops.make([[0]], [[]])), 2).buffers.shape == (None, (2,))


def test_a_size_beyond_float64_stays_exact() -> None:
    trace = Trace(Buffers.make([2**53 + 1], [0], [1], kind=["temp"]), Ops.make([[0]], [[]]))
    assert rebatch(trace, 1.0).buffers.size[0] == 2**53 + 1
    assert rebatch(trace, 2.0).buffers.size[0] == 2**54 + 2


def test_vgg16_grows_by_what_is_not_its_parameters() -> None:
    trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    twice, fixed = rebatch(trace, 2), [kind not in PER_SAMPLE for kind in trace.buffers.kind]
    assert (twice.buffers.size == np.where(fixed, 1, 2) * trace.buffers.size).all()
    assert 1.5 * trace.peak_live_bytes < twice.peak_live_bytes < 2 * trace.peak_live_bytes
    before, after = machine.durations(trace), machine.durations(twice)
    optimizer = [
        i for i, op in enumerate(trace.ops) if not PER_SAMPLE & {trace.buffers.kind[b] for b in op.reads + op.writes}
    ]
    assert optimizer and (before[optimizer] == after[optimizer]).all()
    assert (after >= before).all() and 1.5 * before.sum() < after.sum() < 2 * before.sum()
    assert (rebatch(twice, 0.5).buffers.size == trace.buffers.size).all()


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_a_factor_is_positive_and_finite(factor: float) -> None:
    with pytest.raises(ValueError, match=r"factor: (0|-1|nan|inf) is not positive and finite"):
        rebatch(bundled("mlp3"), factor)


def test_a_batch_has_a_sample() -> None:
    with pytest.raises(ValueError, match="batch: 0 is below 1"):
        rebatch(bundled("mlp3"), 2, batch=0)


def test_what_no_trace_may_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sizes add up to 2\*\*62 bytes or more"):
        rebatch(bundled("vgg16"), 1e11)
    with pytest.raises(ValueError, match=r"1e\+80 times the batch: expected a list of integers within 64 bits"):
        rebatch(bundled("mlp3"), 1e80)
    bare = Trace.from_lifetimes([4], [0], [1], name="bare")
    with pytest.raises(
        ValueError, match=r"trace 'bare': no buffer is of a kind that depends on the batch \(act_grad, "
    ):
        rebatch(bare, 2)
