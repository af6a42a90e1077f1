"""The figures on TENSILE's page are those of the result files that benchmarks wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.papers.tensile import TABLE1, TABLE2

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers" / "tensile.md"
RESULTS = ROOT / "benchmarks" / "results"
FIGURE = re.compile(r"-?\d+\.\d{4}\b")
METHODS = {"TENSILE": "tensile", "TENSILE+activity": "tensile+activity", "vDNN": "vdnn", "Capuchin": "capuchin"}
PAPER = {f"{figure:.4f}" for pairs in (*TABLE1.values(), *TABLE2.values()) for figure in pairs}
pytestmark = pytest.mark.jit  # nothing is compiled


def prose() -> str:
    """The page without what commands print, which `test_shown` makes."""
    return re.sub(r"```(console|python).*?```", "", PAGE.read_text(), flags=re.DOTALL)


def result_lines() -> list[str]:
    return [line for path in sorted(RESULTS.glob("bench_tensile*.txt")) for line in path.read_text().splitlines()]


def rows_of_methods() -> Iterator[tuple[str, str, set[str]]]:
    """Each row of a table of methods: how many tasks, the method, its figures that are not the paper's."""
    tasks = ""
    for line in prose().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 2 and cells[1] in METHODS:
            tasks = cells[0][:1] or tasks
            yield tasks, METHODS[cells[1]], set(FIGURE.findall(line)) - PAPER


def test_each_figure_is_in_a_result_file() -> None:
    measured = {figure for line in result_lines() for figure in FIGURE.findall(line)}
    figures = set(FIGURE.findall(prose()))
    assert len(figures) > 50 and sorted(figures - measured - PAPER) == []


def test_each_row_of_methods_is_of_that_method_and_so_many_tasks() -> None:
    found = list(rows_of_methods())
    assert len(found) > 15
    for tasks, method, figures in found:
        mine = [line.split() for line in result_lines() if f" {method} " in line]
        measured = {cell for cells in mine if tasks in cells for cell in cells}
        assert sorted(figures - measured) == [], (tasks, method)


def test_rows_that_are_shown_as_they_are_were_printed() -> None:
    blocks = re.findall(r"```text\n(trace .*?)```", prose(), flags=re.DOTALL)
    lines = [line.split() for block in blocks for line in block.splitlines() if line != "..."]
    printed = [line.split() for line in result_lines()]
    assert len(blocks) >= 2 and [line for line in lines if line not in printed] == []


def test_recomputation_by_trace() -> None:
    """Lowest load and extra time, with and without pinned memory."""
    measured = {}
    for line in (RESULTS / "recomputing.txt").read_text().splitlines():
        if line.count("%") == 4:
            measured[line.split()[0]] = [float(x) for x in re.findall(r"([\d.]+)%", line)]
    shown = re.findall(r"^\| (\w+_b\d+) \|((?: [\d.]+ % \([\d.]+ %\) \|){2})$", prose(), flags=re.MULTILINE)
    assert len(shown) == len(measured) == 6
    for trace, cells in shown:
        assert [float(x) for x in re.findall(r"([\d.]+) %", cells)] == pytest.approx(measured[trace], abs=0.051), trace
