"""Measured ops: figures of the page are those of the result file, that is of the tables, no net is on both sides."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.latency import HELD
from benchmarks.latency.__main__ import TABLES, folds, nets, part, roofline, weighted_r2
from gpumem.execute.latency import LatencyTable, read_table

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULT = ROOT / "docs/guides/latency.md", ROOT / "benchmarks/results/latency_measured.txt"
FIGURE = re.compile(r"-?\d+\.\d+")
pytestmark = pytest.mark.jit  # nothing is compiled


@pytest.fixture(scope="module")
def tables() -> tuple[LatencyTable, LatencyTable]:
    first, second = map(read_table, TABLES)
    return first, second


def section() -> str:
    text = PAGE.read_text()
    return text[text.index("### Whole nets held out") : text.index("## Figures of made-up measurements")]


def draws() -> list[str]:
    text = RESULT.read_text()
    return [part.partition("\n5 folds")[0] for part in text.partition("\nfirst draw")[2].split("\nsecond draw")]


def row(text: str, start: str) -> list[str]:
    return FIGURE.findall(next(line for line in text.splitlines() if line.startswith(start)).replace("%", " "))


def test_each_figure_of_the_page_stands_where_the_result_has_it() -> None:
    ways = ("roofline, corrected", "roofline times", "a network for each", "roofline |")
    short = ("ours", "type's median", "the paper's rule", "roofline |")
    r2, errors = (part for part in section().split("| error of an iteration")[:2])
    for k, draw in enumerate(draws()):
        whole, median, worst = (row(draw, start) for start in ("all ops", "median error", "worst error"))
        for i, (way, brief) in enumerate(zip(ways, short)):
            assert row(r2, f"| {way}")[k] == whole[i]
            assert row(errors, f"| {brief}")[2 * k : 2 * k + 2] == [median[i], worst[i]]
        better = re.findall(r"ours is nearer than the roofline on (\d) of 8 nets", draw)
        assert re.findall(r"(\d) of 8", section())[k] == better[0]
    for what, start in (("mean over the ten", "mean over the ten"), ("median over all", "median over all")):
        told = row(draws()[1], start)
        assert row(section(), f"| {what}") == [told[0], told[4], told[6]]
    for name in ("mm", "convolution", "convolution_backward"):
        told = row(draws()[1], f"{name}.default")[1:]
        assert row(section(), f"| `{name}` |") == [told[0], told[4], told[6]]


def test_the_result_is_of_these_tables(tables: tuple[LatencyTable, LatencyTable]) -> None:
    held = part(tables[0], lambda net: net in HELD)
    for learn, judge, text in zip(tables, (held, tables[1]), draws()):
        ns = roofline(judge if judge is held else learn, judge.rows)
        if judge is tables[1]:
            ns = roofline(tables[0], judge.rows)
        assert f"{weighted_r2(judge.rows, ns):.3f}" == row(text, "all ops")[-1]
        off = [abs(sums["x"] / judge.iterations[net] - 1) for net, sums in nets(judge.rows, {"x": ns})]
        assert f"{100 * np.median(off):.1f}" == row(text, "median error")[-1]


def test_no_net_is_learned_from_and_judged_by(tables: tuple[LatencyTable, LatencyTable]) -> None:
    first, second = ({*table.iterations} for table in tables)
    assert {*HELD} < first and len(HELD) == 8 == len(second) and not first & second
    assert len({r.sample.name for r in tables[0].rows}) >= 60
    rows = [r for r in tables[0].rows if r.net not in HELD]
    for fold in folds(rows, seed=0):
        sides = [{r.net.rpartition("_b")[0] for r in side} for side in (fold.learn, fold.judge)]
        assert not sides[0] & sides[1] and len(sides[1]) > 5
        assert len(fold.learn) + len(fold.judge) == len(rows)


def test_the_tables_are_of_the_nets_in_these_files(tables: tuple[LatencyTable, LatencyTable]) -> None:
    pytest.importorskip("torch")
    from benchmarks.latency import first_held, nets as learned, second_held

    assert {*tables[0].iterations} == {*learned.NETS, *first_held.NETS} and tuple(first_held.NETS) == HELD
    assert {*tables[1].iterations} == {*second_held.NETS}
