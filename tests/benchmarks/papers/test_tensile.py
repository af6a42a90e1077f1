"""`python -m benchmarks tensile`: tables, figures and bounds beside those of the paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.papers import tensile
from benchmarks.papers.tensile import bound_table, figure6, table
from gpumem.io import bundled
from gpumem.simulator.machine import Machine
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import Cli


def test_bench_tensile(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    ran = cli(
        "bench", "tensile", "mlp3", "--quick", "--tasks", "2", "--what", "table1,table2,arrivals,bounds", "--out", out
    )
    assert ran.status == 0
    assert {"bench.txt", "bench.json"} <= {path.name for path in out.iterdir()}
    found = json.loads((out / "bench.json").read_text())
    assert [(r["tasks"], r["method"]) for r in found["table2"]][3:5] == [(1, "tensile+activity"), (2, "vdnn")]
    assert all(r["eor"] == pytest.approx(0, abs=1e-3) for r in found["table1"] if r["method"] == "tensile")
    (bound,) = found["bounds"]
    assert max(r["msr"] for r in found["table1"] if r["method"] == "tensile") <= bound["free_msr"] + 1e-9
    assert [r["iterations_waited"] <= 2 for r in found["arrivals"]] == [True] * 3
    assert ran.out.strip() == (out / "bench.txt").read_text().strip()


def test_bench_tensile_in_the_papers_framework(cli: Cli) -> None:
    """Both ways beside each other: where Python waits for each op, more is saved, and an iteration takes longer."""
    rows = cli("bench", "tensile", "mlp3", "--quick", "--what", "table1,arrivals", "--framework", "--json").json
    queued, waited = (
        next(r for r in rows["table1"] if (r["trace"], r["method"]) == (f"mlp3_b128_sgd{way}", "tensile"))
        for way in ("", ", waited for")
    )
    assert queued["msr"] < 0.01 < waited["msr"] and waited["eor"] == pytest.approx(0, abs=1e-3)
    b = bundled("mlp3").buffers
    for r in (queued, waited):
        held = (1 - r["msr"]) * bundled("mlp3").peak_live_bytes
        assert r["msr_nothing_freed"] == pytest.approx(1 - held / b.size.sum())
    first = {way: next(r for r in rows["arrivals"] if r["trace"].endswith(way)) for way in ("sgd", "for")}
    assert first["for"]["launch"] == first["sgd"]["launch"] == 0
    second = {way: [r for r in rows["arrivals"] if r["trace"].endswith(way)][1]["arrive"] for way in ("sgd", "for")}
    assert second["for"] > 5 * bundled("mlp3").n * 1_000_000 > second["sgd"]


@pytest.mark.parametrize("size, ns", [(0, 10), (0, 0), (1, 10)])
def test_of_a_trace_of_hardly_any_bytes_nothing_is_saved(size: int, ns: int) -> None:
    ops = Ops.make([[], [0], [0]], [[0], [], []], duration=[ns] * 3)
    trace = Trace(Buffers.make([size], [0], [3]), ops, name="nothing")
    setting = tensile.Setting(Machine.named("rtx2080ti"), 1.0, 2, True, str, str, 3)
    rows = tensile.methods(trace, 2, setting)
    assert [row["method"] for row in rows] == list(tensile.METHODS)
    assert all((row["msr"], row["msr_nothing_freed"], row["eor"]) == (0, 0, 0) for row in rows)
    assert {key: value for key, value in tensile.bounds(trace, setting).items() if value} == {"trace": "nothing"}
    assert tensile.mlp_row(trace, setting)["free_msr"] == 0
    assert [row["limit"] for row in tensile.arrivals(trace, setting)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "0"], "--tasks: 0 is not in 1..100"),
        (["--what", "table3"], "--what: 'table3' is unknown"),
        (["--slowdown", "nan"], "--slowdown: nan is not finite"),
        (["--launch-ns", "-5"], "launch_ns -5.0 is not finite and >= 0"),
    ],
)
def test_bad_input_to_the_bench_is_one_line(cli: Cli, options: list[str], message: str) -> None:
    assert message in cli.refuses("bench", "tensile", "mlp3", *options)


def test_one_task_has_another_figure_in_each_of_the_papers_tables() -> None:
    one, none = {"trace": "vgg16", "tasks": 1, "method": "tensile"}, {"trace": "mlp3", "tasks": 1, "method": "tensile"}
    found = [tensile.beside([one, none], table) for table in (tensile.TABLE1, tensile.TABLE2)]
    assert [[row["paper"] for row in rows] for rows in found] == [[(0.2241, 0.0971), None], [(0.2001, 0.0838), None]]


def test_tables_for_people() -> None:
    row = {"trace": "vgg16", "tasks": 1, "method": "tensile", "msr": 0.25, "eor": 0.1, "cbr": None, "passive": 3}
    row["msr_nothing_freed"] = 0.5
    text = table([{**row, "paper": (0.2241, 0.0971)}, {**row, "method": "vdnn", "paper": None}])
    assert "infinite" in text and "0.5000" in text and "0.2241" in text and "2.3079" in text
    drawn = figure6([row])
    assert [f.name for f in drawn] == ["fig6-msr", "fig6-eor", "fig6-cbr"]
    assert [s.y for s in drawn[0].series if s.name == "tensile"] == [[0.25]]
    assert "no plan" in bound_table([{"trace": "a", "free_msr": 0.5, "eor_at_0.2241": None}])
