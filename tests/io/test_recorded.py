"""Recordings: the last steady iteration is read as their README says; what is written comes back; broken ones fail."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpumem import io
from gpumem.io import BUNDLED, bundled_path, load, read
from gpumem.trace import Buffers
from gpumem.trace.record.recorder import Recorder
from gpumem.trace.record.recording import Recording
from tests.conftest import shared
from tests.io.documents import (
    BIG,
    Json,
    assert_refused,
    edited,
    load_document,
    published_peaks,
    recorded_document,
    short,
)


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


def recorded_files() -> list[Path]:
    """The bundled ones, one with a cold start, one with ops in place that the reads do not list."""
    more = [*shared("traces/resnet18_224_b32_cold3.json.gz"), *shared("traces/ddpm_unet_32_b64.json.gz")]
    return [*(bundled_path(name) for name in BUNDLED), *more]


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
    assert trace.live_bytes().tolist() == [sum(size[j] for j in step) for step in alive]
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


COLD = "resnet18_224_b32_cold3"  # its first iteration, which the figures are of, also makes the optimiser's state


@pytest.mark.parametrize("path", [p for p in shared("traces/*.json.gz") if short(p) != COLD], ids=short)
def test_the_peak_load_of_a_shared_trace_is_the_published_one(path: Path) -> None:
    assert read(path).peak_live_bytes == published_peaks()[short(path)]


@pytest.mark.parametrize("path", shared(f"traces/{COLD}.json.gz"), ids=short)
def test_a_cold_first_iteration_is_not_steady_the_second_is_the_last(path: Path) -> None:
    with pytest.raises(ValueError, match=r"buffer 335: made at op 165, is never freed; in a steady iteration of 723"):
        load(path, iteration=0)
    assert load(path, iteration=1).trace.live_bytes().tolist() == read(path).live_bytes().tolist()


def test_a_buffer_of_the_previous_iteration_is_the_arc_of_its_successor() -> None:
    trace = load_document(recorded_document()).trace
    assert [(b.size, b.start, b.end, b.persistent, b.kind, b.of) for b in trace.buffers] == [
        (10, 0, 3, True, "param", 0),
        (4, 0, 2, False, "input", 3),
        (10, 1, 4, False, "gradient", 4),
    ]
    assert trace.live_bytes().tolist() == [24, 24, 20]
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


@pytest.mark.parametrize(("path", "value", "message"), BAD_RECORDING)
def test_a_broken_recording_is_refused(path: str, value: Json, message: str) -> None:
    assert_refused(edited(recorded_document(), path, value), message)


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
