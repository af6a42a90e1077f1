"""Answers are kept in a file, which continues; another file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.leaderboard.ledger import Ledger
from benchmarks.leaderboard.survey import questions, survey
from tests.benchmarks.leaderboard.answers import NET, asked, swaps
from tests.conftest import tiny_machine


def test_a_file_continues(tmp_path: Path) -> None:
    path, said = tmp_path / "rows.jsonl", list[str]()
    first = survey(asked("swaps"), ledger=Ledger(path))
    both = survey(asked("swaps", "gives-up"), ledger=Ledger(path), progress=said.append)
    assert both[0] == first[0] and said == ["1 of 1: gives-up on net at 0.6: not reached"]
    assert len(path.read_text().splitlines()) == 3
    said.clear()
    survey(asked("swaps", "gives-up"), ledger=Ledger(path, ["gives-up"]), progress=said.append)
    assert len(said) == 1 and len(Ledger(path).rows) == 2
    other = tiny_machine().with_(pinned=10**5)  # what the answer depends on has changed
    assert Ledger(path).get(questions([NET], other, {"swaps": swaps}, [0.6])[0].asked()) is None
    assert Ledger(path).get(asked("slow", seconds=1.0)[0].asked()) is None


def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    path, said = tmp_path / "rows.jsonl", list[str]()
    survey(asked("swaps", "gives-up"), ledger=Ledger(path))
    path.write_bytes(path.read_bytes()[:-9])
    ledger = Ledger(path, tell=said.append)
    assert len(ledger.rows) == 1 and "the last line was cut off" in said[0]
    survey(asked("swaps", "gives-up"), ledger=ledger)
    assert [json.loads(line).get("planner") for line in path.read_text().splitlines()] == [None, "swaps", "gives-up"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not say what it is"),
        ("id,lower\n", "does not say what it is"),
        ("[1]\n", "does not say what it is"),
        ('{"format": "gpumem.plan/1"}\n', "format 'gpumem.plan/1' is not 'gpumem.planners/1'"),
        ('{"format": "gpumem.planners/1"}\n{"planner": 3}\n', "line 2 is no answer"),
        ('{"format": "gpumem.planners/1"}\nxx\n', "line 2 is no answer: b'xx'"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Ledger(path)
    assert path.read_text() == text
    with pytest.raises(ValueError, match="Is a directory"):
        Ledger(tmp_path)
    with pytest.raises(ValueError, match="cannot write here"):
        Ledger(tmp_path / "no" / "rows.jsonl")
