"""`gpumem.trace/1`: a trace comes back as it was, placed or not, and a broken file is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.io import bundled, load, read, write
from gpumem.io.tracefile import FORMAT
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import tiny_machine
from tests.io.documents import (
    BIG,
    Json,
    assert_refused,
    edited,
    load_document,
    placed_document,
)
from tests.strategies import any_plans, plans, steps, traces


@st.composite
def rewritten(draw: st.DrawFn) -> Trace:
    """Arcs, and in half of the cases host buffers and copies."""
    trace = draw(traces())
    return draw(plans(trace)).apply(trace) if draw(st.booleans()) else trace


def assert_same(have: Trace, want: Trace, duration: list[int]) -> None:
    """Equal in all that the format keeps: not names of buffers, flops and moved bytes."""
    assert (have.n, have.name) == (want.n, want.name)
    for column in ("size", "start", "end", "persistent", "host", "of"):
        assert getattr(have.buffers, column).tolist() == getattr(want.buffers, column).tolist()
    assert have.buffers.kind == want.buffers.kind
    assert have.ops.duration.tolist() == duration
    assert have.ops.rng.tolist() == want.ops.rng.tolist()
    for a, b in zip(have.ops, want.ops, strict=True):
        for field in ("name", "stream", "role", "reads", "writes", "of"):
            assert getattr(a, field) == getattr(b, field)


@given(rewritten(), st.sampled_from(["t.json", "t.json.gz"]), st.sampled_from([1, 16]))
def test_a_placed_trace_comes_back_as_it_was(folder: Path, trace: Trace, name: str, alignment: int) -> None:
    duration, placed = tiny_machine().durations(trace), best_fit(trace, alignment=alignment)
    machine = tiny_machine()
    write(folder / name, trace, placed, source="x.json", machine=machine, capacity=10**6, makespan_ns=5)
    found = load(folder / name)
    assert_same(found.trace, trace, duration.tolist())
    assert found.placement is not None
    assert found.placement.offset.tolist() == placed.offset.tolist()
    assert found.placement.height == placed.height
    assert found.meta == {
        "format": FORMAT,
        "name": trace.name,
        "n_ops": trace.n,
        "source": "x.json",
        "machine": machine.name,
        "capacity": 10**6,
        "height": placed.height,
        "makespan_ns": 5,
    }


@given(rewritten(), st.sampled_from(["u.json", "u.json.gz"]))
def test_a_trace_without_placement_comes_back_as_it_was(folder: Path, trace: Trace, name: str) -> None:
    duration = tiny_machine().durations(trace)
    write(folder / name, trace, duration=duration)
    found = load(folder / name)
    assert_same(found.trace, trace, duration.tolist())
    assert found.placement is None
    assert not {"height", "capacity", "makespan_ns"} & set(found.meta)
    assert read(folder / name).n == trace.n


def test_a_bare_instance_keeps_its_length_and_what_is_placed_its_height(tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([4, 0, 2], [0, 1, 10**12 - 1], [2, 3, 10**12 + 1], n=10**12, name="bare")
    write(tmp_path / "t.json", trace, Placement(np.array([0, 0, 4]), 64))
    found = load(tmp_path / "t.json")
    assert_same(found.trace, trace, [])
    assert found.placement is not None and found.placement.height == 64
    assert found.meta["capacity"] == 64


def test_random_draws_kinds_and_odd_names_survive(tmp_path: Path) -> None:
    name = 'a "b", ü\n\\\x00'
    ops = Ops.make([[0]], [[]], name=[name], streams=[name], duration=[0], of=[-1], rng=[True])
    trace = Trace(Buffers.make([1], [0], [1], kind=[name], of=[-1], persistent=[True]), ops, name=name)
    write(tmp_path / "t.json.gz", trace, duration=np.array([2**53 - 1]))
    assert_same(read(tmp_path / "t.json.gz"), trace, [2**53 - 1])


def test_what_an_op_keeps_as_statistics_survives_against_its_kinds(tmp_path: Path) -> None:
    table = Buffers.make([8, 8, 8], [0, 0, 0], [2, 2, 2], kind=["buffer", "activation", "act_grad"])
    reads, writes = [[0, 1], [0, 1]], [[0, 1, 2], [0, 1, 2]]
    for kept in (None, [[0], [0]], [[], [1]], [[1, 0], []]):
        trace = Trace(table, Ops.make(reads, writes, statistics=kept))
        write(tmp_path / "t.json", trace, duration=np.zeros(2, np.int64))
        assert read(tmp_path / "t.json").statistics.tolist() == trace.statistics.tolist()


def test_a_trace_file_keeps_what_is_told_of_statistics_and_random_ops(tmp_path: Path) -> None:
    ops = Ops.make([[0], [0]], [[0, 1], [0]], rng=[True, False], statistics=[[], [0]])
    trace = Trace(Buffers.make([4, 4], [0, 0], [2, 2], kind=["buffer", ""]), ops)
    write(tmp_path / "t.json", trace, duration=np.zeros(2, np.int64))
    assert [row.get("statistics") for row in json.loads((tmp_path / "t.json").read_text())["ops"]] == [[], [0]]
    found = read(tmp_path / "t.json")
    assert (found.statistics.tolist(), found.ops.rng.tolist()) == ([[], [0]], [True, False])


@given(st.data())
def test_any_training_step_survives_before_and_after_a_plan(data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=4))
    with TemporaryDirectory() as folder:
        for one in (trace, data.draw(any_plans(trace)).apply(trace)):
            write(Path(folder) / "t.json", one, machine=tiny_machine())
            found = read(Path(folder) / "t.json")
            assert found.statistics.tolist() == [sorted(row) for row in one.statistics.tolist()]
            assert found.ops.rng.tolist() == one.ops.rng.tolist() and found.ops.role.tolist() == one.ops.role.tolist()
            assert found.buffers.kind == one.buffers.kind and found.buffers.of.tolist() == one.buffers.of.tolist()


def test_the_file_has_one_buffer_or_op_a_line_and_the_keys_of_the_design(tmp_path: Path) -> None:
    trace = bundled("mlp3")
    write(tmp_path / "t.json", trace, best_fit(trace), machine=tiny_machine())
    lines = (tmp_path / "t.json").read_text().splitlines()
    assert len(lines) == len(trace.buffers) + len(trace.ops) + 5
    file = json.loads((tmp_path / "t.json").read_text())
    assert set(file) == {"meta", "buffers", "ops"}
    assert set(file["meta"]) == {"format", "name", "n_ops", "source", "machine", "capacity", "height"}
    columns = {"id", "bytes", "start", "end", "persistent", "kind", "space", "offset", "of", "shape", "dtype"}
    assert set(file["buffers"][0]) == columns
    assert set(file["ops"][0]) == {"i", "name", "stream", "reads", "writes", "duration_ns", "role", "of"}


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_same_trace_gives_the_same_bytes_wherever_it_is_written(tmp_path: Path, name: str) -> None:
    trace = bundled("mlp3")
    duration, placed = tiny_machine().durations(trace), best_fit(trace)
    first, second = tmp_path / name, tmp_path / f"other_{name}"
    write(first, trace, placed, duration=duration)
    os.utime(first, (0, 0))
    write(second, trace, placed, duration=duration)
    assert first.read_bytes() == second.read_bytes()
    assert (first.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    again = load(second)
    assert again.placement is not None
    write(first, again.trace, again.placement)
    assert first.read_bytes() == second.read_bytes()


def test_some_device_buffers_without_offset_are_an_error_none_is_no_placement() -> None:
    assert load_document(placed_document()).placement is not None
    for b in (document := placed_document())["buffers"]:
        b.pop("offset", None)
    assert load_document(document).placement is None


BAD_TRACE: list[tuple[str, Json, str]] = [
    ("meta.n_ops", ..., r"meta: object missing required field `n_ops`"),
    ("meta.n_ops", "4", r'meta.n_ops: expected `int`, got `str` \(found "4"\)'),
    ("meta.n_ops", 5, r"meta.n_ops: 5, but there are 4 ops"),
    ("meta.n_ops", 0, r"meta.n_ops: 0, but there are 4 ops"),
    ("meta.n_ops", -1, r"meta.n_ops: expected `int` >= 0 \(found -1\)"),
    ("meta.n_ops", BIG, rf"meta.n_ops: expected `int` .*\(found {BIG}\)"),
    ("meta.name", 3, r"meta.name: expected `str`, got `int` \(found 3\)"),
    ("meta.height", 7, r"meta.height: 7, but buffers reach up to 8"),
    ("meta.height", "8", r"meta.height: expected `int \| null`, got `str`"),
    ("meta.format", "gpumem.trace/2", r"meta.format: 'gpumem.trace/2' is unknown"),
    ("buffers.0.bytes", -1, r"buffers\[0\].bytes: expected `int` >= 0 \(found -1\)"),
    ("buffers.0.bytes", 1e3, r"buffers\[0\].bytes: expected `int`, got `float`|op 1: a copy_out reads one"),
    ("buffers.0.bytes", 5, r"op 1: a copy_out reads one buffer and writes another of the same size"),
    ("buffers.0.start", 4, r"buffer 0: start 4 is not in \[0, 4\)"),
    ("buffers.0.start", -1, r"buffers\[0\].start: expected `int` >= 0 \(found -1\)"),
    ("buffers.0.end", 0, r"buffer 0: lifetime \[0, 0\) must last 1 to 4 steps"),
    ("buffers.0.end", 5, r"buffer 0: lifetime \[0, 5\) must last 1 to 4 steps"),
    ("buffers.0.end", BIG - 1, r"buffer 0: lifetime \[0, 4611686018427387903\) must last"),
    ("buffers.0.end", 1, r"op 1: reads buffer 0 after it is freed: it lives during \[0, 1\)"),
    ("buffers.0.persistent", True, r"buffer 0: persistent, but \[0, 2\) does not cross the boundary at 4"),
    ("buffers.0.persistent", 1, r"buffers\[0\].persistent: expected `bool`, got `int` \(found 1\)"),
    ("buffers.0.kind", None, r"buffers\[0\].kind: expected `str`, got `null`"),
    ("buffers.0.space", "disk", r"buffers\[0\].space: invalid enum value 'disk' \(found \"disk\"\)"),
    ("buffers.0.space", "a\nb - at `$", r"buffers\[0\].space: invalid enum value 'a\\nb - at `\$' \(found"),
    ("buffers.0.space", "host", r"buffers\[0\].offset: 0, but the buffer is on the host|op 1: a copy_out goes from"),
    ("buffers.1.space", "device", r"op 1: a copy_out goes from device to host"),
    ("buffers.1.offset", 3, r"buffers\[1\].offset: 3, but the buffer is on the host"),
    ("buffers.0.offset", ..., r"buffers\[0\]: no offset, though other device buffers have one"),
    ("buffers.0.offset", -1, r"buffers\[0\].offset: expected `int` >= 0 \(found -1\)"),
    ("buffers.0.offset", BIG - 1, r"offset\[0\]: 4611686018427387903 for 4 bytes is not within"),
    ("buffers.0.of", -2, r"buffers\[0\].of: expected `int` >= -1 \(found -2\)"),
    ("buffers.2.id", 1, r"buffers\[2\]: id 1 is a duplicate"),
    ("buffers", [], r"op 0: writes buffer 0, but there are 0 buffers|op 1: reads buffer 0, but there are 0 buffers"),
    ("ops.1.i", 0, r"ops\[1\]: i 0 is a duplicate"),
    ("ops.1.reads", [3], r"op 1: reads buffer 3, but there are 3 buffers"),
    ("ops.1.reads", [], r"op 1: a copy_out reads one buffer"),
    ("ops.1.stream", 0, r"ops\[1\].stream: expected `str`, got `int` \(found 0\)"),
    ("ops.1.role", "copy", r"ops\[1\].role: invalid enum value 'copy' \(found \"copy\"\)"),
    ("ops.1.role", "copy_in", r"op 1: a copy_in goes from host to device"),
    ("ops.1.duration_ns", None, r"ops\[1\].duration_ns: expected `int`, got `null`"),
    ("ops.1.duration_ns", -1, r"ops\[1\].duration_ns: expected `int` >= 0 \(found -1\)"),
    ("ops.1.duration_ns", 2**53, r"op 1: duration 9007199254740992 ns is not in \[0, 2\*\*53\)"),
    ("ops.1.duration_ns", 2**53 - 1, r"ops: durations add up to 2\*\*53 ns or more"),
    ("ops.1.of", "x", r"ops\[1\].of: expected `int \| null`, got `str` \(found \"x\"\)"),
    ("ops.3.statistics", [2], r"op 3: statistics in buffer 2, which it does not both read and write"),
    ("ops.3.statistics", [9], r"op 3: statistics buffer 9, but there are 3 buffers"),
    ("ops.3.statistics", [-1], r"ops\[3\].statistics\[0\]: expected `int` >= 0 \(found -1\)"),
    ("ops.1.rng", "no", r"ops\[1\].rng: expected `bool`, got `str`"),
    ("ops.1.host", 3, r"ops\[1\].host: expected `str`, got `int` \(found 3\)"),
    ("ops.1.host", None, r"ops\[1\].host: expected `str`, got `null`"),
    ("ops.1.blocking", "yes", r"ops\[1\].blocking: expected `bool`, got `str` \(found \"yes\"\)"),
    ("ops.1.blocking", 1, r"ops\[1\].blocking: expected `bool`, got `int` \(found 1\)"),
    ("ops", [], r"buffers\[|meta.n_ops|empty"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD_TRACE)
def test_a_broken_trace_file_is_refused(path: str, value: Json, message: str) -> None:
    document = edited(placed_document(), path, value)
    if path == "ops":
        document["meta"]["n_ops"] = 0
    assert_refused(document, message)


def test_as_many_streams_as_ops_take_no_longer_than_they_should() -> None:
    count = 30_000
    row = {"reads": [], "writes": [], "duration_ns": 0, "role": "compute", "name": ""}
    document = placed_document() | {"ops": [row | {"i": i, "stream": f"s{i}"} for i in range(count)]}
    document["meta"]["n_ops"] = count
    assert len(load_document(document).trace.ops.streams) == count
