"""Tables as text: no cell is lost."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gpumem.pipeline.report import columns

CELLS = st.text("abc", min_size=1, max_size=5)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_each_cell_is_written_in_its_column(rows: list[list[str]]) -> None:
    lines = columns(rows).split("\n")
    assert [line.split() for line in lines] == rows
    ends = [[len(line[: at + len(cell)]) for cell, at in zip(row, starts(line, row))] for line, row in zip(lines, rows)]
    for k in range(1, 4):
        assert len({end[k] for end in ends if len(end) > k}) <= 1


def starts(line: str, row: list[str]) -> list[int]:
    found, at = [], 0
    for cell in row:
        found.append(line.index(cell, at))
        at = found[-1] + len(cell)
    return found
