"""What both JSON formats share: a misspelt key is refused with the one that was meant, and so is what is no shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumem import io
from gpumem.io import bundled, read, write
from gpumem.trace import Trace

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


def files() -> dict[str, dict[str, Any]]:
    """A document of each format, of one buffer and one op."""
    ours = {"id": 0, "bytes": 8, "start": 0, "end": 1, "persistent": False, "kind": "", "space": "device"}
    op = {"i": 0, "name": "a", "reads": [], "writes": [0]}
    return {
        "recorded": {
            "meta": {"iterations": [[0, 1]]},
            "buffers": [{"id": 0, "bytes": 8, "alloc": 0, "free": 0}],
            "ops": [op],
        },
        "trace": {
            "meta": {"format": "gpumem.trace/1", "n_ops": 1},
            "buffers": [ours],
            "ops": [op | {"stream": "s", "duration_ns": 1, "role": "compute"}],
        },
    }


def loaded(document: dict[str, Any], folder: Path) -> Trace:
    (folder / "net.json").write_text(json.dumps(document))
    return io.read(folder / "net.json")


@pytest.mark.parametrize("name", ["recorded", "trace"])
@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("buffers", "shape", [2, -1], r"buffers\[0\]\.shape\[\.*1?\.*\]: expected `int` >= 0 \(found .*-1"),
        ("buffers", "shape", "2x3", r"buffers\[0\]\.shape: expected `array.*`, got `str` \(found \"2x3\"\)"),
        ("buffers", "shape", [1.5], r"buffers\[0\]\.shape\[.*\]: expected `int`, got `float` \(found"),
        ("buffers", "dtype", 3, r"buffers\[0\]\.dtype: expected `str`, got `int` \(found 3\)"),
        ("ops", "attributes", [1], r"ops\[0\]\.attributes: expected `object.*`, got `array` \(found \[1\]\)"),
        ("ops", "module", 3, r"ops\[0\]\.module: expected `str`, got `int` \(found 3\)"),
        ("ops", "host", 3, r"ops\[0\]\.host: expected `str`, got `int` \(found 3\)"),
        ("ops", "blocking", "yes", r"ops\[0\]\.blocking: expected `bool`, got `str` \(found \"yes\"\)"),
    ],
)
def test_what_is_no_shape_or_attribute_is_refused(
    name: str, part: str, key: str, value: object, message: str, tmp_path: Path
) -> None:
    document = files()[name]
    assert loaded(document, tmp_path).n == 1
    document[part][0][key] = value
    with pytest.raises(ValueError, match=message) as refused:
        loaded(document, tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["recorded", "trace"])
def test_a_shape_need_not_come_to_the_bytes(name: str, tmp_path: Path) -> None:
    document = files()[name]
    document["buffers"][0] |= {"shape": [5, 7], "dtype": "float32"}
    assert loaded(document, tmp_path).buffers[0].shape == (5, 7)
