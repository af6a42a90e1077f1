"""Planners of the user's own on the command line, and the options that have no flag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpumem.cli.common.planners import read
from gpumem.swap.planner import Declared
from tests.conftest import Cli

MINE = """
from gpumem.swap import heuristic

def tight(trace, machine, limit, *, percent: int = 95, hints=True, parts: tuple[float, ...] = ()):
    return heuristic(trace, machine, limit * percent // 100)

def rubbish(trace, machine, limit):
    return 7
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_planners.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "cli_planners", raising=False)


def test_one_stands_beside_ours_with_its_option(cli: Cli, net_file: Path) -> None:
    names = ["heuristic", "cli_planners:tight"]
    args = ("swap", net_file, "--load-limit", "75%", "--planner", ",".join(names), "--json")
    ours, theirs, _ = cli(*args, "--option", "percent=100").json  # the last row is the bound
    assert [ours["planner"], theirs["planner"]] == names
    told = ("load", "overhead", "bytes_out", "peak_live_bytes")
    assert [ours.get(key) for key in told] == [theirs.get(key) for key in told]
    assert cli(*args, "--option", "percent=60").json[1]["peak_live_bytes"] < theirs["peak_live_bytes"]
    plan = ("plan", net_file, "--load-limit", "75%", "--planner", "cli_planners:tight", "--option", "percent=100")
    assert "by cli_planners:tight" in cli(*plan).out


def test_in_the_suites(cli: Cli, net_file: Path, bounded: None) -> None:
    both = ("--planner", "heuristic,cli_planners:tight", "--option", "percent=100", "--json")
    rows = cli("bench", "planners", net_file, "--limits", "75%", *both).json["rows"]
    assert rows[0]["overhead"] == rows[1]["overhead"] and rows[1]["options"] == {"percent": 100}
    limits = cli("bench", "swap", net_file, "--what", "lowest_limits", "--quick", *both).json["lowest_limits"]
    assert [lowest["planner"] for lowest in limits] == ["heuristic", "cli_planners:tight"]
    assert limits[0]["limit"] == limits[1]["limit"]


def test_in_a_run_beside_the_program(cli: Cli) -> None:
    ran = cli("run", "mlp", "--live", "--limit", "70%", "--planner", "cli_planners:tight", "--option", "percent=100")
    assert ran.status == 0 and "planner cli_planners:tight" in ran.out


def test_for_jobs_each_by_itself(cli: Cli, net_file: Path) -> None:
    args = ("jobs", net_file, net_file, "--limit", "75%", "--json", "--planner")
    own = cli(*args, "cli_planners:tight", "--option", "percent=100")
    assert own.status == 0 and own.json["jobs"] == cli(*args, "heuristic").json["jobs"]
    assert "--option: no use to tensile" in cli.refuses(*args, "tensile", "--option", "percent=100")


def test_ours_have_options_without_a_flag(cli: Cli, net_file: Path) -> None:
    args = ("swap", net_file, "--load-limit", "75%", "--planner", "on-demand,heuristic", "--json")
    assert cli(*args, "--option", "victim=snu", "--option", "iterations=3").status == 0


@pytest.mark.parametrize(
    "options, told",
    [
        (["percent"], "--option: 'percent' is not NAME=VALUE"),
        (["percent=x"], "--option percent: 'x' is not a whole number"),
        (["percent=1", "percent=2"], "--option percent: it is given twice"),
        (["hints=maybe"], "--option hints: 'maybe' is neither true nor false"),
        (["parts=1,x"], "--option parts: '1,x' is not a list of numbers with commas between"),
        (["percnt=1"], "--option percnt: no use to heuristic, cli_planners:tight; did you mean 'percent'?"),
        (["victim=snu"], "--option victim: no use to heuristic, cli_planners:tight; it is an option of on-demand"),
        (["seed=3"], "--option seed: it has a flag of its own, --seed"),
        (["recompute=no"], "--option recompute: it has a flag of its own, --no-recompute"),
    ],
)
def test_a_wrong_option_is_one_line(cli: Cli, net_file: Path, options: list[str], told: str) -> None:
    given = [part for option in options for part in ("--option", option)]
    names = "heuristic,cli_planners:tight"
    assert told in cli.refuses("swap", net_file, "--load-limit", "75%", "--planner", names, *given)


def test_values_are_in_their_range(cli: Cli, net_file: Path) -> None:
    args = ("swap", net_file, "--load-limit", "75%", "--planner")
    assert "--option iterations: 0 is below 1" in cli.refuses(*args, "on-demand", "--option", "iterations=0")
    told = "--option algorithms: its value is a Menu | None, which cannot be written on the command line"
    assert told in cli.refuses(*args, "vdnn-dyn", "--option", "algorithms=1")


def test_a_planner_that_returns_rubbish_is_one_line(cli: Cli, net_file: Path) -> None:
    line = cli.refuses("plan", net_file, "--load-limit", "75%", "--planner", "cli_planners:rubbish", status=1)
    assert line.startswith("gpumem: error: in planner rubbish: TypeError: planner: what it returned: 7 is an int")
    ran = cli("swap", net_file, "--load-limit", "75%", "--planner", "heuristic,cli_planners:rubbish", "--json")
    assert ran.status == 1 and [row["feasible"] for row in ran.json[:2]] == [True, False]
    assert ran.err[-1].endswith("--traceback shows where")


def test_types_are_read_as_declared() -> None:
    assert read("", "none", Declared("int | None", None)) is None
    assert read("", "3", Declared("NoneType", None)) == "3" and read("", "0.5", Declared("float", 1)) == 0.5
    assert read("", "0.5", Declared("int | float", 1)) == 0.5
