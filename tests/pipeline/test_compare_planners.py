"""The cheapest plan of several planners, within a pool or a load, and the least pool that does."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

import gpumem
from gpumem import Machine
from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.base.units import fraction
from gpumem.pipeline import Planned, compare_planners, smallest_pool
from gpumem.pipeline.compare_planners import asking
from gpumem.swap import Plan
from tests.cli.planners import breaks
from tests.conftest import Cli

MIB = 2**20
pytestmark = pytest.mark.jit


def test_the_cheapest_plan_counts_and_obeys_the_overhead() -> None:
    trace, machine = gpumem.bundled("vgg16"), Machine.named("gtx1080ti")
    planners = ["capuchin", "heuristic"]
    alone = {name: gpumem.plan(trace, machine, pool=300 * MIB, planner=name, check=False) for name in planners}
    found = compare_planners(trace, machine, 300 * MIB, planners=planners)
    assert [(tried.planner, tried.overhead) for tried in found.tried] == [(n, p.overhead) for n, p in alone.items()]
    best = min(alone.values(), key=lambda planned: planned.overhead)
    assert found.planned is not None and found.planned.plan == best.plan
    assert not found.planned.checked.left_out
    assert compare_planners(trace, machine, 300 * MIB, planners=planners, overhead=best.overhead / 2).planned is None


def test_each_cheaper_plan_is_offered_as_soon_as_it_is_there_until_it_is_enough() -> None:
    trace, machine = gpumem.bundled("vgg16"), Machine.named("gtx1080ti")
    planners, offered = ["on-demand", "vdnn-all", "on-demand-nonblocking", "vdnn-dyn", "heuristic"], list[Planned]()
    found = compare_planners(
        trace, machine, load=trace.peak_live_bytes * 7 // 10, planners=planners, offer=offered.append
    )
    assert [one.planner for one in offered] == ["on-demand", "vdnn-all", "on-demand-nonblocking", "heuristic"]
    assert found.planned is not None and found.planned.plan == offered[-1].plan
    how = {"load": trace.peak_live_bytes * 7 // 10, "planners": planners}
    assert len(compare_planners(trace, machine, enough=inf, **how).tried) == 1
    assert len(compare_planners(trace, machine, enough=inf, overhead=0.3, **how).tried) == 2


def test_without_an_end_a_search_looks_no_further_than_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[float, bool]]()

    def search(trace: gpumem.Trace, machine: Machine, limit: int, *, effort: float = 1.0) -> Plan:
        told.append((effort, work.hurried()))
        raise NotReached(trace.peak_live_bytes, limit)

    monkeypatch.setitem(gpumem.swap.PLANNERS, "search", search)  # type: ignore[attr-defined]
    trace = gpumem.bundled("mlp3")
    for options in ({}, {"effort": 0.5}):
        ask = asking(Machine.named("rtx4090"), trace.peak_live_bytes * 95 // 100, ["search"], options)
        for seconds in (5.0, None):
            assert ask(trace, seconds, lambda plan: None)[0] is False
    assert told == [(1.0, True), (0.01, False), (0.5, True), (0.5, False)]


def test_what_cannot_be_is_not_tried_again_and_the_least_pool_is_near() -> None:
    trace, machine = gpumem.bundled("resnet18"), Machine.named("gtx1080ti")
    found = compare_planners(trace, machine, 60 * MIB)
    assert found.planned is None and len(found.tried) == 1 and "the least limit that could do" in found.tried[0].why
    lowest = smallest_pool(trace, machine, 300 * MIB, planners=["vdnn-conv"], overhead=0.5)
    assert lowest.pool is not None and lowest.pool % MIB == 0 and lowest.overhead <= 0.5
    assert lowest.placement.height <= lowest.pool < trace.peak_live_bytes
    step = (552 - 300) // 64 + 1
    assert (
        compare_planners(trace, machine, lowest.pool - step * MIB, planners=["vdnn-conv"], overhead=0.5).planned is None
    )


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two planners that raise what none should, in the table of all."""
    monkeypatch.setitem(gpumem.swap.PLANNERS, "breaks", breaks)  # type: ignore[attr-defined]
    monkeypatch.setitem(gpumem.swap.PLANNERS, "loses", loses)  # type: ignore[attr-defined]


def loses(trace: gpumem.Trace, machine: Machine, limit: int) -> Plan:
    raise RuntimeError("the result failed its own check")


def test_a_planner_that_fails_costs_the_others_nothing(breaking: None) -> None:
    trace, machine = gpumem.bundled("vgg16"), Machine.named("gtx1080ti")
    load = trace.peak_live_bytes * 7 // 10
    found = compare_planners(trace, machine, load=load, planners=["breaks", "heuristic", "loses"])
    assert found.planned is not None and found.planned.planner == "heuristic"
    first = found.tried[0]
    assert str(first) == "breaks: failed: ZeroDivisionError: division by zero"
    assert isinstance(first.error, ZeroDivisionError) and first.error.__traceback__ is not None
    with pytest.raises(ZeroDivisionError):
        compare_planners(trace, machine, load=load, planners=["breaks", "loses"])
    with pytest.raises(ValueError, match="planner: 'foo' is unknown"):
        compare_planners(trace, machine, load=load, planners=["heuristic", "foo"])


def test_a_plan_that_fails_its_check_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = gpumem.bundled("vgg16"), Machine.named("gtx1080ti")
    verified = Planned.verified

    def picky(planned: Planned, *rest: float | None) -> Planned:
        if planned.planner == "heuristic":
            raise RuntimeError("the result failed its own check")
        return verified(planned, *rest)

    monkeypatch.setattr(Planned, "verified", picky)
    found = compare_planners(trace, machine, 350 * MIB, planners=["capuchin", "heuristic"])
    assert found.planned is not None and found.planned.planner == "capuchin"
    assert [str(one) for one in found.tried if one.error] == [
        "heuristic: failed: RuntimeError: the result failed its own check"
    ]


def test_the_least_pool_is_found_beside_a_planner_that_fails(breaking: None) -> None:
    trace, machine = gpumem.bundled("resnet18"), Machine.named("gtx1080ti")
    both = smallest_pool(trace, machine, 300 * MIB, planners=["breaks", "vdnn-conv"], overhead=0.5)
    assert both.pool == smallest_pool(trace, machine, 300 * MIB, planners=["vdnn-conv"], overhead=0.5).pool


def test_a_planner_that_comes_too_late_is_told() -> None:
    found = compare_planners(gpumem.bundled("vgg16"), Machine.named("gtx1080ti"), 300 * MIB, seconds=1e-6)
    assert found.planned is None and {tried.why for tried in found.tried} == {"the time was up, more seconds may do"}


@pytest.mark.parametrize("text", ["", "much", "-1%", "1e3", "5", "10%%", True])
def test_a_fraction_is_a_part_or_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^overhead: "):
        fraction(text, "overhead")


@pytest.mark.parametrize("command", [["fit"], ["capture", "-o", "OUT"]])
def test_without_pytorch_one_line_says_what_installs_it(tmp_path: Path, command: list[str]) -> None:
    """In a process of its own: what imports `gpumem.torch` twice leaves modules behind that others do not expect."""
    (tmp_path / "train.py").write_text("def make(batch=1): ...")
    words = [str(tmp_path / "trace.json") if word == "OUT" else word for word in command]
    words.insert(1, str(tmp_path / "train.py"))
    code = f"import sys; sys.modules['torch'] = None; from gpumem.cli import main; sys.exit(main({words}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 2 and told.stdout == ""
    needs = "gpumem: error: gpumem.torch needs PyTorch 2.12 or later: pip install 'gpumem[torch]'"
    assert told.stderr.startswith(needs)
    assert len(told.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_is_wrong_beside_the_workload_is_told_without_pytorch(cli: Cli, tmp_path: Path) -> None:
    for words, why in (
        (["fit"], "FILE.py:make is missing: a Python file and in it make"),
        (["fit", "x.py", "--machine", "rtx409"], "--machine: 'rtx409' is unknown; there are"),
        (["fit", "x.py", "--overhead", "10"], "--overhead: '10' is 1000%; did you mean '10%'?"),
        (["fit", "x.py", "--batch", "many"], "--batch: 'many' is not a whole number"),
        (["fit", "x.py", "--batch", "2", "--largest"], "--largest: not allowed with argument --batch"),
        (["fit", "x.py", "--planner", "magic"], "--planner: 'magic' is unknown; there are autoswap"),
        (["fit", "x.py", "--seconds", "0"], "--seconds: 0.0 is not positive and finite"),
        (["capture", "x.py"], "one of the arguments -o/--out --compare is required"),
        (["capture", "x.py", "-o", "x.csv"], "--out: 'x.csv' ends in none of .json, .json.gz"),
        (["capture", "x.py", "-o", "/nowhere/x.json"], "/nowhere/x.json: cannot write here (No such folder)"),
        (["capture", "x.py", "-o", "x.json", "--device", "gpu"], "--device: 'gpu' is unknown; there are meta, cpu"),
    ):
        assert why in cli.refuses(*words), words


def test_a_load_is_a_limit_as_well_as_a_pool() -> None:
    trace, machine = gpumem.bundled("vgg16"), Machine.named("gtx1080ti")
    names = ["capuchin", "heuristic"]
    load = trace.peak_live_bytes * 7 // 10
    found = compare_planners(trace, machine, load=load, planners=names)
    alone = [gpumem.plan(trace, machine, load=load, planner=name, check=False).overhead for name in names]
    assert [tried.overhead for tried in found.tried] == alone
    assert found.planned is not None and found.planned.overhead == min(alone)
    assert found.planned.trace.peak_live_bytes <= load
    assert compare_planners(trace, machine, load=1000, planners=names).needs > 1000
    for limits in ({}, {"pool": load, "load": load}):
        with pytest.raises(ValueError, match="plan for one of them"):
            compare_planners(trace, machine, **limits)
