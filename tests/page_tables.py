"""Tables of pages, row by row, held against the files that benchmarks wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


class Table(NamedTuple):
    """A table of a page: its header and its rows, cell by cell."""

    head: list[str]
    rows: list[list[str]]


def tables(page: Path) -> list[Table]:
    """All tables of a page."""
    found: list[Table] = []
    before = ""
    for line in page.read_text().splitlines():
        if re.fullmatch(r"\|(?: -+ \|)+", line):
            found.append(Table(_cells(before), []))
        elif line.startswith("|") and before.startswith("|"):
            found[-1].rows.append(_cells(line))
        before = line
    return found


def table(page: Path, *head: str) -> Table:
    """The table of a page whose header begins with these cells."""
    (found,) = [one for one in tables(page) if one.head[: len(head)] == list(head)]
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def printed(file: str, begins: str, *words: str) -> list[str]:
    """The lines of a result file that begin so and have these words among theirs."""
    lines = (RESULTS / file).read_text().splitlines()
    return [line for line in lines if line.startswith(begins) and {*words} <= {*line.split()}]


def cell(file: str, head: str, begins: str, *words: str, below: str = "") -> str:
    """What a result file has under a head, whose column ends where it ends, in the first line that begins so.

    `words` are among the words of that line; `below`: of the first table below this text.
    """
    lines = (RESULTS / file).read_text().partition(below)[2].splitlines()
    edge = next(line.index(f"  {head}") + len(head) + 2 for line in lines if f"  {head}" in line)
    line = next(line for line in lines if line.startswith(begins) and {*words} <= {*line.split()})
    return re.split(r" {2,}", line[:edge].strip())[-1]


def figures(text: str) -> list[str]:
    """The figures of a text, without commas."""
    return [figure.replace(",", "") for figure in FIGURE.findall(text)]


def agrees(shown: Sequence[str], line: str) -> bool:
    """Whether the figures stand in a printed line, in this order, rounded as they are shown.

    >>> agrees(["355", "90.3"], "355  90.33%  355"), agrees(["90.3", "355"], "355  90.33%"), agrees(["90.4"], "90.33%")
    (True, False, False)
    """
    rest = iter(figures(line))
    return all(any(_rounded(figure, one) for one in rest) for figure in shown)


def _rounded(shown: str, measured: str) -> bool:
    decimals = len(shown.partition(".")[2])
    return abs(float(shown) - float(measured)) <= 0.5001 * 10.0**-decimals


def unlike(rows: Sequence[Sequence[str]], file: str, names: dict[str, str] | str, *words: str) -> list[str]:
    """The rows that no line of a result file agrees with; `names`: how the lines begin, all or by the first cell."""
    found = []
    for row in rows:
        begins = names if isinstance(names, str) else names[row[0]]
        shown = [figure for cell in row[isinstance(names, dict) :] for figure in figures(cell)]
        lines = printed(file, begins, *words)
        found += [row[0]] * (not shown or not any(agrees(shown, line) for line in lines))
    return found
