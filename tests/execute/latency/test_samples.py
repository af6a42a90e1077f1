"""Samples of ops and tables of measurements: what a file keeps, what a trace and a model tell, how rows are split."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gpumem
from gpumem.execute import models
from gpumem.execute.latency.samples import (
    LatencyTable,
    Measurement,
    Sample,
    model_samples,
    read_table,
    samples,
    split,
    table_rows,
    write_table,
)
from gpumem.execute.latency.synthetic import grid, synthetic
from gpumem.trace import MAX_NS
from tests.execute.latency.rows import MACHINE, swapped

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

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
    st.text(max_size=8),
)
measured = st.builds(
    Measurement, ops, st.floats(0, 1), st.integers(1, MAX_NS - 1), st.text(max_size=4), st.integers(1, 9)
)
tables = st.builds(
    LatencyTable,
    st.lists(measured, max_size=5).map(tuple),
    st.text(),
    st.none() | st.just(MACHINE),
    st.dictionaries(st.text(max_size=4), st.integers(1, MAX_NS), max_size=2),
)


@given(table=tables, packed=st.booleans())
def test_a_table_comes_back_as_it_was(table: LatencyTable, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("table.jsonl.gz" if packed else "table.jsonl")
        write_table(path, table)
        found = read_table(path)
        assert (found.rows, found.source) == (table.rows, table.source)
        assert (found.machine, found.iterations) == (table.machine, table.iterations)
        assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_rows_of_a_trace_are_its_measured_ops_those_alike_as_one() -> None:
    trace = gpumem.bundled("resnet18")
    assert table_rows(trace, "net") == []  # nothing was measured
    took = np.arange(1, trace.n + 1)
    took[:5] = -1
    rows = table_rows(replace(trace, ops=replace(trace.ops, duration=took)), "net")
    each: dict[Sample, list[int]] = {}
    for op, ns in list(zip(samples(trace), took.tolist()))[5:]:
        each.setdefault(op, []).append(ns)
    assert {row.sample: (row.count, row.ns, row.net) for row in rows} == {
        op: (len(ns), max(round(float(np.median(ns))), 1), "net") for op, ns in each.items()
    }
    assert len(rows) < trace.n - 5


HEAD = '{"format": "gpumem.execute.latency/1"}\n'
ROW = '{"sample": {"name": "relu", "reads": [8], "writes": [8]}, "utilisation": 0.5, "ns": 7}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["table: empty"]),
        (ROW, ["table, line 1", "format"]),
        ('{"format": "gpumem.execute.latency/3"}', ["table, line 1", "'gpumem.execute.latency/3'"]),
        (
            HEAD.replace("/1", "/2").replace("}", ', "machine": {"name": "x"}}'),
            ["table, line 1", "machine", "capacity"],
        ),
        (HEAD.replace("}", ', "iterations": {"x": 1.5}}'), ["table, line 1", "iterations", "1.5"]),
        (HEAD + ROW.replace("7", '7, "count": 0'), ["table, line 2", "'relu'", "count 0"]),
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
