"""Small documents of both JSON formats to break in one place, how they are loaded or refused, published peaks."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpumem import io
from gpumem.io import load
from gpumem.io.tracefile import FORMAT
from tests.conftest import SHARED

Json = Any


def short(path: Path) -> str:
    return path.name.split(".")[0]


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


def published_peaks() -> dict[str, int]:
    """Column `peak load B` of STATS.md."""
    path = SHARED / "traces" / "STATS.md"
    rows = [line.split("|")[1:-1] for line in path.read_text().splitlines()] if path.exists() else []
    return {row[0].strip(): int(row[4]) for row in rows[2:]}


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
