"""Who stands where: means, the search against others, gaps to bounds, tables and figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.leaderboard import summaries
from benchmarks.leaderboard.summaries import against, best_of_others, means


def row(planner: str, content: str, overhead: float | None, status: str = "planned") -> dict[str, Any]:
    about = {"content": content, "trace": content, "part": 0.5, "planner": planner, "iteration_ns": 10**9}
    cost = {"bytes_out": 2**20, "bytes_in": 0, "recompute_ns": 2_000} if status == "planned" else {}
    return about | cost | {"overhead": overhead, "status": status, "seconds": 0.5, "late": planner == "b"}


ROWS = [
    row("search", "x", 0.1),
    row("a", "x", 0.21),
    row("b", "x", 0.1 + 1e-6),
    row("program", "x", 0.0),
    row("bound", "x", 0.05, "bound"),
    row("search", "y", 0.0),
    row("a", "y", None, "not reached"),
    row("b", "y", 0.44),
    row("a", "z", None, "infeasible"),
    row("search", "z", None, "failed"),
]


def test_means_say_on_how_many_traces() -> None:
    found = {one["planner"]: one for one in means(ROWS)}
    assert found["search"]["overhead"] == pytest.approx(1.1**0.5 - 1) and found["search"]["traces"] == 2
    assert (found["a"]["overhead"], found["a"]["reached"], found["a"]["traces"]) == (pytest.approx(0.21), 1, 2)
    assert found["bound"]["overhead"] == pytest.approx(0.05) and found["b"]["late"] == 2


def test_the_search_against_others_where_both_get_there() -> None:
    best = best_of_others(ROWS, "search", ["program"])
    assert [(one["content"], one["of"]) for one in best] == [("x", "b"), ("y", "b")]
    found = {one["planner"]: one for one in against(ROWS, "search", ["program"])}
    assert list(found) == ["a", "b", "program", "best of others"]
    assert (found["a"]["both"], found["a"]["better"]) == (1, 1) and found["a"]["ratio"] == pytest.approx(1.1 / 1.21 - 1)
    counts = [(found[name]["better"], found[name]["same"], found[name]["worse"]) for name in ("b", "program")]
    assert counts == [(1, 1, 0), (0, 0, 1)]


def test_gaps_are_differences_to_each_bound() -> None:
    (gap,) = summaries.gaps([*ROWS, row("bound", "y", 0.0, "bound"), row("bound", "z", 0.0, "bound")], "search")
    assert (gap["bound"], gap["traces"], gap["of"]) == ("bound", 2, "x")
    assert (gap["mean"], gap["most"]) == (pytest.approx(0.025), pytest.approx(0.05))
    assert summaries.gap_table([gap]).split()[-6:] == ["0.5", "bound", "2", "2.50", "5.00", "x"]


def test_tables_and_figures() -> None:
    (x, y) = summaries.figures(ROWS, "search")
    assert (x.title, y.title) == ("x", "y")  # nobody gets anywhere on z
    assert [(s.name, s.style, s.y) for s in x.series][::4] == [("search", "bold", [10.0]), ("bound", "dashed", [5.0])]
    text = summaries.table(ROWS)
    assert "not reached" in text and "time up" in text and "1.00 MiB" in text and "2.00 us" in text
    assert "4.88% (2/2)" in summaries.mean_table(means(ROWS))
    assert summaries.against_table(against(ROWS, "search")).count("\n") == 4
