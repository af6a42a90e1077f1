"""Logs of DTR's prototype: a small one by hand, wrong lines, and the rows of the benchmark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import dtr
from benchmarks.papers.dtr.__main__ import arguments, rows
from benchmarks.papers.dtr.simrd import simulated
from gpumem.trace import Trace


def call(name: str, args: list[str], results: dict[str, tuple[int, int]], time: int) -> list[dict[str, Any]]:
    """A call, and the bytes and aliases of its results."""
    lines: list[dict[str, Any]] = [
        {"INSTRUCTION": "CALL", "NAME": name, "ARGS": args, "RESULT": [*results], "TIME": str(time)}
    ]
    for result, (size, alias) in results.items():
        lines.append({"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": str(size)})
        lines.append({"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": str(alias)})
    return lines


def constant(name: str, size: int) -> list[dict[str, Any]]:
    return [{"INSTRUCTION": "CONSTANT", "NAME": name}, {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)}]


def one(what: str, **told: Any) -> list[dict[str, Any]]:
    return [{"INSTRUCTION": what, **told}]


STEP = [
    *constant("before", 99),  # a log begins at START
    *one("ANNOTATE", ANNOTATION="START"),
    *constant("w", 100),
    *call("conv", ["w"], {"a": (40, -1), "aux": (8, -1)}, 10),
    *one("RELEASE", NAME="aux"),
    *call("view", ["a"], {"v": (40, 0)}, 3),
    *one("RELEASE", NAME="a"),  # the view keeps it
    *call("add", ["v", "v", "w"], {"b": (20, -1)}, 7),
    *one("COPY", DST="b2", SRC="b"),
    *one("RELEASE", NAME="b"),
    *one("MUTATE", NAME="relu_", ARGS=["b2", "v"], MUTATE=[0], TIME="5"),
    *one("RELEASE", NAME="v"),
    *one("ANNOTATE", ANNOTATION="BACKWARD"),
    *call("grad", ["b2", "w"], {"g": (100, -1)}, 9),
    *one("RELEASE", NAME="b2"),
    *one("RELEASE", NAME="before"),
    *one("RELEASE", NAME="w"),
]


def lines(events: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(event) for event in events]


def step() -> Trace:
    return dtr.of_lines(lines(STEP), "step")


def test_a_log_by_hand() -> None:
    trace = step()
    assert trace.ops.name == ("conv", "add", "relu_", "grad", "outputs")
    assert trace.ops.duration.tolist() == [10, 7, 5, 9, 0]
    assert trace.buffers.name == ("w", "a", "aux", "b", "b2$", "g")
    assert trace.ops.reads.tolist() == [[0], [1, 0], [3, 1], [4, 0], [5]]
    assert trace.ops.writes.tolist() == [[1, 2], [3], [4], [5], []]
    assert trace.buffers.size.tolist() == [100, 40, 8, 20, 20, 100]
    assert list(zip(trace.buffers.start, trace.buffers.end)) == [(0, 5), (0, 3), (0, 1), (1, 3), (2, 4), (3, 5)]
    assert trace.buffers.kind == ("param", *["activation"] * 4, "act_grad")
    assert trace.eternal.tolist() == [True, *[False] * 5]


def test_a_name_that_takes_over_another_storage() -> None:
    events = [
        *call("f", [], {"a": (4, -1)}, 1),
        *call("f", ["a"], {"b": (4, -1)}, 1),
        *one("COPY_FROM", DST="a", SRC="b"),
        *one("RELEASE", NAME="b"),
        *call("f", ["a"], {"c": (4, -1)}, 1),
    ]
    trace = dtr.of_lines(lines(events))
    assert trace.ops.reads.tolist() == [[], [0], [1], [1, 2]]
    assert trace.buffers.end.tolist() == [2, 4, 4]


def test_a_constant_that_comes_late_is_there_from_then_on() -> None:
    trace = dtr.of_lines(
        lines(
            [
                *call("f", [], {"a": (4, -1)}, 1),
                *constant("w", 9),
                *one("RELEASE", NAME="w"),
                *call("g", [], {"b": (4, -1)}, 1),
            ]
        )
    )
    assert (trace.buffers.start[1], trace.buffers.end[1], trace.buffers.persistent[1]) == (1, trace.n, False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1: '{' is no JSON"),
        ("3", "line 1: '3' is no event of a log"),
        ('{"INSTRUCTION": "JUMP"}', "line 1: .* is no event of a log: .*JUMP is unknown"),
        ('{"INSTRUCTION": "COPY", "DST": "a", "SRC": "b"}', "line 1: .* is no event of a log: KeyError"),
        ('{"INSTRUCTION": "CONSTANT", "NAME": "a"}', "line 0 should be the MEMORY of a"),
    ],
)
def test_wrong_lines(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        dtr.of_lines([line])


def test_rows(tmp_path: Path) -> None:
    log = tmp_path / "step-1.log"
    log.write_text("\n".join(lines(STEP)))
    found = rows(arguments([str(log), "--budgets", "1,0.9", "--heuristics", "eq,lru", "--planners", "checkpoint"]))
    assert [(row.trace, row.budget, row.way) for row in found] == [
        ("step", part, way) for part in (1.0, 0.9) for way in ("eq", "lru", "checkpoint")
    ]
    assert all(row.plan == row.online == 0 for row in found[:2])
    assert "eq" in dtr.table(found)


def test_a_checkout_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"simrd: .* no result for a\.log: .*simrd"):
        simulated(tmp_path, tmp_path / "a.log", 10, "eq", python=sys.executable)
