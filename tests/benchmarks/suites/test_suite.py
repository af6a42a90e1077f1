"""A suite of the bench is its parts, `measure` and `tables`; the rest is the same for all."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import SUITES
from benchmarks.suites.suite import Results, Suite
from gpumem.cli.common.parser import Parser
from gpumem.cli.common.progress import Progress
from gpumem.pipeline.report import Figure, Series

FIGURE = Figure("fig1", "title", "x", "y", (Series("curve", [0.0, 1.0], [2.0, None]),))


def measure(args: argparse.Namespace, parts: list[str], progress: Progress) -> Results:
    """Print made-up parts."""
    rows = {"speed": [{"of": "a", "ns": args.factor}], "fig1": [("a/b", FIGURE), ("a/b", FIGURE)], "last": []}
    return {part: rows[part] for part in reversed(parts)} | {"more": [{"mean": 1.5}]}


def table(part: str, rows: Any) -> str:
    return f"{part} of {len(rows)}" if isinstance(rows, list) else f"{part}: {rows.title}"


def options(p: Parser) -> None:
    p.add_argument("--factor", type=int, default=7)


def ran(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    titles = {"last": "The last", "fig1": "Figure 1", "speed": "The speed"}
    tables = {part: partial(table, part) for part in titles}
    mine = Suite("mine", "made up", titles, options, measure, lambda: tables, lambda results: [("extra 1", FIGURE)])
    parser = Parser(prog="bench")
    mine.add(parser.add_subparsers(parser_class=Parser))
    args = parser.parse_args(["mine", *map(str, given)], argparse.Namespace(command="python -m benchmarks mine"))
    assert args.run(args) == 0
    return capsys.readouterr().out


def test_text_has_the_parts_in_the_order_of_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = ran(capsys, "--what", "speed,fig1,last").rstrip("\n").split("\n\n")
    assert blocks[0].splitlines()[-2:] == ["# seed: none, nothing is random", "# command: python -m benchmarks mine"]
    assert blocks[1:] == ["The speed", "speed of 1", *["Figure 1: a/b", "fig1: title"] * 2, "The last", "last of 0"]


def test_json_has_rows_figures_and_what_is_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ran(capsys, "--json", "--factor", 9))
    assert list(found) == ["header", "last", "fig1", "speed", "more"]
    assert found["speed"] == [{"of": "a", "ns": 9}] and found["more"] == [{"mean": 1.5}]
    assert found["fig1"][0] == {"trace": "a/b"} | json.loads(json.dumps(FIGURE.row()))


def test_files_are_text_json_and_a_picture_for_each_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = ran(capsys, "--out", tmp_path, "--what", "fig1")
    assert (tmp_path / "bench.txt").read_text() == text
    assert list(json.loads((tmp_path / "bench.json").read_text())) == ["header", "fig1", "more"]
    assert {path.name for path in tmp_path.glob("*.png")} == {"fig1-a_b.png", "fig1-a_b-2.png", "extra_1.png"}


@pytest.mark.parametrize("given", [["--out", ""], ["--what", "speed,none"]])
def test_bad_input_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    with pytest.raises(ValueError, match=f"^{given[0]}: "):
        ran(capsys, *given)


def test_every_suite_has_a_title_for_each_part_and_says_what_it_prints() -> None:
    for suite in SUITES:
        assert all(suite.parts.values()) and (suite.measure.__doc__ or "").startswith("Print ")
