"""Planning as one call: the command line's result, honest about what was checked."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import gpumem
from gpumem import Infeasible, Machine, NotReached, Placement, Plan, Swap, Trace, best_fit, simulate
from gpumem.base.names import name_of
from gpumem.base.units import amount
from gpumem.pipeline import Case, Checked, Planned
from gpumem.swap import autoswap
from gpumem.trace import Buffers, Ops
from tests.conftest import Cli, tiny_machine
from tests.files import snapshot
from tests.nets import MIB, PEAK, net
from tests.strategies import traces

ALL = Checked(("placement", "data_flow", "budget", "timeline"))
SCORED: dict[str, Any] = {"planner": "autoswap"}
SAID = "--planner", "autoswap"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "net.json"
    gpumem.write(path, net())
    return path


# --- the same as on the command line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"pool": "75%"}, ["--limit", "75%"]),
        ({"pool": "75%"} | SCORED, ["--limit", "75%", *SAID]),
        ({"pool": PEAK * 3 // 4}, ["--limit", "75%"]),
        ({"pool": np.int64(18 * MIB), "placer": "best-fit"}, ["--limit", "18MiB", "--pool", "best-fit"]),
        ({"load": "19MiB"}, ["--load-limit", "19MiB"]),
        ({"pool": "90%", "load": "80%"}, ["--limit", "90%", "--load-limit", "80%"]),
        ({"load": "75%"} | SCORED | {"score": "wdoa"}, ["--load-limit", "75%", *SAID, "--score", "wdoa"]),
        (
            {"load": "75%"} | SCORED | {"score": ["aoa", "doa"]},
            ["--load-limit", "75%", *SAID, "--score", "aoa,doa"],
        ),
        ({"load": "75%", "planner": "vdnn-all"}, ["--load-limit", "75%", "--planner", "vdnn-all"]),
        ({"load": "75%", "planner": "heuristic", "score": "all"}, ["--load-limit", "75%", "--planner", "heuristic"]),
        ({"load": "75%"} | SCORED | {"peaks": "all"}, ["--load-limit", "75%", *SAID, "--peaks", "all"]),
        ({"load": "75%"} | SCORED | {"threshold": "2MiB"}, ["--load-limit", "75%", *SAID, "--threshold", "2MiB"]),
        ({"pool": "80%", "alignment": 4096}, ["--limit", "80%", "--alignment", "4096"]),
        ({"load": "75%", "check": False}, ["--load-limit", "75%", "--no-check"]),
    ],
)
def test_the_call_and_the_command_find_the_same(
    cli: Cli, file: Path, options: dict[str, Any], arguments: list[str]
) -> None:
    ran = cli("plan", file, *arguments, "--json")
    if ran.status == 3:
        with pytest.raises((NotReached, Infeasible)) as stop:
            gpumem.plan(gpumem.read(file), "gtx1080ti", **options)
        assert ran.err == [f"gpumem: {stop.value}"]
    else:
        planned = gpumem.plan(gpumem.read(file), "gtx1080ti", **options)
        assert json.loads(json.dumps(planned.row())) == ran.json
        assert planned.table() + "\n" == cli("plan", file, *arguments).out


@pytest.mark.jit
def test_on_a_real_trace_too(cli: Cli) -> None:
    found = gpumem.plan(gpumem.bundled("vgg16"), Machine.named("gtx1080ti"), load="65%")
    assert found.row() == cli("plan", "vgg16", "--load-limit", "65%", "--json").json


@pytest.mark.parametrize("limit", ["pool", "load"])
def test_it_saves_what_the_command_writes(cli: Cli, file: Path, tmp_path: Path, limit: str) -> None:
    option = {"pool": "--limit", "load": "--load-limit"}[limit]
    assert cli("plan", file, option, "80%", "--out", tmp_path / "theirs").status == 0
    found = gpumem.plan(gpumem.read(file), "gtx1080ti", **{limit: "80%"})  # type: ignore[arg-type]
    found.save(tmp_path / "deep" / "ours", source=file.name)
    assert snapshot(tmp_path / "deep" / "ours") == snapshot(tmp_path / "theirs")


# --- what comes back ----------------------------------------------------------------------------------------


def test_without_a_limit_the_pool_is_what_the_machine_has_available() -> None:
    card = Machine.named("gtx1080ti").with_(capacity=PEAK, reserved=PEAK // 4)
    planned = gpumem.plan(net(), card, planner="heuristic")
    assert planned.pool == card.available == PEAK - PEAK // 4
    assert planned.plan.swaps and planned.placement.height <= card.available


def test_by_a_load_the_capacity_clock_judges_and_the_placed_clock_is_there_too() -> None:
    found = gpumem.plan(net(), "gtx1080ti", load="75%")
    assert found.after.timeline.makespan == simulate(found.trace, found.machine, capacity=found.load).makespan
    assert found.placed.makespan == simulate(found.trace, found.machine, found.placement).makespan
    assert found.clock == "byte-counting"


# --- what was checked ---------------------------------------------------------------------------------------


def test_it_says_which_oracles_were_asked(planned: Planned) -> None:
    assert planned.checked == ALL
    assert str(planned.checked) == "checked: placement, data_flow, budget, timeline"
    unchecked = gpumem.plan(net(), "gtx1080ti", pool="75%", check=False)
    assert unchecked.checked.held == () and set(unchecked.checked.left_out) == set(ALL.held)
    assert "not asked for" in str(unchecked.checked)
    assert unchecked.verified().checked == ALL


def test_of_a_huge_trace_it_says_what_was_left_out_and_why(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.pipeline.planned.TIMELINE", 1e9)
    found = gpumem.plan(net(), "gtx1080ti", load="75%", seconds=60).checked
    assert found.held == ("placement", "data_flow", "budget") and list(found.left_out) == ["timeline"]
    assert re.fullmatch(r"it takes about .* s, .* s are left", found.left_out["timeline"])
    ran = cli("plan", file, "--load-limit", "75%", "--seconds", "60", "--json")
    assert ran.status == 0 and len(ran.err) == 1
    assert ran.err[0].startswith("gpumem: checked: placement, data_flow, budget; not checked: timeline (")
    assert cli("plan", file, "--load-limit", "75%", "--seconds", "60", "--no-check").err == []


@pytest.mark.jit
def test_a_long_trace_is_checked_by_all_oracles() -> None:
    n = 20_001  # once, budget and timeline were left out above 20,000 ops
    ops = Ops.make([[i - 1] if i else [] for i in range(n)], [[i] for i in range(n)], duration=[5] * n)
    trace = Trace(Buffers.make([8] * n, range(n), [min(i + 2, n) for i in range(n)]), ops)
    assert gpumem.plan(trace, "gtx1080ti", load="100%").checked == ALL


@pytest.mark.parametrize("oracle", ALL.held)
def test_every_oracle_named_was_asked(monkeypatch: pytest.MonkeyPatch, oracle: str) -> None:
    def objects(*args: object, **options: object) -> None:
        raise gpumem.CheckError(oracle, "it objects")

    monkeypatch.setattr(f"gpumem.check.{oracle}", objects)
    with pytest.raises(RuntimeError, match=r"the result failed its own check.*it objects"):
        gpumem.plan(net(), "gtx1080ti", pool="75%")
    assert oracle in gpumem.plan(net(), "gtx1080ti", pool="75%", check=False).checked.left_out


def test_a_placer_that_lies_is_found_out() -> None:
    def flat(trace: Trace) -> Placement:
        return Placement(np.where(trace.buffers.host, -1, 0), int(trace.buffers.size.max()))

    with pytest.raises(RuntimeError, match=r"the result failed its own check: buffers .*; look into placer flat$"):
        gpumem.plan(net(), "gtx1080ti", pool="75%", placer=flat)


@pytest.mark.parametrize("given", [None, [Swap(0, 0, 2, 1, 2)], 3])
def test_a_planner_or_placer_that_returns_something_else_is_told_what(given: object) -> None:
    with pytest.raises(TypeError, match=r"planner: what it returned: .*; it must be a Plan; .*Plan.of"):
        gpumem.plan(net(), "gtx1080ti", load="75%", planner=lambda trace, machine, limit: given)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"placer: what it returned: .*; it must be a Placement; .*Placement.at"):
        gpumem.plan(net(), "gtx1080ti", load="75%", placer=lambda trace: given)  # type: ignore[arg-type,return-value]


def test_a_planner_of_ones_own_that_stays_above_the_limit_is_named() -> None:
    def idle(trace: Trace, machine: Machine, limit: int) -> Plan:
        return Plan.of(trace)

    with pytest.raises(RuntimeError, match=r"failed its own check: step .* the limit is .*; look into planner idle$"):
        gpumem.plan(net(), "gtx1080ti", load="75%", planner=idle)


# --- planners and placers of one's own ----------------------------------------------------------------------


def test_a_planner_of_ones_own_gets_its_options_and_no_others() -> None:
    seen: list[dict[str, object]] = []

    def mine(trace: Trace, machine: Machine, limit: int, *, seed: int = 0, effort: float = 1.0) -> Plan:
        seen.append({"limit": limit, "seed": seed, "effort": effort})
        return autoswap(trace, machine, limit)

    found = gpumem.plan(net(), "gtx1080ti", load="75%", planner=mine, seed=3, effort=0.5)
    assert seen == [{"limit": 18 * MIB, "seed": 3, "effort": 0.5}]
    assert (found.planner, found.score, found.checked) == ("mine", "", ALL)
    with pytest.raises(ValueError, match=r"^peaks: mine has no such option$"):
        gpumem.plan(net(), "gtx1080ti", load="75%", planner=mine, peaks="all")


def test_a_callable_keeps_its_score_unless_one_is_asked_for() -> None:
    own = partial(autoswap, score="aoa")
    found = gpumem.plan(net(), "gtx1080ti", load="75%", planner=own)
    assert (found.planner, found.score) == ("autoswap", "")
    assert found.plan == gpumem.plan(net(), "gtx1080ti", load="75%", planner="autoswap", score="aoa").plan
    assert gpumem.plan(net(), "gtx1080ti", load="75%", planner=own, score="wdoa").score == "wdoa"


def test_a_placer_of_ones_own_hears_of_the_alignment_if_it_can() -> None:
    seen = []

    def mine(trace: Trace, *, alignment: int) -> Placement:
        seen.append(alignment)
        return best_fit(trace, alignment=alignment)

    gpumem.plan(net(), "gtx1080ti", load="75%", placer=mine, alignment=512)
    assert seen == [512, 512]  # without the plan and with it
    assert gpumem.plan(net(), "gtx1080ti", load="75%", placer=lambda trace: best_fit(trace)).checked == ALL


def test_names_of_functions() -> None:
    assert name_of(autoswap) == name_of(partial(autoswap, score="doa")) == "autoswap"
    assert name_of(partial(partial(Cli.refuses), None)) == "refuses"


def test_it_tells_what_it_is_doing() -> None:
    told: list[str] = []
    gpumem.plan(net(), "gtx1080ti", pool="75%", planner="autoswap", progress=told.append)
    assert told[0] == "placing the unswapped trace" and told[-1] == "checking the plan"
    assert any(text.startswith("doa: trying a load limit of ") for text in told)


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"trace": "vgg16"},
            "trace: 'vgg16' is a str; it must be a Trace; gpumem.read(path) and gpumem.bundled(name) return one",
        ),
        ({"trace": None}, "trace: None is a NoneType; it must be a Trace"),
        ({"trace": Trace.from_lifetimes([4], [0], [1])}, "is a bare instance, it has no ops to swap between"),
        ({"machine": "gtx9000"}, "machine: 'gtx9000' is unknown; there are gtx1080ti"),
        ({"machine": 12}, "machine: 12 is an int; it must be a Machine or a text"),
        ({"pool": 0}, "pool: 0 is 0 bytes, it must be at least 1"),
        ({"load": -5}, "load: -5 is -5 bytes, it must be at least 1"),
        ({"pool": 0.7}, "pool: 0.7 is a float; it must be a whole number or a text such as '300MiB' or '70%'"),
        ({"load": True}, "load: True is a bool; it must be a whole number or"),
        ({"pool": "4KiB"}, None),
        ({"pool": "70"}, "pool: '70' is 70 bytes, next to nothing of 24.00 MiB; did you mean '70%'?"),
        ({"pool": "many"}, "pool: 'many' is not an amount; write bytes, 300MiB, 1.5GiB or 70%"),
        ({"load": "0%"}, "load: '0%' is 0 bytes, it must be at least 1"),
        ({"pool": 2**62}, "pool: 4611686018427387904 is too large"),
        ({"planner": "magic"}, "planner: 'magic' is unknown; there are autoswap, "),
        ({"planner": 3}, "planner: 3 is an int; it must be a text or a function"),
        (SCORED | {"score": "best"}, "score: 'best' is unknown; there are doa, aoa, wdoa, swdoa"),
        (SCORED | {"score": []}, "score: '' is unknown"),
        (SCORED | {"score": ["doa", 3]}, "score: '3' is unknown"),
        ({"planner": "heuristic", "score": "doa"}, "score: no use to heuristic"),
        ({"score": "doa"}, "score: no use to search"),
        ({"placer": "tetris"}, "placer: 'tetris' is unknown; there are best-fit, "),
        ({"placer": 3}, "placer: 3 is an int; it must be a text or a function or None"),
        ({"alignment": 0}, "alignment"),
        ({"colour": "red"}, "colour: search has no such option"),
        ({"planner": "vdnn-all", "seed": 3}, "seed: vdnn-all has no such option"),
        (SCORED | {"threshold": "few"}, "threshold: 'few' is not an amount"),
        (SCORED | {"peaks": "some"}, "peaks"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str | None) -> None:
    given = {"trace": net(), "machine": "gtx1080ti", "load": "75%"} | options
    if "pool" in options:
        del given["load"]
    trace, machine = given.pop("trace"), given.pop("machine")
    if message is None:
        with pytest.raises(Infeasible):
            gpumem.plan(trace, machine, **given)
    else:
        with pytest.raises(TypeError if "; it must be a" in message else ValueError) as error:
            gpumem.plan(trace, machine, **given)
        assert message in str(error.value)


def test_amounts_are_numbers_or_texts() -> None:
    assert amount(0, 10, "x", least=0) == 0 and amount(np.int32(7), 10, "x") == 7 and amount("50%", 10, "x") == 5
    assert type(amount(np.int64(7), 10, "x")) is int


def test_what_no_plan_reaches_is_not_bad_input() -> None:
    with pytest.raises(Infeasible, match=r"must hold 9\.00 MiB"):
        gpumem.plan(net(), "gtx1080ti", load="5MiB")
    with pytest.raises(NotReached) as stop:
        gpumem.plan(net(), "gtx1080ti", pool=9 * MIB, planner="autoswap", threshold="2MiB")
    assert stop.value.reached > stop.value.limit == 9 * MIB


# --- any trace ----------------------------------------------------------------------------------------------


@given(traces(max_ops=8, max_buffers=6))
def test_any_trace_is_planned_or_it_is_said_why_not(trace: Trace) -> None:
    machine = tiny_machine()
    try:
        found = gpumem.plan(trace, machine, load="75%", planner="autoswap", threshold=1, alignment=1)
    except (Infeasible, NotReached):
        return
    except ValueError as error:
        assert trace.peak_live_bytes <= 1 and "it must be at least 1" in str(error)
        return
    assert found.checked == ALL and found.trace.peak_live_bytes <= found.load_limit and len(repr(found)) <= 200
    case = Case.of(trace, machine, load=found.load, alignment=1)
    assert case.line.makespan == found.before.timeline.makespan
