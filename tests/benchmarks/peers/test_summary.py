"""Means, who is ahead of the search, and figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.asking import LATE, PLACED
from benchmarks.peers.summary import against, against_table, ahead, ahead_table, figures, mean_table, means, table
from benchmarks.peers.survey import Row


def row(instance: str, planner: str, height: int | None, given: float = 1.0, **more: Any) -> Row:
    status, ratio = (LATE, None) if height is None else (PLACED, height / 10_000)
    head = {"instance": instance, "family": instance[0], "buffers": 3, "load": 10_000, "planner": planner}
    told = {"given": given, "status": status, "height": height, "ratio": ratio, "seconds": 0.5, "why": "", "best": 1}
    return head | told | {"ours": planner in ("search", "greedy")} | more


ROWS = [
    row("a1", "search", 12_000),
    row("a1", "greedy", 11_000),
    row("a1", "x", 11_999),
    row("a1", "y", 11_990),
    row("b1", "search", None),
    row("b1", "greedy", 10_000),
    row("b1", "x", 20_000),
    row("b1", "y", None),
]


def test_ahead_is_another_project_by_more_than_a_ten_thousandth() -> None:
    found = [(one["instance"], one["planner"], one["search"], one["by"]) for one in ahead(ROWS)]
    assert found == [("b1", "x", None, None), ("a1", "y", 1.2, pytest.approx(0.001))]
    assert ahead(ROWS[:3]) == [] and ahead_table([]) == "nowhere"
    assert ahead([row("a1", "search", 12_000), row("a1", "y", 11_000, 10.0)]) == []  # at other seconds
    assert ahead_table(ahead(ROWS)).splitlines()[1:] == [
        "b1           1 s        x     2.0000       -         -",
        "a1           1 s        y     1.1990  1.2000    0.0010",
    ]


def test_the_search_stands_against_each_other_planner_where_both_placed() -> None:
    found = {one["planner"]: one for one in against(ROWS)}
    assert list(found) == ["greedy", "x", "y"]
    assert [found[name]["both"] for name in found] == [1, 1, 1]
    assert [found[name]["ratio"] for name in found] == pytest.approx([12 / 11, 12 / 11.999, 12 / 11.99])
    counts = [[found[name][count] for count in ("lower", "same", "higher")] for name in found]
    assert counts == [[0, 0, 1], [0, 1, 0], [0, 0, 1]]
    line = against_table(against(ROWS[:2])).splitlines()[1]
    assert " ".join(line.split()) == "greedy 1 s 1 1.0909 0 0 1"


def test_means_are_of_what_was_placed_and_say_how_many() -> None:
    found = {(one["family"], one["planner"]): one for one in means(ROWS)}
    assert {key[0] for key in found} == {"all", "a", "b"}
    assert found["all", "x"]["ratio"] == pytest.approx((1.1999 * 2) ** 0.5)
    assert [found["all", name]["placed"] for name in ("search", "greedy", "x")] == [1, 2, 2]
    assert [found["all", name]["lowest"] for name in ("search", "greedy", "x")] == [0, 2, 0]
    assert {one["family"] for one in means(ROWS[:4])} == {"all"}
    assert "all      search  1.2000     1/2       0" in mean_table(means(ROWS)).splitlines()


def test_a_line_begins_where_its_planner_has_placed_the_whole_family() -> None:
    late = [row("a1", "x", None, 1.0), row("a1", "x", 11_000, 10.0), row("a1", "search", 12_000, 1.0)]
    (figure,) = figures([*late, row("a1", "search", 11_500, 10.0)])
    assert figure.log and {one.name: one.y for one in figure.series} == {"x": [None, 10.0], "search": [20.0, 15.0]}
    assert [one.style for one in figure.series] == ["line", "bold"]
    assert [figure.title for figure in figures(ROWS)] == ["a", "b"]


def test_the_table_names_what_is_no_placement() -> None:
    wrong = row("a1", "x", None, status="invalid", why="buffers 0 and 1: overlap")
    lines = table([wrong]).splitlines()
    assert " ".join(lines[1].split()) == "a1 3 10000 1 x invalid 0.500 buffers 0 and 1: overlap"
