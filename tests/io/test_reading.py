"""Trace files: what goes out comes back, recordings are read as their README says, bad files are one clear line."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import io
from gpumem.io import BUNDLED, bundled, bundled_path, load, minimalloc, read, replacing, write
from gpumem.io.tracefile import FORMAT
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import NOWHERE, Placement
from gpumem.trace.record.recorder import Recorder
from gpumem.trace.record.recording import Recording
from tests.conftest import SHARED, shared, tiny_machine
from tests.strategies import any_plans, plans, steps, traces

Json = Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("io")


def leftovers(folder: Path) -> list[str]:
    """Names of temporary files."""
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# --- gpumem.trace/1 --------------------------------------------------------------------------------------


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


def test_what_a_recording_tells_of_statistics_wins_over_kinds() -> None:
    document = edited(recorded_document(), "buffers.0.kind", "buffer")
    document["ops"][4] |= {"writes": [4, 0]}  # reads and writes buffer 0 while it writes another
    assert load_document(document).trace.statistics.tolist() == [[], [0], []]
    assert load_document(edited(document, "ops.4.statistics", [])).trace.statistics.tolist() == [[], [], []]
    document["buffers"][0]["kind"] = "param"
    assert load_document(document).trace.statistics.tolist() == [[], [], []]
    assert load_document(edited(document, "ops.4.statistics", [0])).trace.statistics.tolist() == [[], [0], []]
    # what an op changes in place it reads as well, and what is told of one op leaves the others by kind
    told = edited(edited(document, "ops.5.statistics", [0]), "buffers.0.kind", "buffer")
    assert load_document(told).trace.statistics.tolist() == [[], [0], [0]]


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


def test_gzip_is_judged_by_content_not_by_name(tmp_path: Path) -> None:
    raw = bundled_path("mlp3").read_bytes()
    (tmp_path / "packed.json").write_bytes(raw)
    (tmp_path / "plain.json.gz").write_bytes(gzip.decompress(raw))
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + gzip.decompress(raw))
    for path in tmp_path.iterdir():
        assert read(path).peak_load == bundled("mlp3").peak_load


def test_some_device_buffers_without_offset_are_an_error_none_is_no_placement() -> None:
    assert load_document(placed_document()).placement is not None
    for b in (document := placed_document())["buffers"]:
        b.pop("offset", None)
    assert load_document(document).placement is None


# --- minimalloc ------------------------------------------------------------------------------------------


@st.composite
def instances(draw: st.DrawFn) -> Trace:
    """Bare instances with names as odd as a CSV may have."""
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, 50))
        rows.append((draw(st.integers(0, 10**12)), start, start + draw(st.integers(1, 50))))
    size, start_, end = zip(*rows)
    text = st.text(alphabet='ab,"; \tü', max_size=4)
    names = draw(st.lists(text, min_size=len(rows), max_size=len(rows)))
    return Trace(Buffers.make(size, start_, end, name=names), Ops.make([], []), max(end))


@given(instances(), st.booleans(), st.sampled_from(["i.csv", "i.csv.gz"]))
def test_a_csv_comes_back_as_it_was(folder: Path, trace: Trace, with_offsets: bool, name: str) -> None:
    placed = best_fit(trace, alignment=1) if with_offsets else None
    minimalloc.write(folder / name, trace, placed)
    found = load(folder / name)
    for column in ("size", "start", "end"):
        assert getattr(found.trace.buffers, column).tolist() == getattr(trace.buffers, column).tolist()
    assert (found.trace.n, found.trace.name, found.meta) == (trace.n, "i", {})
    names = trace.buffers.name
    good = len(set(names)) == len(names) and all(x and x == x.strip() and x.isprintable() for x in names)
    assert found.trace.buffers.name == (names if good else tuple(str(j) for j in range(len(names))))
    if placed is None:
        assert found.placement is None
    else:
        assert found.placement is not None
        assert found.placement.offset.tolist() == placed.offset.tolist()
        assert found.placement.height == placed.height


def test_host_buffers_stay_out_of_a_csv_and_ids_are_positions(tmp_path: Path) -> None:
    buffers = Buffers.make([4, 5, 6], [0, 0, 1], [2, 2, 3], host=[False, True, False])
    trace = Trace(buffers, Ops.make([], []), 3)
    minimalloc.write(tmp_path / "t.csv", trace, Placement(np.array([0, NOWHERE, 4]), 10))
    assert (tmp_path / "t.csv").read_text() == "id,lower,upper,size,offset\n0,0,2,4,0\n2,1,3,6,4\n"


def test_an_arc_does_not_go_into_a_csv(tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([1, 4], [0, 2], [3, 4], n=3)
    with pytest.raises(ValueError, match=r"t.csv: buffer 1: \[2, 4\) crosses the boundary at 3; the CSV has no arcs"):
        minimalloc.write(tmp_path / "t.csv", trace)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "id,lower,upper,size\nx,0,2,4\ny,1,3,5\n",
        "id,lower,upper,size\r\nx,0,2,4\r\ny,1,3,5\r\n",
        "id,lower,upper,size\rx,0,2,4\ry,1,3,5",
        "id,lower,upper,size\n\nx,0,2,4\n\n\ny,1,3,5\n\n",
        "\ufeffid,lower,upper,size\nx,0,2,4\ny,1,3,5\n",
        '"id","lower","upper","size"\n"x","0","2","4"\n"y","1","3","5"\n',
        " id , lower, upper ,size \n x , 0, 2 ,4\ny,1, 3,5 \n",
        "size,note,upper,id,lower\n4,a,2,x,0\n5,b,3,y,1\n",
    ],
)
def test_a_csv_may_be_written_in_many_ways(text: str) -> None:
    trace = load_document(text).trace
    assert trace.buffers.name == ("x", "y")
    assert trace.buffers.size.tolist() == [4, 5]
    assert trace.buffers.start.tolist() == [0, 1]
    assert trace.buffers.end.tolist() == [2, 3]
    assert trace.n == 3


# --- recordings ------------------------------------------------------------------------------------------


def recorded_files() -> list[Path]:
    """The bundled ones, one with a cold start, one with ops in place that the reads do not list."""
    more = [*shared("traces/resnet18_224_b32_cold3.json.gz"), *shared("traces/ddpm_unet_32_b64.json.gz")]
    return [*(bundled_path(name) for name in BUNDLED), *more]


def short(path: Path) -> str:
    return path.name.split(".")[0]


@pytest.mark.parametrize("path", recorded_files(), ids=short)
def test_a_recording_is_read_as_its_readme_says(path: Path) -> None:
    file = json.loads(gzip.decompress(path.read_bytes()))
    lo, hi = file["meta"]["iterations"][-1]
    trace = read(path)
    assert (trace.n, trace.name) == (hi - lo, file["meta"]["model"])
    alive: list[set[int]] = [set() for _ in range(lo, hi)]
    for b in file["buffers"]:
        last = hi - 1 if b["free"] is None else b["free"]
        for i in range(max(b["alloc"], lo), min(last, hi - 1) + 1):  # inclusive at both ends
            alive[i - lo].add(b["id"])
    size = {b["id"]: b["bytes"] for b in file["buffers"]}
    assert trace.load().tolist() == [sum(size[j] for j in step) for step in alive]
    throughout = set.intersection(*alive)
    of = trace.buffers.of.tolist()
    made = {j for j in throughout if file["buffers"][j]["alloc"] < lo}
    assert {j for j, persistent in zip(of, trace.buffers.persistent.tolist()) if persistent} == made
    assert sorted(of) == sorted(set.union(*alive))
    for op, row in zip(trace.ops, file["ops"][lo:hi], strict=True):
        assert (op.name, op.of) == (row["name"], row["i"])
        assert {of[j] for j in op.reads} == {*row["reads"], *row["inplace"]}
        assert {of[j] for j in op.writes} == set(row["writes"])
    assert trace.ops.flops.tolist() == [row["flops"] for row in file["ops"][lo:hi]]
    assert trace.ops.moved.tolist() == [row["bytes"] for row in file["ops"][lo:hi]]
    assert trace.ops.rng.tolist() == [row.get("rng", False) for row in file["ops"][lo:hi]]
    assert trace.buffers.kind == tuple(file["buffers"][j]["kind"] for j in of)
    assert trace.buffers.name == tuple(file["buffers"][j].get("name", "") for j in of)


def published_peaks() -> dict[str, int]:
    """Column `peak load B` of STATS.md."""
    path = SHARED / "traces" / "STATS.md"
    rows = [line.split("|")[1:-1] for line in path.read_text().splitlines()] if path.exists() else []
    return {row[0].strip(): int(row[4]) for row in rows[2:]}


COLD = "resnet18_224_b32_cold3"  # its first iteration, which the figures are of, also makes the optimiser's state


@pytest.mark.parametrize("path", [p for p in shared("traces/*.json.gz") if short(p) != COLD], ids=short)
def test_the_peak_load_of_a_shared_trace_is_the_published_one(path: Path) -> None:
    assert read(path).peak_load == published_peaks()[short(path)]


@pytest.mark.parametrize("path", shared(f"traces/{COLD}.json.gz"), ids=short)
def test_a_cold_first_iteration_is_not_steady_the_second_is_the_last(path: Path) -> None:
    with pytest.raises(ValueError, match=r"buffer 335: made at op 165, is never freed; in a steady iteration of 723"):
        load(path, iteration=0)
    assert load(path, iteration=1).trace.load().tolist() == read(path).load().tolist()


@pytest.mark.parametrize("path", shared("traces/csv/*.csv.gz"), ids=short)
def test_the_csv_of_a_shared_trace_is_its_first_iteration(path: Path) -> None:
    trace, b = read(path), read(path).buffers
    assert trace.name == short(path)
    assert trace.peak_load == published_peaks()[short(path)]
    file = json.loads(gzip.decompress((path.parents[1] / f"{short(path)}.json.gz").read_bytes()))
    n = file["meta"]["iterations"][0][1]
    last = [n - 1 if row["free"] is None else row["free"] for row in file["buffers"]]
    assert sorted(zip(b.size.tolist(), b.start.tolist(), b.end.tolist())) == sorted(
        (row["bytes"], max(row["alloc"], 0), min(free, n - 1) + 1)
        for row, free in zip(file["buffers"], last)
        if row["alloc"] < n
    )


PEAKS = {"resnet50": 1515472556, "bert_base": 15734934689, "tiny_bert": 758936113, "G_1": 3030937746}
PEAKS |= {"S_1": 1498635932, "iree_mobilenet": 7311744, "A": 1048576, "B": 1048576, "C": 1039360, "D": 986112}
PEAKS |= {"E": 1048576, "pangu_2": 5530099775}  # pangu_2.6B


@pytest.mark.parametrize("path", shared("dsa/*/*.csv"), ids=lambda path: short(path))
def test_the_peak_load_of_a_storage_allocation_instance_is_the_published_one(path: Path) -> None:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    trace = read(path)
    assert len(trace.buffers) == len(rows) - 1
    assert trace.buffers.name == tuple(row[rows[0].index("id")] for row in rows[1:])
    if short(path) != "input":
        assert trace.peak_load == PEAKS[short(path)]
    else:
        assert trace.peak_load <= 12


def recorded_document() -> Json:
    """Two iterations of three ops, with a gradient that zero_grad frees after the first op of the next one.

    ::

        op         0 in   1 work   2 step | 3 in   4 work   5 step
        0 w  10    =========================================
        1 x   4    =============          |
        2 g  10           =====================
        3 x   4                             =============
        4 g  10                                    ==========
    """
    return {
        "meta": {"model": "m", "format": 1, "iterations": [[0, 3], [3, 6]]},
        "buffers": [
            {"id": 0, "bytes": 10, "alloc": -1, "free": None, "kind": "param", "name": "w"},
            {"id": 1, "bytes": 4, "alloc": 0, "free": 1, "kind": "input"},
            {"id": 2, "bytes": 10, "alloc": 1, "free": 3, "kind": "gradient"},
            {"id": 3, "bytes": 4, "alloc": 3, "free": 4, "kind": "input"},
            {"id": 4, "bytes": 10, "alloc": 4, "free": None, "kind": "gradient"},
        ],
        "ops": [
            {"i": 0, "name": "in", "reads": [], "writes": [1], "inplace": [], "flops": 0, "bytes": 4},
            {"i": 1, "name": "work", "reads": [0, 1], "writes": [2], "inplace": [], "flops": 7, "bytes": 24},
            {"i": 2, "name": "step", "reads": [2], "writes": [0], "inplace": [0], "flops": 0, "bytes": 30},
            {"i": 3, "name": "in", "reads": [2], "writes": [3], "inplace": [], "flops": 0, "bytes": 4},
            {"i": 4, "name": "work", "reads": [0, 3], "writes": [4], "inplace": [], "flops": 7, "bytes": 24},
            {"i": 5, "name": "step", "reads": [4], "writes": [0], "inplace": [0], "flops": 0, "bytes": 30},
        ],
    }


def test_a_buffer_of_the_previous_iteration_is_the_arc_of_its_successor() -> None:
    trace = load_document(recorded_document()).trace
    assert [(b.size, b.start, b.end, b.persistent, b.kind, b.of) for b in trace.buffers] == [
        (10, 0, 3, True, "param", 0),
        (4, 0, 2, False, "input", 3),
        (10, 1, 4, False, "gradient", 4),
    ]
    assert trace.load().tolist() == [24, 24, 20]
    assert trace.ops.reads.tolist() == [[2], [0, 1], [2, 0]]  # the old gradient is the new one; in place reads
    assert trace.ops.writes.tolist() == [[1], [2], [0]]
    assert trace.ops.of.tolist() == [3, 4, 5]


def test_any_iteration_may_be_asked_for() -> None:
    first = load_document(recorded_document(), iteration=0).trace
    assert first.ops.of.tolist() == [0, 1, 2]
    assert [(b.start, b.end) for b in first.buffers] == [(0, 3), (0, 2), (1, 4)]
    with pytest.raises(ValueError, match=r"iteration 2: the recording has 2"):
        load_document(recorded_document(), iteration=2)
    with pytest.raises(ValueError, match=r"iteration -3: the recording has 2"):
        load_document(recorded_document(), iteration=-3)


def test_measured_durations_are_kept() -> None:
    document = recorded_document()
    document["ops"][4]["duration_ns"] = 12
    assert load_document(document).trace.ops.duration.tolist() == [-1, 12, -1]


def recorded_job() -> tuple[Recording, list[tuple[int, int]]]:
    """Three iterations of a job with all that a recording can say; a gradient is held over the boundary."""
    device, bounds, old = Recorder(), [], None
    w = device.malloc(400, kind="param", shape=(10, 10), dtype="float32")
    mean = device.malloc(8, kind="buffer")
    for k in range(3):
        lo = 4 * k
        x = device.malloc(4, kind="input")
        device.exec("in", writes=[x], host="loader", blocking=True)
        device.exec("pass")
        if old is not None:
            device.free(old)
        old = device.malloc(40, kind="gradient", shape=(10,), dtype="float32")
        device.exec("norm", reads=[w, x, mean], writes=[old, mean], flops=7, moved=0.5, rng=True, statistics=[])
        device.exec("conv", [old, w], [w], duration=12, attributes={"stride": [1, 2]}, module="layer1.0", flops=2**60)
        device.free(x)
        bounds.append((lo, lo + 4))
    return device.recording(), bounds


@pytest.mark.parametrize("name, first", [("r.json", 0), ("r.json.gz", 1)])
def test_what_was_recorded_comes_back(tmp_path: Path, name: str, first: int) -> None:
    recording, bounds = recorded_job()
    io.write_recording(tmp_path / name, recording, bounds[first:], name="job", meta={"torch": "2.13"})
    have, want = read(tmp_path / name), recording.iteration(*bounds[2], name="job")
    assert have.ops.of.tolist() == [i - 4 * first for i in want.ops.of.tolist()]
    for what in set(Buffers.__slots__) - {"of"}:
        assert list(getattr(have.buffers, what)) == list(getattr(want.buffers, what)), what
    for a, b in zip(have.ops, want.ops, strict=True):
        assert replace(a, of=0) == replace(b, of=0)
    for what in ("flops", "moved", "rng", "statistics"):
        assert getattr(have.ops, what).tolist() == getattr(want.ops, what).tolist(), what
    iterations = [[0, 4], [4, 8], [8, 12]][: 3 - first]
    assert load(tmp_path / name).meta == {"model": "job", "format": 1, "iterations": iterations, "torch": "2.13"}


def test_only_whole_ops_of_one_stream_are_written(tmp_path: Path) -> None:
    recording, _ = recorded_job()
    for iterations, why in (([], "no iteration to write"), ([(0, 99)], r"\[0, 99\): the recording has ops \[0, 12\)")):
        with pytest.raises(ValueError, match=why):
            io.write_recording(tmp_path / "r.json", recording, iterations)
    device = Recorder()
    device.exec("a")
    device.exec("b", stream="d2h")
    with pytest.raises(ValueError, match=r"one stream, there are compute, d2h"):
        io.write_recording(tmp_path / "r.json", device.recording(), [(0, 2)])
    assert not list(tmp_path.iterdir())


def test_a_bundled_trace_is_called_by_a_short_name() -> None:
    assert {name: bundled(name).n for name in BUNDLED} == {"vgg16": 315, "resnet18": 349, "mlp3": 40}
    assert bundled().name == "vgg16_cifar_b100"
    with pytest.raises(ValueError, match=r"bundled trace: 'vgg' is unknown; there are vgg16, resnet18, mlp3"):
        bundled("vgg")


# --- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as file:
        file.write(b"new" * 10_000)
        raise RuntimeError("half way")
    assert path.read_bytes() == b"old"
    with pytest.raises(ValueError, match=rf"{name}: cannot write \(No space left on device\)"), replacing(path) as file:
        file.write(b"new")
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_until_the_write_is_done_the_old_file_stands(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert leftovers(tmp_path) == []


def test_a_failing_trace_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"old")
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match=r"t.json.gz: 40 ops, but 3 durations"):
        write(path, trace, duration=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="placement: 2 offsets, but trace 'mlp3_b128_sgd' has 35 buffers"):
        write(path, trace, Placement(np.array([0, 1]), 5), duration=np.zeros(40, np.int64))
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_what_is_written_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        io.write_text(tmp_path / "t.txt", "ü")
        assert os.umask(0o027) == 0o027  # as it was
    finally:
        os.umask(old)
    assert (tmp_path / "t.txt").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "t.txt").read_bytes() == "ü".encode()


@pytest.mark.parametrize("target", ["missing/t.json", "file/t.json", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=rf"{target}: cannot write.*\((No such file|Not a directory|Is a directory)"):
        io.write_text(tmp_path / target, "x")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


# --- bad input -------------------------------------------------------------------------------------------


def load_document(document: Json | str | bytes, *, iteration: int = -1) -> io.Loaded:
    """Load JSON, text or bytes through a file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.json"
        path.write_bytes(as_bytes(document))
        return load(path, iteration=iteration)


def as_bytes(document: Json | str | bytes) -> bytes:
    if isinstance(document, bytes):
        return document
    return (document if isinstance(document, str) else json.dumps(document)).encode()


def placed_document() -> Json:
    """A small `gpumem.trace/1`: X goes to the host and comes back while W lives."""
    row = {"persistent": False, "kind": "activation", "space": "device"}
    op = {"name": "op", "stream": "compute", "role": "compute"}
    return {
        "meta": {"format": FORMAT, "name": "p", "n_ops": 4, "height": 8},
        "buffers": [
            {"id": 0, "bytes": 4, "start": 0, "end": 2, "offset": 0, "of": 0} | row,
            {"id": 1, "bytes": 4, "start": 1, "end": 3, "of": 0} | row | {"space": "host"},
            {"id": 2, "bytes": 4, "start": 2, "end": 4, "offset": 4, "of": 0} | row,
        ],
        "ops": [
            {"i": 0, "reads": [], "writes": [0], "duration_ns": 5, "of": 0} | op,
            {"i": 1, "reads": [0], "writes": [1], "duration_ns": 5} | op | {"stream": "d2h", "role": "copy_out"},
            {"i": 2, "reads": [1], "writes": [2], "duration_ns": 5} | op | {"stream": "h2d", "role": "copy_in"},
            {"i": 3, "reads": [2], "writes": [], "duration_ns": 5, "of": 1} | op,
        ],
    }


def edited(document: Json, path: str, value: Json) -> Json:
    """`document` with the value at `path` ("buffers.1.bytes") replaced; `...` removes it."""
    result = copy.deepcopy(document)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = result
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return result


def assert_refused(document: Json | str | bytes, message: str) -> None:
    """One line, with the file's name in front."""
    with pytest.raises(ValueError, match=message) as caught:
        load_document(document)
    text = str(caught.value)
    assert re.match(r"/.*/in\.json: .", text) and "\n" not in text
    assert len(text) < 400


BIG = 2**62

# where, what, and what the message must say
BAD_RECORDING: list[tuple[str, Json, str]] = [
    # wrong types
    ("meta", 3, r"meta: expected `object`, got `int` \(found 3\)"),
    ("meta", None, r"meta: expected `object`, got `null`"),
    ("buffers", {}, r"buffers: expected `array`, got `object` \(found \{\}\)"),
    ("buffers", "x", r'buffers: expected `array`, got `str` \(found "x"\)'),
    ("ops", 5, r"ops: expected `array`, got `int` \(found 5\)"),
    ("buffers.2", [1], r"buffers\[2\]: expected `object`, got `array` \(found \[1\]\)"),
    ("ops.2", None, r"ops\[2\]: expected `object`, got `null`"),
    ("meta.iterations", "all", r'meta.iterations: expected `array`, got `str` \(found "all"\)'),
    ("meta.iterations.1", 3, r"meta.iterations\[1\]: expected `array`, got `int` \(found 3\)"),
    ("meta.iterations.1", [3], r"meta.iterations\[1\]: expected `array` of length 2 \(found \[3\]\)"),
    ("meta.iterations.1.0", 1.5, r"meta.iterations\[1\]\[0\]: expected `int`, got `float` \(found 1.5\)"),
    ("meta.model", 3, r"meta.model: expected `str`, got `int` \(found 3\)"),
    ("meta.format", 2, r"meta.format: 2 is unknown; there are 1 and 'gpumem.trace/1'"),
    ("meta.format", "a\nb", r"meta.format: 'a\\nb' is unknown"),
    ("meta.format", "x" * 10_000, r"meta.format: 'xxx.* is unknown"),
    ("meta.format", None, r"meta.format: None is unknown"),
    ("meta.format", [1], r"meta.format: \[1\] is unknown"),
    ("buffers.1.bytes", "4", r'buffers\[1\].bytes: expected `int`, got `str` \(found "4"\)'),
    ("buffers.1.bytes", None, r"buffers\[1\].bytes: expected `int`, got `null` \(found null\)"),
    ("buffers.1.bytes", True, r"buffers\[1\].bytes: expected `int`, got `bool` \(found true\)"),
    ("buffers.1.bytes", [4], r"buffers\[1\].bytes: expected `int`, got `array`"),
    ("buffers.1.kind", 4, r"buffers\[1\].kind: expected `str`, got `int` \(found 4\)"),
    ("buffers.1.name", {}, r"buffers\[1\].name: expected `str`, got `object`"),
    ("buffers.1.alloc", "0", r'buffers\[1\].alloc: expected `int`, got `str` \(found "0"\)'),
    ("buffers.1.free", "0", r"buffers\[1\].free: expected `int \| null`, got `str`"),
    ("ops.1.name", 7, r"ops\[1\].name: expected `str`, got `int` \(found 7\)"),
    ("ops.1.reads", 0, r"ops\[1\].reads: expected `array`, got `int` \(found 0\)"),
    ("ops.1.reads", [0, "1"], r'ops\[1\].reads\[1\]: expected `int`, got `str` \(found "1"\)'),
    ("ops.1.writes", None, r"ops\[1\].writes: expected `array`, got `null`"),
    ("ops.1.inplace", {}, r"ops\[1\].inplace: expected `array`, got `object`"),
    ("ops.1.flops", "many", r'ops\[1\].flops: expected `float`, got `str` \(found "many"\)'),
    ("ops.1.bytes", [], r"ops\[1\].bytes: expected `float`, got `array`"),
    ("ops.1.rng", 1, r"ops\[1\].rng: expected `bool`, got `int`"),
    ("ops.1.duration_ns", 1.5, r"ops\[1\].duration_ns: expected `int \| null`, got `float` \(found 1.5\)"),
    # missing keys
    ("meta", ..., r"file: object missing required field `meta`"),
    ("buffers", ..., r"file: object missing required field `buffers`"),
    ("ops", ..., r"file: object missing required field `ops`"),
    ("meta.iterations", ..., r"meta: object missing required field `iterations`"),
    ("buffers.3.id", ..., r"buffers\[3\]: object missing required field `id` \(found \{\"bytes\": 4"),
    ("buffers.3.bytes", ..., r"buffers\[3\]: object missing required field `bytes`"),
    ("buffers.3.alloc", ..., r"buffers\[3\]: object missing required field `alloc`"),
    ("buffers.3.free", ..., r"buffers\[3\]: object missing required field `free`"),
    ("ops.3.i", ..., r"ops\[3\]: object missing required field `i`"),
    ("ops.3.name", ..., r"ops\[3\]: object missing required field `name`"),
    ("ops.3.reads", ..., r"ops\[3\]: object missing required field `reads`"),
    ("ops.3.writes", ..., r"ops\[3\]: object missing required field `writes`"),
    # sizes and other numbers
    ("buffers.1.bytes", -5, r"buffers\[1\].bytes: expected `int` >= 0 \(found -5\)"),
    ("buffers.1.bytes", BIG, rf"buffers\[1\].bytes: expected `int` <= {BIG - 1} \(found {BIG}\)"),
    ("buffers.1.bytes", 2**64 + 1, r"buffers\[1\].bytes: expected `int` .*\(found 18446744073709551617\)"),
    ("buffers.1.bytes", -(2**64), r"buffers\[1\].bytes: expected `int` .*\(found -18446744073709551616\)"),
    ("buffers.1.bytes", 10**400, r"buffers\[1\].bytes: .*\(found 1000000"),
    ("buffers.1.bytes", 4.5, r"buffers\[1\].bytes: expected `int`, got `float` \(found 4.5\)"),
    ("buffers.3.bytes", BIG - 1, rf"buffers: sizes add up to 2\*\*62 bytes or more \(the largest is {BIG - 1}\)"),
    ("ops.4.flops", -1, r"ops\[4\].flops: expected `float` >= 0.0 \(found -1\)"),
    ("ops.4.flops", 1e300, r"ops\[4\].flops: expected `float` .*\(found 1e\+300\)"),
    ("ops.4.bytes", -0.5, r"ops\[4\].bytes: expected `float` >= 0.0 \(found -0.5\)"),
    ("ops.4.duration_ns", -1, r"ops\[4\].duration_ns: expected `int` >= 0 \(found -1\)"),
    ("ops.4.duration_ns", 2**53, r"op 1: duration 9007199254740992 ns is not in \[0, 2\*\*53\)"),
    ("ops.4.host", 3, r"ops\[4\].host: expected `str`, got `int` \(found 3\)"),
    ("ops.4.blocking", "yes", r"ops\[4\].blocking: expected `bool`, got `str` \(found \"yes\"\)"),
    # lifetimes
    ("buffers.1.alloc", -2, r"buffers\[1\].alloc: expected `int` >= -1 \(found -2\)"),
    ("buffers.1.alloc", 6, r"buffers\[1\]: alloc 6 and free 1 are not a lifetime within 6 ops"),
    ("buffers.1.alloc", 2, r"buffers\[1\]: alloc 2 and free 1 are not a lifetime within 6 ops"),
    ("buffers.1.free", -1, r"buffers\[1\].free: expected `int` >= 0 \(found -1\)"),
    ("buffers.0.free", 6, r"buffers\[0\]: alloc -1 and free 6 are not a lifetime within 6 ops"),
    ("buffers.0.free", 10**18, r"buffers\[0\]: alloc -1 and free 1000000000000000000 are not"),
    ("buffers.3.free", BIG, rf"buffers\[3\].free: expected `int` .*\(found {BIG}\)"),
    ("buffers.3.alloc", 4, r"op 3: writes buffer 3 before it is allocated: it lives during ops \[4, 4\]"),
    ("buffers.3.free", 3, r"op 4: reads buffer 3 after it is freed: it lives during ops \[3, 3\]"),
    ("buffers.3.free", None, r"buffer 3: made at op 3, is never freed; in a steady iteration of 3 ops \(\[3, 6\)\)"),
    ("buffers.2.bytes", 11, r"buffer 2 \(11 bytes\), made at op 1: freed at op 3 in the iteration \[3, 6\)"),
    # ids
    ("buffers.1.id", 0, r"buffers\[1\]: id 0 is a duplicate"),
    ("buffers.1.id", 7, r"buffers\[1\]: id 7 is unknown: rows are numbered from 0"),
    ("buffers.1.id", -1, r"buffers\[1\].id: expected `int` >= 0 \(found -1\)"),
    ("ops.1.i", 0, r"ops\[1\]: i 0 is a duplicate"),
    ("ops.1.i", 2, r"ops\[1\]: i 2 is unknown"),
    ("ops.1.reads", [0, 5], r"op 1: reads buffer 5, but there are 5 buffers"),
    ("ops.1.reads", [-1], r"ops\[1\].reads\[0\]: expected `int` >= 0 \(found -1\)"),
    ("ops.1.writes", [2**61], r"op 1: writes buffer 2305843009213693952, but there are 5 buffers"),
    ("ops.1.inplace", [9], r"ops\[1\].inplace: buffer 9 is not among the writes"),
    ("ops.1.inplace", [0], r"ops\[1\].inplace: buffer 0 is not among the writes"),
    # nothing there, iterations that are not there
    ("meta.iterations", [], r"meta.iterations: empty"),
    ("meta.iterations.1", [3, 7], r"iteration \[3, 7\): the recording has ops \[0, 6\)"),
    ("meta.iterations.1", [6, 6], r"iteration \[6, 6\): the recording has ops \[0, 6\)"),
    ("meta.iterations.1", [6, 3], r"iteration \[6, 3\): the recording has ops \[0, 6\)"),
    ("meta.iterations.1.0", -1, r"meta.iterations\[1\]\[0\]: expected `int` >= 0 \(found -1\)"),
    ("meta.iterations.1.1", 2**70, r"meta.iterations\[1\]\[1\]: expected `int` .*\(found 1180591620717411303424\)"),
    ("buffers", [], r"op 0: writes buffer 1, but there are 0 buffers|op 1: reads buffer 0, but there are 0 buffers"),
    ("ops", [], r"buffers\[1\]: alloc 0 and free 1 are not a lifetime within 0 ops"),
]

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


def test_the_documents_that_are_broken_below_are_valid() -> None:
    assert load_document(recorded_document()).trace.n == 3
    assert load_document(placed_document()).trace.n == 4


@pytest.mark.parametrize(("path", "value", "message"), BAD_RECORDING)
def test_a_broken_recording_is_refused(path: str, value: Json, message: str) -> None:
    assert_refused(edited(recorded_document(), path, value), message)


@pytest.mark.parametrize(("path", "value", "message"), BAD_TRACE)
def test_a_broken_trace_file_is_refused(path: str, value: Json, message: str) -> None:
    document = edited(placed_document(), path, value)
    if path == "ops":
        document["meta"]["n_ops"] = 0
    assert_refused(document, message)


def test_empty_traces_are_refused() -> None:
    document = edited(edited(recorded_document(), "buffers", []), "ops", [])
    assert_refused(document, r"iteration \[3, 6\): the recording has ops \[0, 0\)")
    document = edited(edited(placed_document(), "buffers", []), "ops", [])
    assert_refused(document, r"buffers: empty, nothing to plan")
    assert_refused(edited(document, "meta.n_ops", 0), r"trace 'p': empty, an iteration has at least one step \(n = 0\)")
    document = recorded_document() | {"buffers": []}
    for op in document["ops"]:
        op |= {"reads": [], "writes": [], "inplace": []}
    assert_refused(document, r"buffers: empty, nothing to plan")


def recording_with(text: str) -> str:
    """The recording with the raw token `text` for the bytes of buffer 1."""
    return json.dumps(edited(recorded_document(), "buffers.1.bytes", "HERE")).replace('"HERE"', text)


PACKED = gzip.compress(json.dumps(recorded_document()).encode(), mtime=0)
CSV = "id,lower,upper,size\n"

BAD_BYTES: dict[str, tuple[bytes | str, str]] = {
    "empty": (b"", r"the file is empty"),
    "blank": (b" \n\t\n", r"the file is empty"),
    "byte order mark alone": (b"\xef\xbb\xbf", r"the file is empty"),
    "empty gzip": (gzip.compress(b""), r"the file is empty"),
    "gzip cut in the header": (PACKED[:5], r"damaged or truncated gzip"),
    "gzip cut in the middle": (PACKED[: len(PACKED) // 2], r"damaged or truncated gzip \(Compressed file ended"),
    "gzip cut in the checksum": (PACKED[:-3], r"damaged or truncated gzip"),
    "gzip of nothing but its magic": (b"\x1f\x8b", r"damaged or truncated gzip"),
    "gzip with garbage behind": (PACKED + b"garbage", r"damaged or truncated gzip \(Not a gzipped file"),
    "gzip with a flipped byte": (PACKED[:40] + bytes([PACKED[40] ^ 255]) + PACKED[41:], r"damaged or truncated gzip"),
    "gzip in gzip": (gzip.compress(PACKED), r"neither JSON nor CSV text"),
    "garbage": (b"\xff\xfe\x00\x80", r"neither JSON nor CSV text"),
    "utf-16": (json.dumps(recorded_document()).encode("utf-16"), r"neither JSON nor CSV text"),
    "zeros": (b"\0" * 100, r"line 1: no column 'id' in '\\x00"),
    "a picture": (b"\x89PNG\r\n\x1a\n", r"neither JSON nor CSV text"),
    "prose": ("hello", r"line 1: no column 'id' in 'hello'"),
    "a very long line": ("x" * 10**6, r"not a CSV \(field larger than field limit \(131072\)\)"),
    "an open quote": ('"' + "x\n" * 10**5, r"not a CSV \(field larger than field limit \(131072\)\)"),
    "json null": ("null", r"line 1: no column 'id' in 'null'"),
    "json list": ("[]", r"file: expected `object`, got `array` \(found \[\]\)"),
    "json object": ("{}", r"file: object missing required field `meta` \(found \{\}\)"),
    "json cut": (json.dumps(recorded_document())[:200], r"file: Input data was truncated"),
    "json twice": (json.dumps(recorded_document()) * 2, r"file: JSON is malformed: trailing characters \(byte \d+\)"),
    "json with a comment": ("{// no\n}", r"file: JSON is malformed: .* \(byte 1\) near '\{// no\\n\}'"),
    "not a number": (recording_with("NaN"), r"file: JSON is malformed: .* \(byte \d+\) near .*NaN"),
    "infinity": (recording_with("-Infinity"), r"file: JSON is malformed: .* \(byte \d+\) near .*Infinity"),
    "1e400": (recording_with("1e400"), r"buffers\[1\].bytes: number out of range \(found Infinity\)"),
    "1e3": (recording_with("1e3"), r"buffers\[1\].bytes: expected `int`, got `float` \(found 1000.0\)|op"),
    "-0.0": (recording_with("-0.5"), r"buffers\[1\].bytes: expected `int`, got `float` \(found -0.5\)"),
    "leading zero": (recording_with("012"), r"file: JSON is malformed: .* \(byte \d+\) near .*012"),
    "hexadecimal": (recording_with("0x10"), r"file: JSON is malformed: .* \(byte \d+\) near .*0x10"),
    "10,000 digits": (recording_with("1" * 10_000), r"buffers\[1\].bytes: "),
    "invalid utf-8": (
        json.dumps(recorded_document()).encode().replace(b'"work"', b'"\xff"'),
        r"ops: 'utf-8' codec can't decode byte 0xff",
    ),
    "lone surrogate": (
        json.dumps(recorded_document()).replace('"work"', '"\\ud800"'),
        r"file: JSON is malformed: unexpected end of hex escape",
    ),
    "deep list": ("[" * 100_000, r"file: "),
    "deep buffers": ('{"meta":{},"ops":[],"buffers":' + "[" * 100_000, r"file: maximum recursion depth"),
    "deep meta": ('{"meta":' + '{"a":' * 100_000, r"file: maximum recursion depth"),
    "deep and closed": ('{"meta":' + "[" * 90_000 + "]" * 90_000 + "}", r"file: maximum recursion depth"),
    # minimalloc
    "csv without upper": ("id,lower,size\nx,0,4\n", r"line 1: no column 'upper' in 'id,lower,size'"),
    "csv without header": ("x,0,2,4\n", r"line 1: no column 'id' in 'x,0,2,4'"),
    "csv header alone": (CSV, r"no buffers"),
    "csv blank lines alone": (CSV + "\n\n\n", r"no buffers"),
    "csv duplicate id": (CSV + "x,0,2,4\n\nx,1,3,5\n", r"line 4: id 'x' was already used in line 2"),
    "csv duplicate id but for blanks": (CSV + "x,0,2,4\n x ,1,3,5\n", r"line 3: id 'x' was already used in line 2"),
    "csv too few cells": (CSV + "x,0,2\n", r"line 2: 3 cells, the header has 4"),
    "csv too many cells": (CSV + "x,0,2,4,5\n", r"line 2: 5 cells, the header has 4"),
    "csv blank": (CSV + "x,0,2,4\n   \n", r"line 3: 1 cells, the header has 4"),
    "csv lower is upper": (CSV + "x,2,2,4\n", r"line 2: lower 2 is not below upper 2"),
    "csv lower above upper": (CSV + "y,0,1,1\nx,3,2,4\n", r"line 3: lower 3 is not below upper 2"),
    "csv float": (CSV + "x,0,2,4.0\n", r"line 2: size '4.0' is not an integer"),
    "csv exponent": (CSV + "x,0,2,1e3\n", r"line 2: size '1e3' is not an integer"),
    "csv not a number": (CSV + "x,0,nan,4\n", r"line 2: upper 'nan' is not an integer"),
    "csv empty cell": (CSV + "x,0,2,\n", r"line 2: size '' is not an integer"),
    "csv hexadecimal": (CSV + "x,0x0,2,4\n", r"line 2: lower '0x0' is not an integer"),
    "csv underscore": (CSV + "x,0,2,1_000\n", r"line 2: size '1_000' is not an integer"),
    "csv negative size": (CSV + "x,0,2,-4\n", r"line 2: size -4 is not in \[0, 2\*\*62\)"),
    "csv negative lower": (CSV + "x,-1,2,4\n", r"line 2: lower -1 is not in \[0, 2\*\*62\)"),
    "csv huge size": (CSV + f"x,0,2,{2**62}\n", r"line 2: size 4611686018427387904 is not in \[0, 2\*\*62\)"),
    "csv huge upper": (CSV + f"x,0,{2**64 + 1},4\n", r"line 2: upper 18446744073709551617 is not in"),
    "csv 10,000 digits": (CSV + f"x,0,2,{'9' * 10_000}\n", r"line 2: size .*9999"),
    "csv sizes in all": (CSV + f"x,0,2,{2**61}\ny,0,2,{2**61}\n", r"buffers: sizes add up to 2\*\*62 bytes or more"),
    "csv NUL": (CSV + "x,0,2,4\0\n", r"line 2: size '4\\x00' is not an integer"),
    "csv quoted line break": (CSV + '"a\nb",0,2,x\n', r"line 3: size 'x' is not an integer"),
    "csv negative offset": ("id,lower,upper,size,offset\nx,0,2,4,-1\n", r"line 2: offset -1 is not in \[0, 2\*\*62\)"),
    "csv no offset": ("id,lower,upper,size,offset\nx,0,2,4,\n", r"line 2: offset '' is not an integer"),
    "csv column twice": ("id,lower,upper,size,size\nx,0,2,4,5\n", r"line 1: column 'size' comes twice"),
    "csv with semicolons": ("id;lower;upper;size\nx;0;2;4\n", r"line 1: no column 'id' in 'id;lower;upper;size'"),
}


@pytest.mark.parametrize(("data", "message"), BAD_BYTES.values(), ids=BAD_BYTES.keys())
def test_a_file_that_is_no_trace_is_refused(data: bytes | str, message: str) -> None:
    assert_refused(data, message)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{tmp_path}: Is a directory$"):
        load(tmp_path)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/none.json: No such file or directory$"):
        load(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"^x{300}: File name too long$"):
        load("x" * 300)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"loop: (Too many levels of symbolic links|.*)$"):
        load(tmp_path / "loop")


# --- fuzz ------------------------------------------------------------------------------------------------

BYTES = bundled_path("mlp3").read_bytes()
PLAIN = gzip.decompress(BYTES)
INSTANCE = b"id,lower,upper,size,offset\n" + b"".join(b"b%d,%d,%d,%d,%d\n" % (i, i, i + 3, 10 + i, i) for i in range(9))


def survives(data: bytes) -> None:
    """Loads, or says in one line why not; what loads can be worked with."""
    try:
        found = load_document(data)
    except ValueError as error:
        assert "\n" not in str(error) and "in.json" in str(error)
        return
    assert 0 <= found.trace.peak_load < 2**62
    assert len(found.trace.accesses().op) == len(found.trace.buffers)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes flipped, something cut out or doubled, an end lost."""
    result = bytearray(data)
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=4)):
        result[at] = draw(st.integers(0, 255))
    begin, length = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 0, 1, 2, 40]))
    if draw(st.booleans()):
        del result[begin : begin + length]
    else:
        result[begin:begin] = result[begin : begin + length]
    return bytes(result[: draw(st.one_of(st.just(len(result)), st.integers(0, len(result))))])


@given(damaged(BYTES))
def test_a_damaged_gzip_never_gets_through(data: bytes) -> None:
    survives(data)


@given(damaged(PLAIN))
def test_damaged_json_never_gets_through(data: bytes) -> None:
    survives(data)


@given(damaged(INSTANCE))
def test_a_damaged_csv_never_gets_through(data: bytes) -> None:
    survives(data)


@given(st.binary(max_size=60), st.sampled_from([b"", b"{", b"[", b"id,lower,upper,size\n", b"\x1f\x8b\x08"]))
def test_random_bytes_never_get_through(data: bytes, head: bytes) -> None:
    survives(head + data)


WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**53 - 1, 2**53, 2**61, 2**62 - 1, 2**62, 2**63, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["host", "copy_in", "copy_out", "sync", FORMAT]),
    st.lists(st.integers(-1, 6), max_size=3),
    st.just({}),
)


def leaves(value: Json) -> Iterator[tuple[Json, Json]]:
    """Every container and key of a document."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from leaves(value[key])


@st.composite
def mutated(draw: st.DrawFn, make: Callable[[], Json]) -> str:
    """One to three values anywhere replaced, removed or, in a list, doubled."""
    document = make()
    for _ in range(draw(st.integers(1, 3))):
        places = list(leaves(document))
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "double"]))
        if action == "replace":
            container[key] = draw(WEIRD)
        elif action == "remove":
            del container[key]
        elif isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
    return json.dumps(document)


@given(mutated(recorded_document))
def test_a_mutated_recording_loads_or_is_refused(text: str) -> None:
    survives(text.encode())


@given(mutated(placed_document))
def test_a_mutated_trace_file_loads_or_is_refused(text: str) -> None:
    survives(text.encode())


@given(mutated(lambda: json.loads(PLAIN)))
def test_a_mutated_real_recording_loads_or_is_refused(text: str) -> None:
    survives(text.encode())


def test_as_many_streams_as_ops_take_no_longer_than_they_should() -> None:
    count = 30_000
    row = {"reads": [], "writes": [], "duration_ns": 0, "role": "compute", "name": ""}
    document = placed_document() | {"ops": [row | {"i": i, "stream": f"s{i}"} for i in range(count)]}
    document["meta"]["n_ops"] = count
    assert len(load_document(document).trace.ops.streams) == count


def test_the_last_steady_iteration_is_read(tmp_path: Path) -> None:
    # three iterations of two ops; the last one makes another buffer and leaves it, so the one before is read
    buffers = [{"id": k, "bytes": 8 + k // 2, "alloc": 2 * k, "free": 2 * k + 1 if k < 2 else None} for k in range(3)]
    accesses = [([], [i // 2]) if i % 2 == 0 else ([i // 2], []) for i in range(6)]
    ops = [{"i": i, "name": "", "reads": r, "writes": w} for i, (r, w) in enumerate(accesses)]
    meta = {"format": 1, "model": "x", "iterations": [[0, 2], [2, 4], [4, 6]]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"meta": meta, "buffers": buffers, "ops": ops}))
    assert read(path).ops.of.tolist() == [2, 3]
    assert read(path, iteration=0).ops.of.tolist() == [0, 1]
    with pytest.raises(ValueError, match="buffer 2: made at op 4, is never freed"):
        read(path, iteration=-1)


# --- keys that are misspelt ------------------------------------------------------------------------------

RECORDED: dict[str, Any] = {
    "meta": {"iterations": [[0, 1]], "notes": "", "torch": "2"},
    "buffers": [{"id": 0, "bytes": 8, "alloc": 0, "free": 0, "shape": [2], "dtype": "f4"}],
    "ops": [{"i": 0, "name": "relu", "reads": [], "writes": [0], "phase": "forward", "alloc": [0], "fwd": 3}],
}


@pytest.mark.parametrize(
    "part, given, wanted",
    [
        ("ops", "duration", "duration_ns"),
        ("ops", "Duration_NS", "duration_ns"),
        ("ops", "in_place", "inplace"),
        ("ops", "Reads", "reads"),
        ("ops", "write", "writes"),
        ("ops", "flop", "flops"),
        ("ops", "byte", "bytes"),
        ("buffers", "byte", "bytes"),
        ("buffers", "kinds", "kind"),
        ("meta", "iteration", "iterations"),
    ],
)
def test_a_near_miss_of_a_key_of_a_recorded_file_is_refused(tmp_path: Path, part: str, given: str, wanted: str) -> None:
    file = json.loads(json.dumps(RECORDED))
    row = file[part] if part == "meta" else file[part][0]
    row[given] = row.pop(wanted, 1)
    place = part if part == "meta" else rf"{part}\[0\]"
    (tmp_path / "in.json").write_text(json.dumps(file))
    with pytest.raises(ValueError, match=rf"in.json: {place}: key '{given}' is unknown; did you mean '{wanted}'\?$"):
        read(tmp_path / "in.json")


def test_further_keys_of_a_recorded_file_are_no_slip(tmp_path: Path) -> None:
    file = json.loads(json.dumps(RECORDED))
    file["ops"][0] |= {"duration_ns": 5, "duration": 0.005, "time": 3, "a`b": 1, "flags": 2}  # with the key as well
    file["further"] = 1
    (tmp_path / "in.json").write_text(json.dumps(file))
    assert read(tmp_path / "in.json").ops.duration.tolist() == [5]


@pytest.mark.parametrize(
    "part, given, message",
    [
        ("", "op", "file: key: 'op' is unknown; there are meta, buffers, ops; did you mean 'ops'"),
        ("meta", "hight", r"meta: object contains unknown field `hight`.*; did you mean 'height'\?"),
        ("buffers", "offsets", r"buffers\[0\]: object contains unknown field `offsets`.*; did you mean 'offset'\?"),
        ("ops", "flops", r"ops\[0\]: object contains unknown field `flops`"),
    ],
)
def test_unknown_keys_of_our_own_files_are_refused(tmp_path: Path, part: str, given: str, message: str) -> None:
    write(tmp_path / "t.json", bundled("mlp3"), machine="v100")
    file = json.loads((tmp_path / "t.json").read_text())
    (file if not part else file[part] if part == "meta" else file[part][0])[given] = 1
    (tmp_path / "t.json").write_text(json.dumps(file))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "t.json")


# --- write -----------------------------------------------------------------------------------------------


def test_durations_come_from_the_trace_a_machine_or_the_caller(tmp_path: Path) -> None:
    path, trace, machine = tmp_path / "t.json.gz", bundled("mlp3"), tiny_machine()
    with pytest.raises(ValueError, match=r"t.json.gz: op 0 \(.*\) was not measured.*machine='v100' would"):
        write(path, trace)
    assert not path.exists()
    write(path, trace, machine=machine)
    assert load(path).meta["machine"] == machine.name
    measured = read(path)
    assert measured.ops.duration.tolist() == machine.durations(trace).tolist()
    write(path, measured, best_fit(measured))
    assert read(path).ops.duration.tolist() == measured.ops.duration.tolist()
    write(path, measured, duration=[7] * 40)
    assert read(path).ops.duration.tolist() == [7] * 40
    for wrong, message in (([7], "40 ops, but 1 durations"), ([-7] * 40, r"duration\[0\]: -7 ns is not in")):
        with pytest.raises(ValueError, match=message):
            write(path, measured, duration=wrong)


@pytest.mark.parametrize("name", ["t", "t.txt", "t.jsn", "t.json.zip", "t.gz", ".json", "t.csv.bz2"])
def test_a_suffix_that_is_unknown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"suffix '.*' is unknown; there are .json, .json.gz, .csv, .csv.gz"):
        write(tmp_path / name, bundled("mlp3"), machine="v100")
    assert not any(tmp_path.iterdir())


def test_a_csv_is_written_by_its_suffix_and_has_no_ops(tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([4, 2], [0, 1], [2, 3])
    for name in ("t.csv", "t.csv.gz", "T.CSV"):
        write(tmp_path / name, trace, best_fit(trace, alignment=1))
        found = load(tmp_path / name)
        assert found.trace.buffers.size.tolist() == [4, 2] and found.placement is not None
    with pytest.raises(ValueError, match=r"t.csv: machine: a CSV has no ops and keeps none of it; .json would do"):
        write(tmp_path / "t.csv", trace, machine="v100")
    (tmp_path / "o.csv").write_text("id,lower,upper,size,Offsets\na,0,1,4,0\n")
    with pytest.raises(ValueError, match="line 1: column 'Offsets' is unknown; did you mean 'offset'"):
        read(tmp_path / "o.csv")
