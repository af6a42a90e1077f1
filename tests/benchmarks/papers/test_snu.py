"""`python -m benchmarks snu`: the ways of the SNU thesis beside each other, its figures, and what would give them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import snu
from benchmarks.papers.autoswap import Study
from gpumem import pipeline
from gpumem.io import bundled, load
from gpumem.simulator.machine import GIB, Link, Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap import PLANNERS, Plan, least_stall
from gpumem.swap.snu import ilp
from gpumem.trace import Trace
from gpumem.trace.batch import rebatch
from tests.conftest import Cli, shared


def study(factor: float, reserved: int = GIB // 2) -> Study:
    """The stand-in at a batch size, on the thesis' card."""
    trace, card = rebatch(bundled("resnet18"), factor), Machine.named("rx5700xt").with_(reserved=reserved)
    case = pipeline.Case.of(trace, card, load=card.available)
    return Study(case, {"effort": 0.01}, lambda text: None, lambda text: None, partial(rebatch, trace))


@pytest.mark.jit
def test_bench(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    args = ("resnet18", "mlp3", "--reserved", "7.6GiB", "--quick", "--what", "ways,moved", "--out", out)
    ran = cli("bench", "snu", *args)
    assert ran.status == 0
    assert {path.name for path in out.iterdir()} >= {"bench.txt", "bench.json", "fig7.png", "fig8.png"}
    found = json.loads((out / "bench.json").read_text())
    ways = {r["way"]: r for r in found["ways"] if r["trace"].startswith("resnet18")}
    planned = ["heuristic", "search"]  # the integer program is not quick
    assert list(ways) == [snu.BASE, *snu.ON_DEMAND, *planned, snu.LEAST]
    assert ways[snu.BASE]["over"] == 1
    for name, row in ways.items():
        assert row["iteration_ns"] == row["computation_ns"] + row["stall_ns"] >= ways[snu.LEAST]["iteration_ns"]
        assert (name in planned) <= (row["over"] < 0.8)
    assert [r["way"] for r in found["ways"] if r["trace"].startswith("mlp3")] == ["fits"]
    assert len(found["moved"]) == 4
    assert ran.out.strip() == (out / "bench.txt").read_text().strip()


def test_the_stand_in_takes_what_the_thesis_net_takes(cli: Cli) -> None:
    from benchmarks.suites import snu as suite

    for factor, batch in zip(suite.FACTORS, snu.SIZES, strict=True):
        trace = rebatch(bundled(suite.STAND_IN), factor)
        assert snu.batch_of(trace) == batch
        assert trace.peak_live_bytes / 1e9 == pytest.approx(snu.SIZES[batch], rel=0.01)


@pytest.mark.jit
def test_a_figure_and_what_would_give_it() -> None:
    rows = {(r["way"], r["knob"]): r for r in snu.models(study(30.4), step=2.0, rounds=1)}
    assert len(rows) == 2 * len(snu.KNOBS)
    link = rows["ilp", "the link, on demand alone"]
    assert link["met"] and link["over"] <= link["aim"] == 0.57 and link["value"] == 4
    copy = rows["heuristic", "host time a copy"]  # nine copies are too few for that to matter
    assert not copy["met"] and copy["over"] > copy["aim"] == 0.60
    assert "never: " in snu.model_table([*rows.values()])
    assert snu.models(study(7.8)) == snu.moved(study(7.8)) == []


@pytest.mark.parametrize("step", [1.0, 0.5, 0.0, -2.0, float("nan"), float("inf")])
def test_models_need_values_that_grow(step: float) -> None:
    with pytest.raises(ValueError, match=f"step: {step} is not finite and above 1"):
        snu.models(study(7.8), step=step)


def test_a_program_is_handed_the_best_plan_and_the_certified_least() -> None:
    """A slow link: no plan hides all copies, and of the plans the heuristic's stalls least."""
    large = study(30.4)
    slow = large.case.machine.with_(into=Link(0, 0.5), out=Link(0, 0.5))
    handed: dict[str, Any] = {}

    def program(trace: Trace, machine: Machine, limit: int, *, start: Plan, bound: int) -> Plan:
        handed.update(start=start, bound=bound)
        return start

    case = pipeline.Case.of(large.case.trace, slow, load=slow.available)
    planners = {"heuristic": PLANNERS["heuristic"], "ilp": program}
    rows = {r["way"]: r for r in snu.ways(replace(large, case=case, check=False), planners, rounds=1)}
    assert handed["start"] == PLANNERS["heuristic"](case.trace, slow, slow.available)
    assert handed["bound"] == rows[snu.LEAST]["iteration_ns"] and rows[snu.LEAST]["stall_ns"] > 0
    assert rows["ilp"]["iteration_ns"] == rows["heuristic"]["iteration_ns"] < rows["on-demand"]["iteration_ns"]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/resnet34_224_b*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_the_program_is_at_least_as_good_as_the_heuristic(path: Path) -> None:
    """And within 2 % of the certified least time, at every batch size of the thesis."""
    trace, card = load(path).trace, snu.context(Machine.named("rx5700xt"))
    limit, base = card.available, simulate(trace, card).makespan

    def took(plan: Plan) -> int:
        return simulate(plan.apply(trace), card, capacity=limit).makespan

    program = took(ilp(trace, card, limit))
    assert program <= took(PLANNERS["heuristic"](trace, card, limit))
    assert program <= 1.02 * (base + least_stall(trace, card, limit).stall_ns)


def test_bad_input_is_one_line(cli: Cli) -> None:
    assert "--what: 'table1' is unknown" in cli.refuses("bench", "snu", "resnet18", "--what", "table1")
    assert "--effort: -1.0 is not positive" in cli.refuses("bench", "snu", "resnet18", "--effort", "-1")
