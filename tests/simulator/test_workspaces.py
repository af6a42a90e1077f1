"""Are traces with `simulator.workspaces` like any others to planners, oracles, files and the command line?"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.suites import parser as suites
from gpumem import check, io, pool, swap
from gpumem.base.errors import NotReached
from gpumem.cli.main import main
from gpumem.pool import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.workspaces import add, convolutions
from gpumem.simulator.workspaces.shapes import WEIGHT_GRADIENT
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import shared
from tests.runs import outcome, same
from tests.simulator.workspaces.convolutions import VGG, by_hand, columns
from tests.swap.judging import judged, quick

GTX = Machine.named("gtx1080ti")


LARGER = add(VGG)


def net(layers: int = 5, x: tuple[int, ...] = (8, 64, 16, 16)) -> Trace:
    """A chain of convolutions, forward and backward: filters, then activations, then gradients."""
    w = (x[1], x[1], 3, 3)
    n, kinds = 2 * layers, [("param", w, layers), ("activation", x, layers + 1), ("act_grad", x, layers + 1)]
    start = [*[0] * layers, *[0, *range(layers)], *[layers, *range(layers, n)]]
    end = [
        *[n] * layers,
        *[n - k for k in range(layers)],
        layers + 1,
        *[layers + 1 + k + (k == 0) for k in range(layers + 1)],
    ]
    shape = [s for _, s, count in kinds for _ in range(count)]
    table = Buffers.make(
        [4 * math.prod(s) for s in shape],
        start,
        [min(stop, n) for stop in end],
        persistent=[k < layers for k in range(len(shape))],
        kind=[kind for kind, _, count in kinds for _ in range(count)],
        shape=shape,
        dtype=["float32"] * len(shape),
    )
    a, g = layers, 2 * layers + 1
    reads = [[a + k, k] for k in range(layers)] + [[g + k, a + layers - 1 - k, layers - 1 - k] for k in range(layers)]
    writes = [[a + k + 1] for k in range(layers)] + [[g + k + 1] for k in range(layers)]
    names = ["convolution.default"] * layers + ["convolution_backward.default"] * layers
    return Trace(table, Ops.make(reads, writes, name=names, duration=[1_000_000] * n))


@pytest.mark.parametrize("name", sorted(pool.PLANNERS))
def test_pool_planners_place_them(name: str) -> None:
    options = {"search": {"effort": 0.01}, "exact": {"seconds": 1}}.get(name, {})
    for trace in (LARGER, add(net())):
        check.placement(trace, pool.PLANNERS[name](trace, **options))


@pytest.mark.parametrize("name", sorted(swap.PLANNERS))
def test_swap_planners_plan_around_them(name: str) -> None:
    trace = add(net())
    assert trace.peak_live_bytes > net().peak_live_bytes
    for percent in (95, 85, 75):
        limit = trace.peak_live_bytes * percent // 100
        try:
            plan = quick(name)(trace, GTX, limit)
        except NotReached as stop:
            assert stop.reached > limit
            continue
        judged(trace, GTX, plan, limit)


def test_the_emulator_reads_the_same_with_them() -> None:
    larger = add(net(4, (1, 2, 4, 4)), by_hand(("mine", 1, 64)))
    plan = swap.PLANNERS["heuristic"](larger, GTX, larger.peak_live_bytes * 8 // 10)
    moved = plan.apply(larger)
    assert plan.swaps and (larger.buffers.size[-8:] == 64).all()
    want = outcome(larger, larger, best_fit(larger), 0)
    assert same(want, outcome(larger, moved, best_fit(moved), 3, host=best_fit(moved.host_side())))


def test_files_keep_them(tmp_path: Any) -> None:
    path = tmp_path / "trace.json.gz"
    larger = add(net())
    io.write(path, larger)
    again = io.read(path)
    named = replace(again.buffers, name=larger.buffers.name)  # the format keeps no names of buffers
    assert columns(Trace(named, again.ops)) == columns(larger) and add(again) is again


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_all_shared_traces(path: Any) -> None:
    trace = io.read(path)
    done = convolutions(trace)
    assert all(done.values()), "a convolution was not read"
    for op, found in done.items():  # flops by PyTorch's formula, which forgets the groups of a weight gradient
        counted = sum(2 * c.products * (c.groups if c.direction == WEIGHT_GRADIENT else 1) for c in found)
        assert counted == pytest.approx(trace.ops.flops[op])
    larger = add(trace)
    check.placement(larger, pool.best_fit(larger))
    assert larger.peak_live_bytes >= trace.peak_live_bytes and (larger is trace) == (
        len(larger.buffers) == len(trace.buffers)
    )


def test_commands_add_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {}
    for rule in ("none", "fastest", "10%"):
        assert main(["pool", "vgg16", "--workspaces", rule, "--json"]) == 0
        told = capsys.readouterr()
        rows[rule] = json.loads(told.out)[0]["peak_live_bytes"]
        assert ("workspaces of 25 ops, the largest" in told.err) == (rule != "none")
    assert rows == {
        "none": VGG.peak_live_bytes,
        "fastest": LARGER.peak_live_bytes,
        "10%": add(VGG, rule=VGG.peak_live_bytes // 10).peak_live_bytes,
    }
    assert main(["pool", "mlp3", "--workspaces", "fastest"]) == 0
    assert "mlp3_b128_sgd: no workspaces" in capsys.readouterr().err
    assert main(["plan", "vgg16", "--load-limit", "80%", "--workspaces", "64MiB", "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_live_bytes"] == add(VGG, rule=2**26).peak_live_bytes


def test_a_rule_that_is_named_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(of=suites, argv=["pool", "mlp3", "--what", "table1", "--workspaces", "none,none", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["table1"]) == 1


@pytest.mark.parametrize(
    "command", ["pool vgg16", "plan", "swap --limit 70%", "bound", "bench pool", "bench swap", "bench tensile"]
)
def test_bad_values_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value, why in (
        ("fast", "did you mean 'fastest'?"),
        ("64MB", "did you mean '64MiB'?"),
        ("-1", "nor bytes"),
        ("", "''"),
    ):
        first, *rest = command.split()
        given = [*rest, f"--workspaces={value}"]
        assert (main(given, of=suites) if first == "bench" else main([first, *given])) == 2
        error = capsys.readouterr().err.strip()
        assert "--workspaces" in error and why in error and error.count("\n") == 0
