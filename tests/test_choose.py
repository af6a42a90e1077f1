"""The page that says which planner to take, held against the planners and what a benchmark printed."""

from __future__ import annotations

import pytest

from gpumem import NotReached, Recompute, Swap, Variant, bundled
from gpumem.simulator import Machine, workspaces
from gpumem.swap import PLANNERS
from tests.page_tables import ROOT, printed, table

TABLE = table(ROOT / "docs" / "guides" / "choose.md", "planner", "decides")
ROWS = {row[0].strip("`"): dict(zip(TABLE.head, row)) for row in TABLE.rows}
KINDS = {Swap: "swaps", Recompute: "recomputes", Variant: "operators"}  # what drops a dead tail is no kind of its own
QUICK = [
    name for name, planner in PLANNERS.items() if not planner.proves and name not in ("search", "checkpoint", "dtr")
]


def test_every_planner_has_a_row() -> None:
    assert [*ROWS] == [*PLANNERS]


@pytest.mark.parametrize("name", PLANNERS)
def test_what_a_planner_proves_and_begins_with_is_what_its_record_says(name: str) -> None:
    record, row = PLANNERS[name], ROWS[name]
    begins = {"": "", "swaps": "a plan of swaps", "plans": "any plan"}[record.starts_from]
    assert (row["proves"] == "yes") == record.proves
    assert row["begins with"] == ("all of the others that are quick" if record.begins_with else begins)


@pytest.mark.jit
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(x, marks=pytest.mark.thorough) for x in PLANNERS if x not in QUICK)]
)
def test_a_plan_holds_no_more_than_what_a_planner_decides(name: str) -> None:
    planner, machine = PLANNERS[name], Machine.named("gtx1080ti")
    trace, kinds = workspaces.add(bundled("vgg16"), rule="fastest"), set()
    more = {"seconds": 3.0} if planner.proves else {"effort": 0.01} if name == "search" else {}
    for percent in (90, 80, 70):
        try:
            plan = planner(trace, machine, trace.peak_live_bytes * percent // 100, **more)
        except NotReached:
            continue
        kinds |= {KINDS[type(d)] for d in plan.decisions if type(d) in KINDS}
    assert kinds <= {*ROWS[name]["decides"].split(", ")}
    assert kinds, "nothing was decided at any of the limits"


@pytest.mark.parametrize("name", PLANNERS)
def test_overhead_and_seconds_are_those_that_a_benchmark_printed(name: str) -> None:
    (line,) = (x for x in printed("bench_choose.txt", "resnet50_cifar_b100 ") if x.split()[2] == name)
    row = ROWS[name]
    assert f" {row['overhead'].replace(' %', '%')} " in line
    assert row["seconds"] in line.split()
