"""`python -m benchmarks planners`: it prints, writes, continues, says what failed, and may use processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem import swap
from tests.benchmarks.leaderboard.answers import broken, plain
from tests.conftest import Cli


def test_the_command_prints_writes_and_continues(cli: Cli, tmp_path: Path) -> None:
    common = ("bench", "planners", "mlp3", "--limits", "99%", "--results", tmp_path / "rows.jsonl")
    ran = cli(*common, "--planner", "heuristic,tensile", "--out", tmp_path / "out")
    blocks = ran.out.split("\n\n")
    assert ran.status == 0 and [block.split()[0] for block in blocks[2::2]] == ["trace", "planner", "limit", "limit"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.txt", "bench.json", "overhead.png"}
    before = (tmp_path / "rows.jsonl").read_text()
    found = cli(*common, "--only", "on-demand", "--planner", "heuristic,tensile,capuchin", "--json")
    assert [one["planner"] for one in found.json["rows"]] == ["heuristic", "tensile", "on-demand"]
    assert found.err == ["gpumem: 1 rows are left out: --only plans nothing else, and --results has none of them"]
    after = (tmp_path / "rows.jsonl").read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 1
    cli(*common, "--planner", "heuristic,tensile", "--only", "tensile", "--again")
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == after.count("\n") + 1


def test_the_command_says_what_failed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(swap.PLANNERS, "broken", broken)
    ran = cli("bench", "planners", "mlp3", "--limits", "99%", "--planner", "broken", "--what", "rows")
    assert ran.status == 1 and "KeyError: 'a bug'" in ran.out
    assert ran.err == ["gpumem: 1 of 1 rows failed, the first: broken: KeyError: 'a bug'"]


@pytest.mark.thorough
@pytest.mark.jit
def test_processes_answer_the_same(cli: Cli) -> None:
    args = ("bench", "planners", "mlp3", "--limits", "99%", "--planner", "heuristic,tensile", "--json")
    here, there = (cli(*args, "--jobs", jobs).json["rows"] for jobs in (1, 2))
    assert plain(here) == plain(there)
