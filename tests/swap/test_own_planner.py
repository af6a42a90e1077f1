"""A planner of the user's own: a function by its signature, and whatever `module:name` names."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem import Machine, NotReached, Plan, Trace
from gpumem.io import bundled
from gpumem.pipeline import compare_planners
from gpumem.swap import heuristic, planner_of
from gpumem.swap.own_planner import FunctionPlanner

GTX = Machine.named("gtx1080ti")
MINE = """
from dataclasses import dataclass
from gpumem import NotReached, Plan
from gpumem.swap import PlannerRecord, heuristic

def tight(trace, machine, limit, *, percent: int = 95):
    return heuristic(trace, machine, limit * percent // 100)

def rubbish(trace, machine, limit):
    return 7

def fails(trace, machine, limit):
    raise ZeroDivisionError("of one's own")

def odd(trace):
    return Plan.of(trace)

@dataclass(frozen=True)
class Record(PlannerRecord):
    percent: int = 95

    def plan(self, trace, machine, limit, *, seconds, progress):
        return tight(trace, machine, limit, percent=self.percent)

@dataclass(frozen=True)
class Bare(PlannerRecord):
    percent: int

tighter = Record(percent=90)
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory."""
    (tmp_path / "own_planners.py").write_text(MINE)
    (tmp_path / "breaks.py").write_text("1 / 0")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)")
    (tmp_path / "lacks.py").write_text("import nowhere_to_be_found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_planners", raising=False)
    return "own_planners"


def listens(trace: Trace, machine: Machine, limit: int, *, seed: int = 3, seconds: float | None = None) -> Plan:
    assert seed == 4 and seconds is not None and 0 < seconds <= 20
    return heuristic(trace, machine, limit)


def test_a_function_declares_by_its_signature() -> None:
    planner = planner_of(listens)
    assert planner.name == "listens" and not planner.proves and planner.starts_from == ""
    assert planner.has("seed") and planner.has("seconds") and not planner.has("progress")
    assert planner.with_known({"seed": 4, "effort": 1}).given == {"seed": 4}
    trace = bundled("mlp3")
    limit = trace.peak_live_bytes * 95 // 100
    plan = heuristic(trace, GTX, limit)
    assert planner(trace, GTX, limit, seconds=20, seed=4, progress=print) == plan
    assert planner_of(partial(listens, seed=4)).propose(trace, GTX, limit, seconds=20).plan == plan
    with pytest.raises(ValueError, match="sead: listens has no such option; did you mean 'seed'"):
        planner.with_(sead=4)

    def anything(trace: Trace, machine: Machine, limit: int, **options: Any) -> Plan:
        assert {"effort", "progress"} <= options.keys()
        return plan

    assert planner_of(anything).has("effort") and planner_of(anything)(trace, GTX, limit, effort=3) == plan


def test_what_cannot_be_called_so_is_refused_at_once() -> None:
    for given, told in (
        (lambda trace: None, "is called as planner.trace, machine, limit.* but too many positional arguments"),
        (lambda trace, machine, limit, more: None, "missing a required argument: 'more'"),
        (3, "3 is no planner"),
    ):
        with pytest.raises(ValueError, match=told):
            planner_of(given)  # type: ignore[arg-type]


def test_modules_have_functions_records_and_instances(mine: str) -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 8 // 10
    expected = {percent: heuristic(trace, GTX, limit * percent // 100) for percent in (95, 90)}
    for name, percent in (("tight", 95), ("Record", 95), ("tighter", 90)):
        assert planner_of(f"{mine}:{name}")(trace, GTX, limit) == expected[percent]
        assert planner_of(f"{mine}:{name}")(trace, GTX, limit, percent=90) == expected[90]
    planned = gpumem.plan(trace, GTX, load=limit, planner=f"{mine}:tight", percent=90)
    assert planned.plan == expected[90] and f"{mine}:tight" in repr(planned)
    found = compare_planners(trace, GTX, load=limit, planners=[f"{mine}:tight", "vdnn-conv"], options={"percent": 90})
    assert found.tried[0].planner == f"{mine}:tight"


@pytest.mark.parametrize(
    "name, told",
    [
        ("nowhere:f", "there is no module 'nowhere', nor one in the current directory"),
        ("own_planners:tigt", "module 'own_planners' has no 'tigt'; did you mean 'tight'"),
        ("own_planners:number", "3 is no planner: that is a function"),
        ("own_planners:odd", "odd: it is called as planner"),
        ("own_planners:Bare", "Bare: an option of it has no default: .*'percent'"),
        ("breaks:f", "the import of 'breaks' fails: ZeroDivisionError: division by zero"),
        ("leaves:f", "the import of 'leaves' fails: SystemExit: 3"),
        ("lacks:f", "the import of 'lacks' fails: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ],
)
def test_what_is_not_there_is_one_line(mine: str, name: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^--planner: {name}: {told}") as refused:
        planner_of(name, "--planner")
    assert "\n" not in str(refused.value)


def test_errors_bear_the_name_of_a_planner_that_is_not_ours(mine: str) -> None:
    trace = bundled("mlp3")
    for name, kind in (("rubbish", TypeError), ("fails", ZeroDivisionError)):
        with pytest.raises(kind) as raised:
            planner_of(f"{mine}:{name}")(trace, GTX, trace.peak_live_bytes - 1)
        assert raised.value.__notes__ == [f"in planner {name}"]
    with pytest.raises(NotReached) as stopped:
        planner_of(f"{mine}:tight")(trace, GTX.with_(pinned=0), trace.peak_live_bytes * 95 // 100)
    assert not hasattr(stopped.value, "__notes__")
    with pytest.raises(TypeError) as ours:
        FunctionPlanner(heuristic)(trace, GTX, "1")  # type: ignore[arg-type]
    assert not hasattr(ours.value, "__notes__")
