"""`python -m benchmarks mosos`: operators and their needs, a step by each program, where its time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import mosos
from benchmarks.papers.autoswap import Study
from gpumem import io, pipeline
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.kinds import WORKSPACE
from tests.conftest import Cli

DEPTH, SIDE, CHANNELS, BATCH = 4, 32, 64, 16
CARD = Machine.named("p40")


def bare() -> Trace:
    """A chain of equal convolutions and its backward pass."""
    image, filters = (BATCH, CHANNELS, SIDE, SIDE), (CHANNELS, CHANNELS, 3, 3)
    k, end = DEPTH, 2 * DEPTH
    shapes = [image] * (k + 1) + [filters] * k + [image] * k  # activations, weights, gradients
    activation, weight, gradient = range(k + 1), range(k + 1, 2 * k + 1), range(2 * k + 1, 3 * k + 1)
    reads, writes = [[] for _ in range(end)], [[] for _ in range(end)]
    for i in range(k):
        reads[i], writes[i] = [activation[i], weight[i]], [activation[i + 1]]
        back = end - 1 - i
        reads[back] = [gradient[i + 1] if i < k - 1 else activation[k], activation[i], weight[i]]
        writes[back] = [gradient[i], weight[i]]
    start = [0, *range(k), *[0] * k, *(end - 1 - i for i in range(k))]
    last = [end, *(end - i for i in range(k)), *[end] * k, *(min(end + 1 - i, end) for i in range(k))]
    last[k] = k + 1
    size = [4 * s[0] * s[1] * s[2] * s[3] for s in shapes]
    name = ["convolution.default"] * k + ["convolution_backward.default"] * k
    ops = Ops.make(reads, writes, name=name, duration=[200_000] * k + [400_000] * k)
    table = Buffers.make(size, start, last, shape=shapes, dtype=["float32"] * len(shapes))
    return Trace(table, ops, name="chain")


def convolutional() -> Trace:
    """The same with the fastest workspaces."""
    return workspaces.add(bare())


def study(trace: Trace) -> Study:
    case = pipeline.Case.of(trace, CARD, load=trace.peak_live_bytes)
    return Study(case, {"seconds": 2.0, "effort": 0.01}, lambda text: None, lambda text: None, lambda factor: trace)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return mosos.steps(study(convolutional()), [0.7])


def test_a_step_by_each_way_and_where_its_time_goes(rows: list[dict[str, Any]]) -> None:
    found = {r["way"]: r for r in rows}
    assert list(found) == [mosos.NO_LIMIT, *mosos.WAYS]
    started, whole = found[mosos.STARTED], found[mosos.NO_LIMIT]
    for r in rows:
        if r["step_ns"] is None:
            continue
        assert r["step_ns"] == r["convolution_ns"] + r["other_ns"] + r["stall_ns"]
        assert r["step_ns"] >= whole["step_ns"] == whole["convolution_ns"]
        assert r["step_ns"] is None or started["step_ns"] <= r["step_ns"] or r is whole
        assert r["status"] == "" or r["step_ns"] - r["bound_ns"] == pytest.approx(r["gap"] * r["step_ns"])
    assert found["checkmate-auto"]["offloaded"] == 0
    text = mosos.step_table(rows) + mosos.spent_table(rows)
    assert "chain    0.7" in text and text.count("\n") > len(rows)


def test_reductions_are_of_what_the_others_take() -> None:
    def row(way: str, step: int | None, bound: int | None = None) -> dict[str, Any]:
        return {"trace": "t", "ratio": 0.7 if bound else 1.0, "way": way, "step_ns": step, "bound_ns": bound}

    made = [row(mosos.NO_LIMIT, 50), row("checkmate-auto", 200, 1), row("str-auto", 100, 1), row("mosos", 80, 75)]
    (found,) = mosos.reductions(made)
    assert [round(found[key], 3) for key in found if key.startswith("str")] == [0.2, 0.25, 0.5]
    assert [round(found[key], 3) for key in found if key.startswith("check")] == [0.6, 0.625, 0.75]
    assert "20.00" in mosos.reduction_table([found]) and "4.36" in mosos.reduction_table([found])
    made[1] = row("checkmate-auto", None, 1)
    assert mosos.reductions(made)[0]["checkmate-auto"] is None
    assert mosos.reductions([*made[:3], row("mosos", None, 1)]) == []


def test_what_has_to_be_freed_is_what_is_above_the_limit() -> None:
    trace = convolutional()
    ratio = 0.8
    limit, own, load = mosos.limit_of(trace, ratio), own_workspaces(trace), trace.live_bytes()
    found = mosos.trade_off(trace, CARD, [ratio])
    assert {r["op"] for r in found} == set(range(trace.n)) == set(own)
    for r in found:
        operands = {*trace.ops.reads[r["op"]].tolist(), *trace.ops.writes[r["op"]].tolist()} - {own[r["op"]]}
        assert r["load"] == load[r["op"]] - trace.buffers.size[own[r["op"]]]
        assert trace.buffers.size[[*operands]].sum() <= r["load"] - r["idle"]
        above = max(r["load"] + r["workspace"] - limit, 0)
        assert r["freed_at_0.8"] == (above if above <= r["idle"] else None)
    assert trace.buffers.kind[own[0]] == WORKSPACE and found[0]["by"] == trace.buffers.name[own[0]]
    assert [r["over"] for r in found if r["op"] == 0] == sorted(r["over"] for r in found if r["op"] == 0)


def test_bench(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "chain.json", tmp_path / "bench"
    io.write(path, bare())
    ran = cli("bench", "mosos", path, "--ratios", "0.8", "--seconds", "1", "--effort", "0.01", "--quick", "--out", out)
    assert ran.status == 0
    assert "# workspaces: fastest" in ran.out
    found = json.loads((out / "bench.json").read_text())
    assert len(found["steps"]) == len(found["breakdown"]) == 1 + len(mosos.WAYS)
    steps = {r["way"]: r["step_ns"] for r in found["steps"]}
    assert {r["way"]: r["step_ns"] for r in found["headroom"]} == {way: steps[way] for way in mosos.REDUCTIONS}
    assert {path.name for path in out.iterdir()} >= {"bench.txt", "bench.json", "fig2-chain.png", "fig4-chain.png"}


def test_bad_input_is_one_line(cli: Cli) -> None:
    assert "--ratios: 'x' is no list" in cli.refuses("bench", "mosos", "--ratios", "x")
    assert "--ratios: 1.5 is not in (0, 1]" in cli.refuses("bench", "mosos", "--ratios", "0.5,1.5")
    assert "--seconds: -1.0 is not positive" in cli.refuses("bench", "mosos", "--seconds", "-1")
