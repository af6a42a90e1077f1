"""minimalloc's CSV: what goes out comes back, many ways to write it are read, a broken one is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.io import load, minimalloc, read
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import NOWHERE, Placement
from tests.conftest import shared
from tests.io.documents import (
    assert_refused,
    load_document,
    published_peaks,
    short,
)


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


@pytest.mark.parametrize("path", shared("traces/csv/*.csv.gz"), ids=short)
def test_the_csv_of_a_shared_trace_is_its_first_iteration(path: Path) -> None:
    trace, b = read(path), read(path).buffers
    assert trace.name == short(path)
    assert trace.peak_live_bytes == published_peaks()[short(path)]
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
        assert trace.peak_live_bytes == PEAKS[short(path)]
    else:
        assert trace.peak_live_bytes <= 12


CSV = "id,lower,upper,size\n"

BAD_CSV: dict[str, tuple[str, str]] = {
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


@pytest.mark.parametrize(("data", "message"), BAD_CSV.values(), ids=BAD_CSV.keys())
def test_a_file_that_is_no_trace_is_refused(data: str, message: str) -> None:
    assert_refused(data, message)
