"""`python -m benchmarks swap`: lowest limits, figures 8 to 11 and table II are what plans, clocks and traces say."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpumem
from benchmarks.papers.autoswap import batch_table, limit_table, profile_table
from benchmarks.suites.swap import rebatched
from gpumem.base.errors import NotReached
from gpumem.io import write
from gpumem.pipeline.report import Figure, Series
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import TARGETS, autoswap, candidates, load_min
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from gpumem.trace.batch import rebatch
from tests.cli.planners import breaks, wrong
from tests.conftest import Cli
from tests.nets import GTX, MIB, PEAK, net


def test_bench_prints_lowest_limits_and_the_figures(cli: Cli, net_file: Path, table: object, bounded: None) -> None:
    ran = cli("bench", "swap", net_file, "--quick", "--seed", "4")
    assert (ran.status, ran.err) == (0, [])
    lines = ran.out.splitlines()
    assert lines[0].startswith("# machine: ") and lines[1].startswith("# gpumem 0.1.0, python ")
    assert lines[2:4] == ["# seed: 4", f"# command: python -m benchmarks swap {net_file} --quick --seed 4"]
    for title in ("Lowest load limit", "Figure 8", "Figure 9", "Figure 10", "Figure 11", "Table II"):
        assert sum(line.startswith(title) for line in lines) == 1
    ten = next(k for k, line in enumerate(lines) if line.startswith("Figure 10"))
    assert [line.split()[0] for line in lines[ten + 2 : ten + 5]] == ["batch", "0.5", "1"]
    limits = next(k for k, line in enumerate(lines) if line.startswith("trace "))
    assert [line.split()[:2] for line in lines[limits + 1 : limits + 4]] == [["net", name] for name in (*table,)]


def test_a_planner_that_fails_costs_its_own_rows(
    cli: Cli, net_file: Path, table: dict[str, Any], bounded: None
) -> None:
    table |= {"breaks": breaks, "last": autoswap}
    words = ["bench", "swap", net_file, "--quick", "--what", "lowest_limits,fig11", "--planner", "breaks,autoswap,last"]
    ran = cli(*words, "--json")
    assert ran.status == 1 and [row["planner"] for row in ran.json["lowest_limits"]] == ["autoswap", "last"]
    assert [s["name"] for s in ran.json["fig11"][0]["series"] if s["y"]] == ["autoswap", "last"]
    failed = {"trace": "net", "planner": "breaks", "error": "ZeroDivisionError: division by zero"}
    assert ran.json["failed"] == [failed]
    told = "gpumem: net: breaks: failed: ZeroDivisionError: division by zero; --traceback shows where"
    assert ran.err == [told]
    ran = cli(*words, "--traceback")
    assert ran.status == 1 and ran.err[0].startswith("Traceback") and "autoswap" in ran.out
    assert cli("bench", "swap", net_file, "--quick", "--what", "lowest_limits", "--planner", "breaks").status == 1


def test_bench_prints_json_and_writes_files(
    cli: Cli, net_file: Path, table: object, bounded: None, tmp_path: Path
) -> None:
    ran = cli("bench", "swap", net_file, "--quick", "--json", "--planner", "autoswap", "--out", tmp_path / "out")
    found = ran.json
    assert list(found) == ["header", "lowest_limits", "fig8", "fig9", "fig10", "fig11", "optimality", "table2"]
    (lowest,) = found["lowest_limits"]
    assert lowest["limit"] <= lowest["unbroken"] <= lowest["peak_live_bytes"] == PEAK and lowest["bound"] == PEAK // 2
    assert lowest["achieved"] == pytest.approx((PEAK - lowest["limit"]) / (PEAK / 2))
    assert found["table2"] == []  # neither a VGG nor a ResNet
    nine, eleven = found["fig9"][0], found["fig11"][0]
    ours = [*SCORES]  # no bayes in the table of planners
    assert [s["name"] for s in nine["series"]] == [*ours, *(f"{name}, as printed" for name in ours)]
    assert [s["style"] for s in nine["series"]] == ["line"] * 4 + ["dashed"] * 4
    assert all(s["x"] == pytest.approx([90, 75, 60], abs=1e-4) for s in nine["series"])
    assert [s["name"] for s in eleven["series"]] == ["autoswap"]
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"bench.txt", "bench.json"} | {f"fig{number}-net.png" for number in (8, 9, 10, 11)}
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    text = (tmp_path / "out" / "bench.txt").read_text()
    assert text.splitlines()[0] == found["header"][0] and "Figure 11" in text


def test_figure_8_is_what_the_traces_hold(cli: Cli) -> None:
    args = ["--what", "fig8", "--planner", "autoswap", "--json", "--no-check"]
    (figure,) = cli("bench", "swap", "vgg16", *args).json["fig8"]
    trace = gpumem.bundled("vgg16")
    assert [s["name"] for s in figure["series"]] == ["unswapped", "at 77%", "at 62%", "load_min"]
    loads = [np.array(s["y"]) * MIB for s in figure["series"]]
    assert [len(held) for held in loads] == [trace.n] * 4
    assert loads[0].tolist() == trace.live_bytes().tolist()
    for held, part in zip(loads[1:], (0.77, 0.62)):
        assert held.max() <= part * trace.peak_live_bytes
    assert loads[3].max() == load_min(candidates(trace, GTX, 1)) < loads[2].max()


def test_each_rule_for_workspaces_has_a_figure_of_its_own(cli: Cli) -> None:
    args = ["--what", "fig8", "--planner", "autoswap", "--json", "--no-check"]
    bare, larger = cli("bench", "swap", "resnet18", *args, "--workspaces", "none,fastest").json["fig8"]
    trace = gpumem.bundled("resnet18")
    assert (bare["trace"], larger["trace"]) == (trace.name, f"{trace.name}, fastest")
    for figure, held in ((bare, trace), (larger, workspaces.add(trace))):
        assert [y * MIB for y in figure["series"][0]["y"]] == held.live_bytes().tolist()


def test_another_batch_has_workspaces_of_its_own_size() -> None:
    trace = gpumem.bundled("vgg16")
    half = rebatched(trace, "fastest", 0.5)
    assert half.buffers.size.tolist() == workspaces.add(rebatch(trace, 0.5)).buffers.size.tolist()
    assert (
        half.buffers.size[len(trace.buffers) :].sum() < workspaces.add(trace).buffers.size[len(trace.buffers) :].sum()
    )
    assert rebatched(trace, "none", 0.5).peak_live_bytes == rebatch(trace, 0.5).peak_live_bytes


def test_figures_9_and_11_by_hand(cli: Cli, net_file: Path) -> None:
    args = ["--what", "fig9,fig11", "--planner", "autoswap", "--limits", "75%,9MiB,5MiB", "--peaks", "all", "--json"]
    found = cli("bench", "swap", net_file, *args).json
    trace, limits = net(), [18 * MIB, 9 * MIB]
    base, placed = simulate(trace, GTX), best_fit(trace)
    scores = {s["name"]: s["y"] for s in found["fig9"][0]["series"]}
    rules: dict[str, dict[str, Any]] = {"": {"peaks": "all", "targets": TARGETS}, ", as printed": {"as_printed": True}}

    def cost(limit: int, **rule: Any) -> Any:
        try:
            swapped = autoswap(trace, GTX, limit, **rule).apply(trace)
        except NotReached:
            return None
        return pytest.approx(100 * simulate(swapped, GTX, capacity=limit).overhead(base))

    for score, (name, rule) in product(SCORES, rules.items()):
        costs = [cost(limit, score=score, **rule) for limit in limits]
        assert scores[score + name] == [*costs, None]  # 5 MiB are below the floor
    assert scores["doa, as printed"][1] is None  # the first peak alone does not get down to 9 MiB
    (series,) = found["fig11"][0]["series"]
    heights, times = best_fit, simulate(trace, GTX, placed)
    swapped = [autoswap(trace, GTX, limit, peaks="all").apply(trace) for limit in limits]
    points = {
        (100 * (1 - heights(s).height / placed.height), 100 * simulate(s, GTX, heights(s)).overhead(times))
        for s in swapped
    }
    assert list(zip(series["x"], series["y"])) == [pytest.approx(p) for p in sorted(points)]


def test_what_the_paper_quotes_is_said_to_be_quoted_and_of_its_own_nets_only(cli: Cli, tmp_path: Path) -> None:
    marks = {}
    for name in ("vgg16", "vgg11", "resnet9", "net"):
        write(tmp_path / "net.json", replace(net(), name=name))
        args = ["--what", "fig9,fig11", "--limits", "75%", "--planner", "autoswap", "--no-check", "--json"]
        found = cli("bench", "swap", tmp_path / "net.json", *args).json
        for part in ("fig9", "fig11"):
            drawn = [s for s in found[part][0]["series"] if s["style"] in ("point", "at most")]
            assert all(s["name"].startswith("published, ") for s in drawn)
            marks[name, part] = {(round(s["x"][0], 1), s["y"][0]) for s in drawn}
    combined = {(33.3, 0.0), (60.0, 15.0)}
    assert marks == {
        ("vgg16", "fig9"): {(69.1, 0.0), (43.3, 20.0)},  # 447 and 280 of 647 MB
        ("vgg16", "fig11"): {(40.0, 30.0), *combined},  # MXNet-memonger, on VGGs only
        ("vgg11", "fig9"): set(),
        ("vgg11", "fig11"): {(40.0, 30.0), *combined},
        ("resnet9", "fig9"): set(),
        ("resnet9", "fig11"): combined,
        ("net", "fig9"): set(),
        ("net", "fig11"): set(),
    }


def test_figure_9_as_a_table_has_limits_in_percent_and_mb_and_says_what_is_quoted() -> None:
    series = (Series("doa", [75.0, 50.0], [0.0, None]), Series("published, below", [43.21], [20.0], "at most"))
    figure = Figure("fig9", "", "", "", series, ("MB", 2.0))
    assert [line.split() for line in limit_table(figure).splitlines()] == [
        ["limit", "%", "MB", "doa"],
        ["75.0", "150", "0.00"],
        ["50.0", "100", "-"],
        ["published,", "below:", "20", "%", "at", "a", "limit", "of", "43.2", "%"],
    ]


def test_figure_10_by_hand(cli: Cli, net_file: Path) -> None:
    parts = (0.8, 0.55, 0.4)
    args = ["--what", "fig10", "--batches", "1,2.3", "--limits", ",".join(f"{p:.0%}" for p in parts), "--peaks", "all"]
    (figure,) = cli("bench", "swap", net_file, *args, "--json").json["fig10"]
    assert all(s["x"] == [1, 2.3] for s in figure["series"])
    sizes = {s["name"]: s["y"] for s in figure["series"]}
    for k, factor in enumerate((1, 2.3)):
        trace = rebatch(net(), factor)
        cnmems, placed = [CnMem(), CnMem(pool=256 * MIB)], best_fit(trace)
        for cnmem in cnmems:
            replay(trace, cnmem)
        base, ways = simulate(trace, GTX, placed), [(placed.height, 0.0)]
        for part in parts:
            for score in SCORES:
                try:
                    after = autoswap(trace, GTX, int(trace.peak_live_bytes * part), score=score, peaks="all").apply(
                        trace
                    )
                except NotReached:
                    continue
                where = best_fit(after)
                ways.append((where.height, simulate(after, GTX, where).overhead(base)))
        want = [trace.peak_live_bytes, *(cnmem.statistics.reserved.peak for cnmem in cnmems), placed.height]
        want += [min(height for height, cost in ways if cost <= most) for most in (0.005, 0.15)]
        assert [y[k] * MIB for y in sizes.values()] == want
        assert want[5] < want[4] <= want[3]
    assert list(sizes) == [
        "native",
        "cnmem",
        "SINGA's cnmem",
        "smartpool",
        "with autoswap, 0.5%",
        "with autoswap, 15.0%",
    ]


def test_figure_10_as_a_table_says_how_far_below_cnmem() -> None:
    series = (Series("native", [0.25, 2.0], [50.0, 190.0]), Series("cnmem", [0.25, 2.0], [100.0, 200.0]))
    assert [line.split() for line in batch_table(Figure("fig10", "", "", "", series)).splitlines()] == [
        ["batch", "native", "cnmem"],
        ["0.25", "50.0", "(-50.0", "%)", "100.0"],
        ["2", "190.0", "(-5.0", "%)", "200.0"],
    ]


def test_without_buffers_of_the_batch_there_is_no_figure_10(cli: Cli, tmp_path: Path, bounded: None) -> None:
    trace = net()
    bare = replace(trace, buffers=replace(trace.buffers, kind=("param",) * len(trace.buffers)))
    write(tmp_path / "net.json", bare)
    ran = cli("bench", "swap", tmp_path / "net.json", "--what", "fig9,fig10", "--quick", "--json")
    assert (ran.status, ran.json["fig10"], len(ran.json["fig9"])) == (0, [], 1)
    assert ran.err == ["gpumem: net: no figure 10: no buffer is of a kind that depends on the batch"]


@pytest.mark.parametrize("part", ["fig9", "fig10", "lowest_limits"])
def test_what_is_shown_was_held_against_the_oracles_by_both_clocks(
    cli: Cli, net_file: Path, bounded: None, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("gpumem.check.timeline", lambda *args, **options: asked.append(options))
    args = ["--what", part, "--quick", "--planner", "autoswap", "--batches", "1"]
    assert cli("bench", "swap", net_file, *args, "--no-check").status == 0
    assert asked == []
    assert cli("bench", "swap", net_file, *args).status == 0
    assert (
        {"placement" in options for options in asked} == {"capacity" in options for options in asked} == {True, False}
    )


@pytest.mark.jit
def test_table_2_is_the_lowest_limits_of_vggs_and_resnets(cli: Cli, bounded: None) -> None:
    args = ["--planner", "autoswap", "--step", "0.1", "--json"]
    found = cli("bench", "swap", "vgg16", "mlp3", "--what", "lowest_limits,table2", *args).json
    assert [k["trace"] for k in found["lowest_limits"]] == ["vgg16_cifar_b100", "mlp3_b128_sgd"]
    (row,) = found["table2"]
    assert row["reduction"] == found["lowest_limits"][0]["reduction"] == pytest.approx(0.3, abs=1e-6)
    assert (row["net"], row["paper_reduction"]) == ("vgg16_cifar_b100", pytest.approx(0.309, abs=1e-3))
    text = cli("bench", "swap", "vgg16", "--what", "table2", *args[:-1]).out
    assert text.splitlines()[-1].split() == ["vgg16_cifar_b100", "462.0", "30.0", "30.9"]


@pytest.mark.thorough
@pytest.mark.jit
def test_without_traces_it_is_the_bundled_ones_and_figures_of_vgg16(cli: Cli, table: object, bounded: None) -> None:
    found = cli("bench", "swap", "--quick", "--planner", "autoswap", "--json", "--no-check").json
    assert {k["trace"] for k in found["lowest_limits"]} == set(gpumem.io.BUNDLED.values())  # type: ignore[attr-defined]
    assert [f["trace"] for f in (*found["fig8"], *found["fig9"], *found["fig10"], *found["fig11"])] == [
        "vgg16_cifar_b100"
    ] * 4
    assert [r["net"] for r in found["table2"]] == ["vgg16_cifar_b100", "resnet18_cifar_b100"]


def test_search_looks_for_the_lowest_limit_itself(
    cli: Cli, net_file: Path, bounded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lowest(trace: Trace, machine: Machine, *, seed: int, effort: float, **told: object) -> tuple[Plan, int]:
        assert (seed, effort, told.keys()) == (7, 1.0, {"seconds", "progress"})
        return autoswap(trace, machine, 20 * MIB), 20 * MIB

    module = importlib.import_module("gpumem.swap.search.planner")  # the package has a function of that name
    monkeypatch.setattr(module, "lowest", lowest)
    args = ["--what", "lowest_limits", "--planner", "search", "--seed", "7", "--json"]
    (lowest,) = cli("bench", "swap", net_file, *args).json["lowest_limits"]
    assert (lowest["planner"], lowest["limit"], lowest["unbroken"]) == ("search", 20 * MIB, 20 * MIB)


def test_a_lowest_limit_that_the_oracles_reject_is_never_shown(
    cli: Cli, net_file: Path, bounded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.swap.planners.PLANNERS", {"autoswap": autoswap, "wrong": wrong("pinned")})
    link = {"latency_ns": 0, "ns_per_byte": 0.001}
    small = {"name": "small", "capacity": 2**40, "out": link, "into": link, "flops": 1, "bandwidth": 1, "pinned": MIB}
    (tmp_path / "small.json").write_text(json.dumps(small))
    args = ["--machine", tmp_path / "small.json", "--planner", "wrong", "--what", "lowest_limits", "--quick"]
    line = cli.refuses("bench", "swap", net_file, *args, "--out", tmp_path / "out", status=1)
    assert "the result failed its own check" in line and not (tmp_path / "out").exists()


def test_two_traces_of_one_name_get_two_pictures(cli: Cli, net_file: Path, table: object, tmp_path: Path) -> None:
    args = ["--what", "fig9", "--quick", "--planner", "autoswap", "--out", tmp_path]
    assert cli("bench", "swap", net_file, net_file, *args).status == 0
    assert {p.name for p in tmp_path.glob("*.png")} == {"fig9-net.png", "fig9-net-2.png"}


def test_a_profile_as_a_table_shows_the_largest_of_each_stretch() -> None:
    figure = Figure("fig8", "", "op", "MiB", (Series("load", [0.0, 1.0, 2.0], [3.0, 5.0, 4.0]),))
    assert [line.split() for line in profile_table(figure).splitlines()] == [
        ["ops", "load"],
        ["0-0", "3.0"],
        ["1-1", "5.0"],
        ["2-2", "4.0"],
        ["peak", "5.0"],
    ]
