"""`python -m benchmarks peers`: who is missing, wrong or endless does not keep the others from being compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.peers.fakes import fake
from tests.conftest import Cli
from tests.files import BARE


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner of ours, and peers that end in several ways."""
    planners = {
        "search": fake("stacked"),
        "wrong": fake("overlapping", "pytest"),
        "endless": fake("endless", "pytest"),
        "absent": fake("stacked", "no-such-project"),
        "gone": fake("stacked", "no-such-project", "pytest"),
    }
    monkeypatch.setattr("benchmarks.peers.table.PLANNERS", planners)


def test_a_quick_run_names_what_is_wrong_and_what_is_missing(cli: Cli, few: None) -> None:
    ran = cli("bench", "peers", "--quick")
    assert ran.status == 0
    assert ran.err == ["gpumem: no-such-project is not installed: without absent, gone (pip install --group peers)"]
    rows = [line.split()[4:7] for line in ran.out.splitlines() if line.startswith("mlp3")]
    assert [row[0] for row in rows] == ["search", "wrong", "endless"]
    assert [row[1] for row in rows[1:]] == ["invalid", "late"]
    assert "no-such-project  not installed" in ran.out and ran.out.endswith("\n\nnowhere\n")


def test_files_are_text_json_and_a_picture(cli: Cli, few: None, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "b.csv").write_bytes(BARE)
    known = tmp_path / "known.json"
    args = ("--instances", tmp_path / "in", "--seconds", "0.1,0.2", "--planner", "search,wrong", "--known", known)
    found = cli("bench", "peers", *args, "--keep", "--json", "--out", tmp_path / "out").json
    assert list(found) == ["header", "projects", "rows", "means", "against", "ahead", "curves"]
    assert [(r["family"], r["planner"], r["given"]) for r in found["rows"]] == [
        ("deep", planner, given) for planner in ("search", "wrong") for given in (0.1, 0.2)
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.txt", "bench.json", "peers.png"}
    assert [one["planner"] for one in json.loads(known.read_text()).values()] == ["search"]


def test_ours_must_be_right(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.table.PLANNERS", {"search": fake("overlapping")})
    assert cli("bench", "peers", "--quick", "--perfect", "8:1").status == 1


@pytest.mark.parametrize(
    "given",
    [
        ["--seconds", "0"],
        ["--seconds", "1,x"],
        ["--threads", "0"],
        ["--perfect", "0:1"],
        ["--rewritten", "101"],
        ["--planner", "none"],
        ["--python", "/no/such/python"],
    ],
)
def test_bad_input_is_refused(cli: Cli, few: None, given: list[str]) -> None:
    assert f"{given[0]}: " in cli.refuses("bench", "peers", *given)
