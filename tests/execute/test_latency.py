"""Latency prediction. What is trained here learns a formula with noise (`synthetic`): it says nothing of a real GPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import gpumem
from gpumem import best_fit
from gpumem.execute import Emulator, latency, models
from gpumem.execute.latency.network import Training, shapes, sizes
from gpumem.execute.latency.predictor import LEAST, SOURCES, Predictor, estimates, estimator, fit
from gpumem.execute.latency.samples import (
    LatencyTable,
    Measurement,
    Sample,
    by_type,
    model_samples,
    read_table,
    samples,
    split,
    write_table,
)
from gpumem.execute.latency.scores import scores
from gpumem.execute.latency.synthetic import SPREAD, TILE, UNITS, grid, synthetic
from gpumem.jobs import ewma
from gpumem.kernels import reference
from gpumem.simulator.machine import Machine
from gpumem.trace import MAX_NS, RECOMPUTE, SYNC, UNKNOWN, Buffers, Ops, Trace
from tests import fake_cuda
from tests.conftest import absent, needs

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

MACHINE = Machine.named("gtx1080ti")
QUICK = Training(hidden=(16, 16), steps=100)


# ---- tables


numbers = st.floats(0, 1e18)
operands = st.lists(st.integers(0, 2**60), max_size=4).map(tuple)
dimensions = st.lists(st.lists(st.integers(1, 2**40), max_size=5).map(tuple), max_size=4).map(tuple)
ops = st.builds(
    Sample,
    st.text(max_size=8),
    operands,
    operands,
    numbers,
    numbers,
    st.none() | dimensions,
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple),
)
measured = st.builds(Measurement, ops, st.floats(0, 1), st.integers(1, MAX_NS - 1))


@given(rows=st.lists(measured, max_size=5).map(tuple), source=st.text(), packed=st.booleans())
def test_a_table_comes_back_as_it_was(rows: tuple[Measurement, ...], source: str, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("table.jsonl.gz" if packed else "table.jsonl")
        write_table(path, LatencyTable(rows, source))
        table = read_table(path)
        assert (table.rows, table.source) == (rows, source)
        assert [p.name for p in path.parent.iterdir()] == [path.name]


HEAD = '{"format": "gpumem.execute.latency/1"}\n'
ROW = '{"sample": {"name": "relu", "reads": [8], "writes": [8]}, "utilisation": 0.5, "ns": 7}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["table: empty"]),
        (ROW, ["table, line 1", "format"]),
        ('{"format": "gpumem.execute.latency/2"}', ["table, line 1", "'gpumem.execute.latency/2'"]),
        (HEAD + ROW + "{", ["table, line 3"]),
        (HEAD + "\n" + ROW.replace("7", "7.5"), ["table, line 3", "ns", "7.5"]),
        (HEAD + ROW.replace("7", "0"), ["table, line 2", "'relu'", "0 ns"]),
        (HEAD + ROW.replace("7", str(2**53)), ["table, line 2", str(2**53)]),
        (HEAD + ROW.replace("0.5", "1.25"), ["table, line 2", "utilisation 1.25"]),
        (HEAD + ROW.replace("0.5", "-0.25"), ["table, line 2", "utilisation -0.25"]),
        (HEAD + ROW.replace('"reads": [8]', '"reads": [-8]'), ["table, line 2", "-8 bytes"]),
        (HEAD + ROW.replace('"writes": [8]', '"writes": [-8]'), ["table, line 2", "-8 bytes"]),
        (HEAD + ROW.replace('"writes": [8]', '"writes": ["x"]'), ["table, line 2", "sample.writes[0]", '"x"']),
        (HEAD + ROW.replace('"writes": [8]', '"writes": [8], "flops": -1'), ["table, line 2", "flops -1"]),
        (HEAD + ROW.replace('"writes": [8]', '"writes": [8], "moved": -1'), ["table, line 2", "moved -1"]),
        (HEAD + ROW.replace('"writes": [8]', '"writes": [8], "shapes": [[2, 0]]'), ["line 2", "(2, 0)"]),
        (HEAD + ROW.replace('"name": "relu", ', ""), ["table, line 2", "name"]),
    ],
)
def test_a_bad_table_names_the_line_and_the_value(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "table"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_table(path)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_numbers_that_json_cannot_hold_are_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match=str(bad)):
            Sample("x", (), (), parameters=(bad,))
        for what in ("flops", "moved"):
            with pytest.raises(ValueError, match=f"{what} {bad}"):
                Sample("x", (), (), **{what: bad})
        with pytest.raises(ValueError, match=f"utilisation {bad}"):
            Measurement(Sample("x", (), ()), bad, 1)


def test_a_table_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_table(path, LatencyTable((), "old"))
    row = Measurement(Sample("\ud800", (), ()), 0, 1)  # a lone surrogate is no text
    with pytest.raises(UnicodeEncodeError):
        write_table(path, LatencyTable((row,), "new"))
    assert read_table(path).source == "old" and len(list(tmp_path.iterdir())) == 1


# ---- samples and what is looked at


@cache
def swapped() -> tuple[Trace, Trace, np.ndarray]:
    """A trace, the same with copies, and where each op of the latter is in the former (-1 for copies)."""
    trace = gpumem.bundled("resnet18")
    rewritten = gpumem.autoswap(trace, MACHINE, trace.peak_load * 70 // 100).apply(trace)
    place = {of: i for i, of in enumerate(trace.ops.of.tolist())}
    return trace, rewritten, np.array([place.get(of, -1) for of in rewritten.ops.of.tolist()])


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "mlp3"])
def test_samples_of_a_recorded_trace(name: str) -> None:
    trace = gpumem.bundled(name)
    found = samples(trace)
    assert len(found) == trace.n
    for i, (sample, op) in enumerate(zip(found, trace.ops)):
        assert sample.reads == tuple(trace.buffers[b].size for b in op.reads)
        assert sample.writes == tuple(trace.buffers[b].size for b in op.writes)
        work = trace.ops.name[i], trace.ops.flops[i], trace.ops.moved[i]
        assert (sample.name, sample.flops, sample.moved) == work
        assert sample.shapes is None and sample.parameters == ()


def test_a_rewrite_leaves_the_samples_alone() -> None:
    trace, rewritten, place = swapped()
    before, after = samples(trace), samples(rewritten)
    same = [after[i] == before[k] for i, k in enumerate(place) if k >= 0]
    assert len(same) == trace.n and all(same) and rewritten.n > trace.n


@pytest.mark.parametrize("name", models.MODELS)
def test_samples_of_a_model_are_those_of_its_trace_with_shapes(name: str) -> None:
    model = models.MODELS[name]()
    for full, bare, step in zip(model_samples(model), samples(model.trace), model.steps):
        assert replace(full, shapes=None, parameters=()) == bare and full.work == bare.work
        items = [t.dtype.itemsize for t in dict.fromkeys(step.arrays) if t.root in step.reads]
        assert [k * math.prod(shape) for k, shape in zip(items, full.shapes or ())] == list(full.reads), step.function
    by_name = {op.name: op for op in model_samples(model)}
    if name == "cnn":
        assert by_name["conv2d"].parameters == (1, 1) and by_name["max_pool"].parameters == (2, 2)
    transposed = {op.parameters for op in model_samples(model) if op.name == "matmul"}
    assert (0, 0) in transposed and (1, 0) in transposed


def test_what_networks_look_at() -> None:
    op = Sample("conv", (8, 0), (24,), 99, 32, ((2, 3, 4), (5,)), (1, 2))
    log = math.log
    assert sizes(op) == [(log(100), log(33)), (log(9), 0), (log(25),)]
    assert shapes(op) == [(1, 2), (log(4), log(3), log(2)), (log(5),)]
    with pytest.raises(ValueError, match=r"'conv': its shapes are unknown"):
        shapes(replace(op, shapes=None))


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    times=st.integers(1, 3),
    seed=st.integers(0, 99),
    held=st.floats(0, 1),
)
def test_a_split_keeps_shapes_together(counts: list[int], times: int, seed: int, held: float) -> None:
    rows = [
        Measurement(Sample(str(k), (n,), ()), u / 4, n + 1)
        for k, count in enumerate(counts) for n in range(count) for u in range(times)
    ]  # fmt: skip
    learn, judge = split(rows, seed=seed, held=held)
    mine, theirs = ({row.sample for row in some} for some in (learn, judge))
    assert not mine & theirs
    assert learn == [row for row in rows if row.sample in mine] and judge == [r for r in rows if r.sample in theirs]
    for k, count in enumerate(counts):
        assert sum(op.name == str(k) for op in theirs) == round(held * count)
    assert split(rows, seed=seed, held=held) == (learn, judge)


def test_splits_differ_by_seed_and_see_what_a_trace_sees() -> None:
    rows = synthetic(grid(20, seed=0), MACHINE, seed=0)
    assert split(rows, seed=0) != split(rows, seed=1)
    flat, square = (Sample("relu", (16,), (16,), shapes=(shape,)) for shape in ((4,), (2, 2)))
    for seed in range(9):  # to a trace, these are one op
        learn, judge = split([Measurement(op, 0, 1) for op in (flat, square)], seed=seed, held=0.5)
        assert (len(learn), len(judge)) in ((2, 0), (0, 2))
    with pytest.raises(ValueError, match=r"held: 1\.5"):
        split(rows, seed=0, held=1.5)


# ---- made-up measurements


def test_made_up_times_follow_the_formula() -> None:
    def alone(op: Sample, **options: Any) -> float:
        options = {"seed": 3, "noise": 0, "utilisations": (0,)} | options
        return synthetic([op], MACHINE, **options)[0].ns - MACHINE.launch_ns

    wave = 4 * TILE * UNITS
    full, more, two = (Sample("relu", (n,), (n,), moved=2 * wave) for n in (wave, wave + 4, 2 * wave))
    assert alone(more) == pytest.approx(2 * alone(full), rel=1e-3)
    assert alone(two) == pytest.approx(alone(full), rel=1e-3)
    assert alone(full, utilisations=(0.5,), slowdown=3) == pytest.approx(2.5 * alone(full), rel=1e-3)
    own = alone(full) / (float(MACHINE.roofline_ns(np.array(0.0), np.array(2.0 * wave))) - MACHINE.launch_ns)
    assert math.exp(-4 * SPREAD) < own < math.exp(4 * SPREAD) and abs(math.log(own)) > 0.01
    noisy = [row.ns for row in synthetic([full] * 400, MACHINE, seed=3, noise=0.2, utilisations=(0,))]
    assert np.std(np.log(noisy)) == pytest.approx(0.2, rel=0.2)
    assert grid(3, seed=1) == grid(3, seed=1) != grid(3, seed=2)


def test_the_grid_is_of_float32_arrays() -> None:
    for op in grid(30, seed=5):
        assert op.shapes is not None
        assert op.reads == tuple(4 * math.prod(shape) for shape in op.shapes)
        assert op.moved == sum(op.reads) + sum(op.writes)
    convolutions = [op for op in grid(30, seed=5) if op.name == "conv2d"]
    for op in convolutions:
        (_, c, _, _), (_, depth, r, s) = op.shapes or ()
        assert c == depth and op.flops == 2 * (op.writes[0] // 4) * c * r * s


# ---- learning


@cache
def table() -> tuple[list[Measurement], list[Measurement]]:
    return split(synthetic(grid(60, seed=1), MACHINE, seed=1), seed=1)


@cache
def trained(features: Callable[[Sample], Any]) -> Predictor:
    return fit(table()[0], features=features)


def judged(predictor: Predictor) -> dict[str, tuple[float, float]]:
    judge = table()[1]
    ns = predictor.ns([row.sample for row in judge], [row.utilisation for row in judge])
    fall = MACHINE.roofline_ns(np.array([r.sample.flops for r in judge]), np.array([r.sample.moved for r in judge]))
    return {s.name: (s.r2, s.log_r2) for s in scores(judge, np.where(np.isnan(ns), fall, ns))}


@pytest.mark.thorough
@pytest.mark.parametrize("features", [sizes, shapes])
def test_unseen_shapes_are_predicted(features: Callable[[Sample], Any]) -> None:
    found, nothing = judged(trained(features)), judged(fit([]))
    assert len(found) == 7
    assert np.mean([r2 for r2, _ in found.values()]) > 0.85  # 0.95 and 0.94; the paper has 0.58 on real kernels
    assert np.mean([log_r2 for _, log_r2 in found.values()]) > 0.93
    assert found["conv2d"][0] > 0.8 and next(iter(found)) == "conv2d"  # the most expensive; the paper has 0.81
    assert np.mean([r2 for r2, _ in nothing.values()]) < 0.8  # the roofline alone knows less


def test_busy_neighbours_slow_an_op_down_as_much_as_they_did() -> None:
    conv = [row.sample for row in table()[1] if row.sample.name == "conv2d" and row.utilisation == 0]
    big = [op for op in conv if op.flops > 1e9]
    alone, half, beside = (trained(sizes).ns(big, u) for u in (0, 0.5, 1))
    assert len(big) > 3 and (alone < half).all() and (half < beside).all()
    assert np.median(beside / alone) == pytest.approx(2, rel=0.15)
    rows = [table()[1][i] for i in np.random.default_rng(0).permutation(len(table()[1]))]
    together = trained(sizes).ns([row.sample for row in rows], [row.utilisation for row in rows])  # one each
    each = [trained(sizes).ns([row.sample], row.utilisation)[0] for row in rows]
    assert together == pytest.approx(each, nan_ok=True) and {row.utilisation for row in rows} == {0, 0.5, 1}


def test_training_is_deterministic_and_a_type_at_a_time() -> None:
    rows = [row for row in table()[0] if row.sample.name in ("relu", "sgd")]
    ops = [row.sample for row in rows]
    one, again, other = (fit(rows, training=replace(QUICK, seed=seed)).ns(ops, 0.5) for seed in (0, 0, 1))
    assert one.tobytes() == again.tobytes() and not np.array_equal(one, other)
    relu = fit(by_type(rows)["relu"], training=QUICK)
    alone = relu.ns(ops, 0.5)
    mine = np.array([op.name == "relu" for op in ops])
    assert np.array_equal(alone[mine], one[mine]) and np.isnan(alone[~mine]).all()


def cat(*reads: int) -> Sample:
    return Sample("cat", reads, (sum(reads),), moved=2 * sum(reads))


@pytest.mark.parametrize(
    ("features", "widths", "ops"),
    [
        (shapes, (0, 4), [op for op in grid(30, seed=0) if op.name == "relu"]),  # of rank 2 and 4
        (sizes, (2, 3, 1), [cat(*(2**k for k in range(n, n + m))) for n in range(8, 18) for m in (1, 2, 3)]),
    ],
)
def test_a_network_is_evaluated_as_it_was_trained(
    features: Callable[[Sample], Any], widths: tuple[int, ...], ops: list[Sample]
) -> None:
    rows = synthetic(ops, MACHINE, seed=0)
    (network,) = fit(rows, features=features, training=QUICK).networks.values()
    assert network.widths == widths and len(network.layers) == 3
    error = []
    for row in rows:
        x: list[float] = []
        for group, width in zip(features(row.sample), widths):
            x += [*group, *[0.0] * (width - len(group))]
        h = [(v - m) / s for v, m, s in zip([*x, row.utilisation], network.mean, network.scale)]
        for k, (weights, bias) in enumerate(network.layers):
            h = [sum(h[i] * weights[i, j] for i in range(len(h))) + bias[j] for j in range(len(bias))]
            h = [math.tanh(v) for v in h] if k < 2 else h
        want = math.exp(h[0] * network.target[1] + network.target[0])
        assert network.ns([features(row.sample)], np.array([row.utilisation])) == pytest.approx([want])
        error.append(abs(math.log(want / row.ns)))
    assert np.median(error) < 0.2


def test_constant_rows_are_learned_as_they_are() -> None:
    rows = [Measurement(Sample("tick", (4,), (4,)), 0, 5000)] * 3
    predictor = fit(rows, least=1, training=QUICK)
    assert predictor.ns([rows[0].sample], 0)[0] == pytest.approx(5000, rel=1e-3)
    assert np.isnan(predictor.ns([rows[0].sample], 0.5))  # nobody measured that


def test_what_lies_beyond_the_measurements_is_not_guessed() -> None:
    def relu(rows: int, columns: int, **more: Any) -> Sample:
        size = 4 * rows * columns
        return Sample("relu", (size,), (size,), moved=2.0 * size, shapes=((rows, columns),), **more)

    ops = [relu(2**a, 2**b) for a in range(4, 9) for b in range(4, 9)]
    rows = synthetic(ops, MACHINE, seed=0, utilisations=(0, 0.7))
    for features in (sizes, shapes):
        predictor = fit(rows, features=features, training=QUICK)
        near, far, small = relu(2**8, 2**9), relu(2**14, 2**14), relu(1, 1)
        assert np.isnan(predictor.ns([near, far, small], 0)).tolist() == [False, True, True], features
        assert np.isnan(predictor.ns([near] * 3, [0, 0.85, 1])).tolist() == [False, False, True]
        deep = replace(near, shapes=((2, 2**7, 2**9),), reads=(*near.reads, 4))
        assert np.isnan(predictor.ns([deep, near], 0)).tolist() == [True, False]
        assert not np.isnan(predictor.ns([ops[0]], 0)).any()
        assert np.isnan(predictor.ns([replace(ops[0], name="gelu")], 0)).all()
    two = fit(rows, features=shapes, training=QUICK)
    assert np.isnan(two.ns([relu(16, 16, parameters=(1.0,))], 0)).all()


def test_an_axis_less_is_an_axis_of_length_one_and_an_axis_more_is_unknown() -> None:
    def relu(*shape: int) -> Sample:
        size = 4 * math.prod(shape)
        return Sample("relu", (size,), (size,), moved=2 * size, shapes=(shape,))

    ops = [relu(a, b) for a in (1, 4, 16) for b in (1, 64, 4096)]
    predictor = fit(synthetic(ops, MACHINE, seed=0), features=shapes, least=9, training=QUICK)
    a, b = predictor.ns([relu(1, 64), relu(64)], 0)
    assert a == b > 0
    both = replace(relu(4, 64), shapes=((4, 64), (4, 64)))
    assert np.isnan(predictor.ns([relu(4, 64), relu(1, 4, 64), both], 0)).tolist() == [False, True, True]


def test_scikit_learn_is_needed_to_train_only(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, op = trained(sizes), table()[0][0].sample
    monkeypatch.setitem(sys.modules, "sklearn.neural_network", None)
    assert predictor.ns([op], 0)[0] > 0 and fit([]).networks == {}
    with pytest.raises(ImportError, match=r"gpumem\[latency\]"):
        fit(table()[0])


def test_the_import_is_light() -> None:
    code = "import sys, gpumem.execute.latency.predictor; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "hypothesis"} & set(loaded.stdout.split())


def test_scores_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import r2_score

    rows, rng = table()[1], np.random.default_rng(0)
    ns = np.array([row.ns for row in rows]) * rng.lognormal(0, 0.5, len(rows))
    found = scores(rows, ns)
    assert [s.total for s in found] == sorted((s.total for s in found), reverse=True) and len(found) == 7
    for score in found:
        mine = [row.sample.name == score.name for row in rows]
        took = np.array([row.ns for row in rows])[mine]
        assert score.r2 == pytest.approx(r2_score(took, ns[mine]))
        assert score.log_r2 == pytest.approx(r2_score(np.log(took), np.log(ns[mine])))
        assert (score.shapes, score.total) == (15, took.sum())
    with pytest.raises(ValueError, match="1 predictions for"):
        scores(rows, ns[:1])
    with pytest.raises(ValueError, match=rf"prediction 2 \({rows[2].sample.name}\): nan"):
        scores(rows, np.where(np.arange(len(rows)) == 2, np.nan, ns))
    assert math.isnan(scores(rows[:1], ns[:1])[0].r2)


def test_refusals() -> None:
    rows, trace = table()[0], gpumem.bundled("mlp3")
    with pytest.raises(ValueError, match="least: 0"):
        fit(rows, least=0)
    with pytest.raises(ValueError, match=r"'relu': its shapes are unknown"):
        fit([Measurement(Sample("relu", (n,), (n,)), 0, 9) for n in range(20)], features=shapes)
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"utilisation: {bad}"):
            estimates(trace, MACHINE, fit([]), bad)
        with pytest.raises(ValueError, match=f"utilisation: \\[{bad}"):
            fit([]).ns([rows[0].sample], [bad])
    for bad in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"slowdown: {bad}"):
            estimates(trace, MACHINE, fit([]), 0, slowdown=bad)
    named = Trace(trace.buffers, replace(trace.ops, name=("relu",) * trace.n))
    with pytest.raises(ValueError, match="features=sizes"):
        estimates(named, MACHINE, trained(shapes), 0)


# ---- durations of traces


@cache
def of_traces() -> tuple[Predictor, list[Measurement]]:
    """Trained on made-up times of the ops of VGG16, and of ResNet-18 at other batch sizes."""
    ops = [op for name in ("vgg16", "resnet18") for op in dict.fromkeys(samples(gpumem.bundled(name)))]
    wider = [scaled(op, k) for op in ops for k in (0.5, 1, 2)]
    rows = synthetic(wider, MACHINE, seed=0, noise=0.05)
    return fit(rows, training=QUICK), rows


def scaled(op: Sample, by: float) -> Sample:
    reads, writes = (tuple(int(size * by) for size in some) for some in (op.reads, op.writes))
    return replace(op, reads=reads, writes=writes, flops=op.flops * by, moved=op.moved * by)


def test_durations_of_a_recorded_trace() -> None:
    trace, (predictor, rows) = gpumem.bundled("resnet18"), of_traces()
    found = estimates(trace, MACHINE, predictor, 0.5)
    true = {(row.sample, row.utilisation): row.ns for row in rows}
    want = np.array([true[op, 0.5] for op in samples(trace)], np.float64)
    learned = found.source == SOURCES.index("network")
    assert learned.mean() > 0.8 and found.ns.dtype == np.int64
    error = np.abs(np.log(found.ns[learned] / want[learned]))
    assert np.median(error) < 0.1
    assert found.ns[learned].sum() == pytest.approx(want[learned].sum(), rel=0.1)
    assert np.array_equal(found.ns[learned], np.rint(predictor.ns(samples(trace), 0.5))[learned])
    roofline = MACHINE.durations(trace)
    assert np.array_equal(found.ns[~learned], roofline[~learned])
    assert set(found.left) == {trace.ops.name[i] for i in np.flatnonzero(~learned)}
    assert found.left.total() == (~learned).sum()
    for name in found.left:
        few = len({row.sample for row in by_type(rows)[name]})
        assert few < LEAST and predictor.why(name) == f"only {few} were measured"
    assert predictor.why("nonsense") == "none was measured"
    assert predictor.why("convolution.default") == "beyond what was measured"
    job = SimpleNamespace(trace=trace)
    assert np.array_equal(estimator(MACHINE, predictor)(job, 0.5), found.ns)
    slowed = estimator(MACHINE, predictor, slowdown=2)(job, 0.5)
    assert np.array_equal(slowed[learned], found.ns[learned])
    assert np.abs(slowed[~learned] - 2 * roofline[~learned]).max() <= 1


def test_copies_and_measured_ops_keep_their_times() -> None:
    trace, rewritten, place = swapped()
    predictor = of_traces()[0]
    found = estimates(rewritten, MACHINE, predictor, 1, slowdown=0.5)
    copies = place < 0
    assert copies.any() and np.array_equal(found.ns[copies], MACHINE.durations(rewritten)[copies])
    assert (found.source[copies] == SOURCES.index("link")).all()
    before = estimates(trace, MACHINE, predictor, 1, slowdown=0.5)
    assert np.array_equal(found.ns[~copies], before.ns[place[~copies]])

    known = np.where(np.arange(trace.n) % 2, 1000, UNKNOWN)
    half = Trace(trace.buffers, replace(trace.ops, duration=known))
    mixed = estimates(half, MACHINE, predictor, 1, slowdown=0.5)
    assert (mixed.ns[1::2] == 1500).all() and np.array_equal(mixed.ns[::2], before.ns[::2])
    assert (mixed.source[1::2] == SOURCES.index("measured")).all()


def test_roles() -> None:
    role = [0, RECOMPUTE, SYNC, SYNC]
    name = ["run", "again", "wait", "known"]
    ops = Ops.make([[0]] * 4, [[0]] * 4, name=name, role=role, duration=[UNKNOWN] * 3 + [9], moved=[4e6] * 4)
    trace = Trace(Buffers.make([4], [0], [4]), ops)
    alone = MACHINE.durations(trace)
    found = estimates(trace, MACHINE, fit([]), 0.5, slowdown=2)
    assert found.ns.tolist() == [2 * alone[0], 2 * alone[1], 0, 9]
    assert [SOURCES[k] for k in found.source] == ["roofline", "roofline", "link", "measured"]
    assert found.left == {"run": 1, "again": 1}


def test_times_that_cannot_be_counted_are_refused() -> None:
    ops = Ops.make([[0]], [[0]], duration=[2**52])
    trace = Trace(Buffers.make([4], [0], [1]), ops, name="long")
    assert estimates(trace, MACHINE, fit([]), 0.5, slowdown=1).ns[0] == 3 * 2**51
    with pytest.raises(ValueError, match=r"'long'.*op 0"):
        estimates(trace, MACHINE, fit([]), 1, slowdown=1)


def test_measured_kernels_and_the_trace_of_their_model_meet_in_one_predictor() -> None:
    model = models.MODELS["mlp"](batch=4, features=6, hidden=(5, 7, 9))
    ns = latency.measured(
        model.trace, Emulator(), model.launch(reference), place=best_fit, state=model.initial
    ).ops.duration
    rows = [Measurement(op, 0, max(int(n), 1)) for op, n in zip(model_samples(model), ns)]
    predictor = fit(rows, least=4, training=QUICK)
    found = estimates(model.trace, MACHINE, predictor, 0)
    want = [SOURCES[0] if op.name in predictor.networks else "roofline" for op in model.trace.ops]
    assert [SOURCES[k] for k in found.source] == want
    assert set(want) == {"network", "roofline"}


# ---- correction


beta = st.floats(0, 1)
ns = st.floats(0, 1e15) | st.integers(0, 2**53).map(float)
pairs = st.lists(st.tuples(ns, ns), min_size=1, max_size=6)


@given(pairs, beta)
@example([(13.0, 13.0)], 0.1)  # where the sum of the two parts, rounded, is not the whole
def test_a_correction_lies_between_estimate_and_measurement(pairs: list[tuple[float, float]], beta: float) -> None:
    old, new = np.array(pairs).T
    mixed = ewma(old, new, beta)
    assert (np.minimum(old, new) <= mixed).all() and (mixed <= np.maximum(old, new)).all()
    assert np.array_equal(ewma(old, old, beta), old)
    assert np.array_equal(ewma(old, new, 1), old) and np.array_equal(ewma(old, new, 0), new)
    assert mixed.tolist() == [float(ewma(a, b, beta)) for a, b in pairs]


@given(ns, st.lists(ns, max_size=8), beta)
def test_corrections_add_up_to_weights_that_fade(planned: float, measured: list[float], beta: float) -> None:
    estimate: Any = planned
    for t in measured:
        estimate = ewma(estimate, t, beta)
    n = len(measured)
    want = beta**n * planned + sum((1 - beta) * beta ** (n - 1 - j) * t for j, t in enumerate(measured))
    assert float(estimate) == pytest.approx(want, rel=1e-9, abs=1e-6)


@given(ns, st.lists(ns, min_size=1), beta)
def test_the_printed_formula_never_learns(planned: float, measured: list[float], beta: float) -> None:
    t = planned
    for _ in measured:
        t = beta * t + (1 - beta) * t  # as printed: what was measured does not occur
    assert t == pytest.approx(planned)
    assert float(ewma([100.0], [200.0], 0.75)[0]) == 125


def test_integers_do_not_stop_short() -> None:
    estimate: Any = np.array([10, 10])
    for _ in range(200):
        estimate = ewma(estimate, [11, 10], 0.9)
    assert estimate == pytest.approx([11, 10])


def test_bad_corrections() -> None:
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"beta: {bad}"):
            ewma([1], [1], bad)
    with pytest.raises(ValueError, match=r"\(1,\).*\(2,\)"):
        ewma([1], [1, 2], 0.5)


# ---- measuring on a device


def test_measuring_runs_on_the_fake_device() -> None:
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
import json, os, sys
sys.path.insert(0, os.environ["BENCHMARKS"])
from types import SimpleNamespace
from benchmarks.speed import _latency
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from fake_cuda import control
from gpumem.kernels import reference

kernels, one = ObjectCode.from_cubin(b"unknown kernels do nothing"), LaunchConfig(grid=1, block=1)
def of(name):
    return lambda stream, *arrays, **options: launch(stream, one, kernels.get_kernel(name))
device = Device(0)
device.set_current()
library = SimpleNamespace(**{name: of(name) for name in reference.__all__})
rows, missed = _latency.measurements(device, library, quick=True, seed=0, array=lambda array: array)
models = list(_latency.training_steps(True, 0))
alone = [row for row in rows if row.utilisation == 0]
print(json.dumps({
    "alone": [row.sample.name for row in alone], "ops": [op.name for m in models for op in list(m.trace.ops)[1:]],
    "beside": len(rows) - len(alone), "missed": missed, "live": control.count("live_device"),
    "types": [line["type"] for line in _latency.summary(rows)], "least": min(row.ns for row in alone),
    "shapes": all(row.sample.shapes for row in rows), "at": sorted({row.utilisation for row in rows}),
}))
"""
    done = fake_cuda.run(code, BENCHMARKS=str(Path(__file__).parents[2]))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["alone"] == told["ops"] and set(told["types"]) == set(told["ops"])
    assert told["beside"] > 0 and told["at"][:1] == [0] and told["shapes"] and told["least"] >= 1
    assert told["live"] == 0
