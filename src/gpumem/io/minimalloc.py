"""minimalloc's CSV: `id,lower,upper,size[,offset]`, one buffer a line, live during `[lower, upper)`."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.files import write_text
from gpumem.trace import Buffers, Ops, Trace, first
from gpumem.trace.placement import Placement

_NEEDED = ("id", "lower", "upper", "size")


@strict
def parse(text: str, *, name: str = "") -> tuple[Trace, Placement | None]:
    """Read an instance, and its placement if there is an `offset` column.

    Columns may come in any order; further ones are ignored, unless the name is nearly "offset". Ids are kept as names.

    Raises
    ------
    ValueError
        A missing column, a cell that is no integer or not in range, a duplicate id, no buffers; the
        message names line and value.

    Examples
    --------
    >>> trace, placement = parse("id,lower,upper,size\\nx,0,2,4\\ny,1,3,5\\n")
    >>> trace.peak_live_bytes, placement
    (9, None)
    """
    try:
        return _parse(text, name)
    except csv.Error as error:
        raise ValueError(f"not a CSV ({error})") from None


def _parse(text: str, name: str) -> tuple[Trace, Placement | None]:
    rows = csv.reader(io.StringIO(text, newline=""))
    header = [cell.strip() for cell in next(rows, [])]
    missing = [column for column in _NEEDED if column not in header]
    if missing:
        hint = "; commas part the columns" if len(header) == 1 and set(header[0]) & set(";\t") else ""
        raise ValueError(f"line 1: no column {missing[0]!r} in {','.join(header)[:80]!r}{hint}")
    near = [key for key in header if "offset" not in header and key.lower().rstrip("s") == "offset"]
    if near:
        raise ValueError(f"line 1: column {near[0]!r} is unknown; did you mean 'offset'?")
    if twice := [column for column in (*_NEEDED, "offset") if header.count(column) > 1]:
        raise ValueError(f"line 1: column {twice[0]!r} comes twice")
    wanted = [*_NEEDED[1:], *(["offset"] if "offset" in header else [])]
    at = [header.index(column) for column in wanted]
    ids: dict[str, int] = {}
    table: list[list[int]] = []
    for row in rows:
        if not row:
            continue
        line = rows.line_num
        if len(row) != len(header):
            raise ValueError(f"line {line}: {len(row)} cells, the header has {len(header)}")
        key = row[header.index("id")].strip()
        if key in ids:
            raise ValueError(f"line {line}: id {key[:40]!r} was already used in line {ids[key]}")
        ids[key] = line
        table.append([_cell(row[number], column, line) for number, column in zip(at, wanted)])
        if table[-1][0] >= table[-1][1]:
            raise ValueError(f"line {line}: lower {table[-1][0]} is not below upper {table[-1][1]}")
    if not table:
        raise ValueError("no buffers")
    columns = np.array(table, np.int64).T
    start, end, size = columns[:3]
    trace = Trace(Buffers.make(size, start, end, name=list(ids)), Ops.make([], []), int(end.max()), name=name)
    return trace, Placement.at(trace, columns[3]) if "offset" in header else None


def _cell(text: str, column: str, line: int) -> int:
    digits = text.strip()
    if not re.fullmatch(r"[+-]?[0-9]+", digits):
        raise ValueError(f"line {line}: {column} {text[:40]!r} is not an integer")
    if len(digits) > 40 or not 0 <= int(digits) < 2**62:
        raise ValueError(f"line {line}: {column} {digits[:40]} is not in [0, 2**62)")
    return int(digits)


@strict
def write(path: str | Path, trace: Trace, placement: Placement | None = None) -> None:
    """Write the device buffers of `trace`, with their offsets where a placement is given.

    Raises
    ------
    ValueError
        A buffer lives across the iteration boundary: the format has no arcs. A placement of another trace.
    """
    buffers = trace.buffers
    device = np.flatnonzero(~buffers.host)
    if (buffer := first(~buffers.host & (buffers.end > trace.n))) >= 0:
        lifetime = f"[{buffers.start[buffer]}, {buffers.end[buffer]})"
        raise ValueError(f"{path}: buffer {buffer}: {lifetime} crosses the boundary at {trace.n}; the CSV has no arcs")
    if placement is not None:
        placement.check_fits(trace)
    columns = [buffers.start, buffers.end, buffers.size, *([placement.offset] if placement else [])]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_NEEDED, *(["offset"] if placement else [])])
    for buffer, key in zip(device.tolist(), _ids(trace, device.tolist())):
        table.writerow([key, *(int(column[buffer]) for column in columns)])
    write_text(path, text.getvalue())


def _ids(trace: Trace, rows: list[int]) -> list[str]:
    """Names serve as ids if they can be told apart and read back; else positions do."""
    names = [trace.buffers.name[buffer] for buffer in rows]
    plain = all(name and name == name.strip() and name.isprintable() for name in names)
    return names if plain and len(set(names)) == len(names) else [str(buffer) for buffer in rows]
