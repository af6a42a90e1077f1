"""`gpumem swap`, `gpumem bound` and `python -m benchmarks swap`: rows, files, one-line errors."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpumem
from benchmarks.papers.autoswap import batch_table, limit_table, profile_table
from benchmarks.suites.swap import _rebatched
from gpumem import check
from gpumem.base.errors import NotReached
from gpumem.base.units import exact, human
from gpumem.io import bundled_path, load, write
from gpumem.pipeline.report import Figure, Series
from gpumem.pipeline.report.plot import recorded
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import TARGETS, autoswap, candidates, load_min
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.facts.limits import floor
from gpumem.swap.plan import Plan
from gpumem.trace import RECOMPUTE, Trace
from gpumem.trace.batch import rebatch
from tests.conftest import Cli
from tests.files import BAD_AMOUNTS, BARE, FILES, KINDS, PICTURES, bad_file, snapshot
from tests.nets import MIB, net

FIGURES = ["peak_load", "footprint", "bytes_out", "bytes_in", "recompute_ns", "overhead", "seconds"]
KEYS = ["planner", "limit", "feasible", *FIGURES]
GTX = Machine.named("gtx1080ti")
PEAK = net().peak_load


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.json"
    trace = net()
    write(path, trace)
    return path


def gives_up(trace: Trace, machine: Machine, limit: int, *, seed: int = 0) -> Plan:
    raise NotReached(PEAK - seed, limit, hint="a better planner may")


def seeded(trace: Trace, machine: Machine, limit: int, *, seed: int = 0, seconds: float = 60.0) -> Plan:
    """Plan as AutoSwap does, and take down what it was told."""
    TOLD.append((seed, seconds))
    return autoswap(trace, machine, limit, peaks="all")


TOLD: list[tuple[int, float]] = []


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Plan]]:
    """Three planners: one that works, one that gives up, one with options."""
    planners: dict[str, Callable[..., Plan]] = {"autoswap": autoswap, "gives-up": gives_up, "seeded": seeded}
    monkeypatch.setattr("gpumem.swap.PLANNERS", planners)
    TOLD.clear()
    return planners


# --- swap ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_a_row_has_exactly_these_keys(cli: Cli, file: Path, table: object, option: str) -> None:
    ran = cli("swap", file, option, "75%", "--json")
    assert ran.status == 0
    assert [list(row) for row in ran.json] == [KEYS] * 3
    first, lost, third = ran.json
    assert [row["planner"] for row in ran.json] == ["autoswap", "gives-up", "seeded"]
    for row in (first, third):
        assert row["feasible"] is True
        assert all(type(row[key]) is int for key in ("limit", "peak_load", "footprint", "bytes_out", "bytes_in"))
        assert row["peak_load"] <= row["limit"] == PEAK * 3 // 4
        assert row["bytes_out"] == row["bytes_in"] > 0
        assert row["overhead"] >= 0 and row["seconds"] >= 0
    assert lost | {"seconds": 0} == dict.fromkeys(KEYS) | {
        "planner": "gives-up",
        "limit": PEAK * 3 // 4,
        "feasible": False,
        "seconds": 0,
    }
    assert ran.err == [
        f"gpumem: gives-up: not reached: the limit is {human(PEAK * 3 // 4)}, "
        f"the planner got down to a peak load of {exact(PEAK)}; a better planner may"
    ]


def test_a_load_limit_is_judged_by_the_capacity_clock(cli: Cli, file: Path) -> None:
    trace, limit = net(), PEAK * 60 // 100
    (row,) = cli("swap", file, "--load-limit", "60%", "--planner", "autoswap", "--peaks", "all", "--json").json
    swapped = autoswap(trace, GTX, limit, peaks="all").apply(trace)
    assert row["peak_load"] == swapped.peak_load <= limit
    assert row["footprint"] == best_fit(swapped).height
    cost = simulate(swapped, GTX, capacity=limit).overhead(simulate(trace, GTX))
    assert row["overhead"] == cost > 0


def test_a_pool_is_judged_by_the_placed_clock(cli: Cli, file: Path) -> None:
    trace, limit = net(), PEAK * 60 // 100
    (row,) = cli("swap", file, "--limit", "60%", "--planner", "autoswap", "--peaks", "all", "--json").json
    assert row["footprint"] <= row["limit"] == limit
    plan = cli("plan", file, "--limit", "60%", "--score", "swdoa", "--peaks", "all", "--json").json
    assert row["overhead"] == plan["overhead"] and row["footprint"] == plan["footprint_after"]
    assert plan["makespan_before_ns"] == simulate(trace, GTX, best_fit(trace)).makespan


def test_a_limit_that_binds_nothing_costs_nothing(cli: Cli, file: Path) -> None:
    for option in ("--limit", "--load-limit"):
        (row,) = cli("swap", file, option, "1GiB", "--planner", "autoswap", "--json").json
        assert (row["overhead"], row["bytes_out"], row["bytes_in"], row["peak_load"]) == (0.0, 0, 0, PEAK)


def test_swap_prints_a_table(cli: Cli, file: Path, table: object) -> None:
    lines = cli("swap", file, "--load-limit", "75%").out.splitlines()
    assert lines[0].startswith("net: peak load 24.00 MiB, footprint ")
    assert lines[0].endswith("on gtx1080ti, load limit of 18.00 MiB (capacity clock)")
    heads = ["planner", "peak load", "footprint", "bytes out", "bytes in", "run again", "overhead", "seconds"]
    assert [cell.strip() for cell in lines[2].split("  ") if cell.strip()] == heads
    assert [line.split()[0] for line in lines[3:]] == ["autoswap", "gives-up", "seeded"]
    assert lines[4].split()[1:3] == ["not", "reached"]
    assert "pool of 18.00 MiB (placed clock)" in cli("swap", file, "--limit", "75%").out


def test_without_a_file_it_is_the_bundled_vgg16_and_names_do(cli: Cli) -> None:
    limit = gpumem.bundled("vgg16").peak_load * 7 // 10
    assert cli("swap", "--load-limit", "70%", "--planner", "autoswap", "--json").json[0]["limit"] == limit
    mlp = cli("swap", "mlp3", "--load-limit", "100%", "--planner", "autoswap", "--json").json
    assert mlp[0]["limit"] == gpumem.bundled("mlp3").peak_load


def test_options_go_to_the_planners_that_take_them(cli: Cli, file: Path, table: object) -> None:
    ran = cli("swap", file, "--load-limit", "75%", "--seed", "5", "--seconds", "0.5", "--json")
    ((seed, seconds),) = TOLD
    assert ran.status == 0 and seed == 5 and 0 < seconds < 0.5  # the rest is for placing, judging and checking
    assert f"a peak load of {exact(PEAK - 5)}" in ran.err[0]
    cli("swap", file, "--load-limit", "75%")
    assert TOLD[1:] == [(0, 60.0)]


def test_every_planner_of_the_package_plans_or_says_why_not(cli: Cli, file: Path) -> None:
    short = ["--effort", "0.01"] if "search" in gpumem.swap.PLANNERS else []  # type: ignore[attr-defined]
    ran = cli("swap", file, "--load-limit", "70%", "--threshold", "0", "--json", *short)
    assert ran.status == 0
    assert [row["planner"] for row in ran.json] == list(gpumem.swap.PLANNERS)  # type: ignore[attr-defined]
    assert len(ran.err) == sum(not row["feasible"] for row in ran.json)


@pytest.mark.parametrize("option", ["--limit", pytest.param("--load-limit", marks=pytest.mark.thorough)])
def test_out_writes_a_folder_for_each_planner(cli: Cli, file: Path, table: object, tmp_path: Path, option: str) -> None:
    folder = tmp_path / "new" / "out"
    ran = cli("swap", file, option, "75%", "--json", "--out", folder)
    assert ran.status == 0
    assert {p.name for p in folder.iterdir()} == {"swap.json", "autoswap", "seeded"}
    assert json.loads((folder / "swap.json").read_text()) == ran.json
    for row in ran.json:
        if not row["feasible"]:
            continue
        mine = folder / row["planner"]
        assert {p.name for p in mine.iterdir()} == FILES | PICTURES
        written = load(mine / "trace.json.gz")
        assert written.placement is not None and written.placement.height == row["footprint"]
        assert written.trace.peak_load == row["peak_load"]
        plan = Plan.from_json((mine / "plan.json").read_bytes())
        assert plan.apply(net()).peak_load == row["peak_load"]
        line = simulate(written.trace, GTX, written.placement)
        assert written.meta["makespan_ns"] == line.makespan
        check.everything(net(), written.trace, written.placement, line, GTX)
    before = snapshot(folder)
    again = ["--planner", "autoswap", "--out", folder]  # over what is there
    assert cli("swap", file, option, "75%", *again).status == 0
    after = snapshot(folder)
    assert {name for name in before if before[name] != after[name]} <= {"swap.json"}  # seconds


def test_nobody_gets_there(cli: Cli, file: Path, table: object, tmp_path: Path) -> None:
    ran = cli("swap", file, "--load-limit", "9MiB", "--planner", "gives-up", "--json", "--out", tmp_path / "out")
    assert (ran.status, len(ran.err), len(ran.json)) == (3, 1, 1)
    ran = cli("swap", file, "--limit", "1MiB", "--json", "--out", tmp_path / "out")
    assert (ran.status, len(ran.err), len(ran.json)) == (3, 3, 3)
    assert ran.err[0].startswith("gpumem: autoswap: infeasible: op ")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_a_line_says_so_once(
    cli: Cli, file: Path, table: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.pipeline.report.plot.available", lambda: False)
    ran = cli("swap", file, "--load-limit", "75%", "--planner", "autoswap,seeded", "--out", tmp_path)
    assert (ran.status, len(ran.err)) == (0, 1)
    assert "no pictures: matplotlib is not installed" in ran.err[0]
    assert {p.name for p in (tmp_path / "seeded").iterdir()} == FILES


def wrong(kind: str) -> Callable[..., Plan]:
    """A planner whose plan breaks a promise."""

    def too_high(trace: Trace, machine: Machine, limit: int) -> Plan:
        return Plan((), trace.n)

    def too_much_pinned(trace: Trace, machine: Machine, limit: int) -> Plan:
        return autoswap(trace, machine.with_(pinned=2**40), limit, peaks="all")

    return {"limit": too_high, "pinned": too_much_pinned}[kind]


@pytest.mark.parametrize("kind", ["limit", "pinned"])
def test_what_the_oracles_reject_is_never_shown(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("gpumem.swap.PLANNERS", {"wrong": wrong(kind)})
    link = {"latency_ns": 0, "ns_per_byte": 0.001}
    small = {"name": "small", "capacity": 2**40, "out": link, "into": link, "flops": 1, "bandwidth": 1, "pinned": MIB}
    (tmp_path / "small.json").write_text(json.dumps(small))
    args = ["--machine", tmp_path / "small.json", "--load-limit", "60%", "--out", tmp_path / "out"]
    line = cli.refuses("swap", file, *args, status=1)
    assert line.startswith("gpumem: internal error: the result failed its own check, please report this: ")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_leaves_no_half_of_the_folders(
    cli: Cli, file: Path, table: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *args: object) -> None:
        if path.parent.name == "seeded":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpumem.io.chrome.write", full)
    options = ["--load-limit", "75%", "--planner", "autoswap,seeded", "--out"]
    line = cli.refuses("swap", file, *options, tmp_path / "out")
    assert line == f"gpumem: error: --out: {tmp_path / 'out'}: cannot write (No space left on device)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["autoswap", "swap.json", "autoswap/plan.json"])
def test_something_in_the_way_is_one_line_and_nothing_changes(cli: Cli, file: Path, tmp_path: Path, place: str) -> None:
    if place == "autoswap":
        (tmp_path / place).write_text("mine")
    else:
        (tmp_path / place).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    line = cli.refuses("swap", file, "--load-limit", "75%", "--planner", "autoswap", "--out", tmp_path)
    assert line.startswith(f"gpumem: error: --out: {tmp_path / place} is ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["swap", "FILE"], "gpumem: error: give one of --limit, the size of the pool, and --load-limit"),
        (["swap", "FILE", "--limit", "1", "--load-limit", "1"], "gpumem: error: give one of --limit"),
        (["swap", "FILE", "--limit", "70%", "--planner", "magic"], "--planner: 'magic' is unknown; there are autoswap"),
        (["swap", "FILE", "--limit", "70%", "--planner", "autoswap,"], "--planner: '' is unknown"),
        (["swap", "FILE", "--limit", "70%", "--machine", "gtx"], "machine: 'gtx' is unknown; there are gtx1080ti"),
        (["swap", "FILE", "--limit", "70%", "--pool", "worst-fit"], "--pool: 'worst-fit' is unknown"),
        (["swap", "FILE", "--limit", "70%", "--alignment", "0"], "alignment: 0 is not in [1, 2**40]"),
        (["swap", "FILE", "--limit", "70%", "--out", ""], "--out: the name is empty"),
        (["swap", "FILE", "--limit", "70%", "--seed", "x"], "gpumem: error: --seed: 'x' is not a whole number"),
        (["swap", "FILE", "--limit", "70%", "--seed", "-1"], "--seed: -1 is below 0"),
        (["swap", "FILE", "--limit", "70%", "--seconds", "0"], "--seconds: 0.0 is not positive and finite"),
        (["swap", "FILE", "--limit", "70%", "--seconds", "nan"], "--seconds: nan is not positive and finite"),
        (["swap", "FILE", "--limit", "70%", "--seconds", "inf"], "--seconds: inf is not positive and finite"),
        (["swap", "FILE", "--limit", "70%", "--threshold", "-1"], "--threshold: '-1' is not an amount"),
        (["swap", "FILE", "--limit", "70%", "--peaks", "some"], "peaks: 'some' is unknown; there are first, all"),
        (["swap", "FILE", "--limit", "70%", "--planner", "gives-up", "--peaks", "all"], "--peaks: no use to gives-up"),
        (["swap", "FILE", "FILE", "--limit", "70%"], "gpumem swap takes no such argument"),
        (["swap", "BARE", "--limit", "70%"], "a bare instance has no ops to swap between"),
        (["bound", "FILE", "--machine", "gtx"], "machine: 'gtx' is unknown"),
        (["bound", "FILE", "--limit", "70%"], "--limit: gpumem bound has no such option; did you mean '--load-limit'?"),
        (["bound", "BARE"], "a bare instance has no ops to swap between"),
        (["bench", "jobs"], "gpumem: error: SUITE: 'jobs' is unknown; there are swap, pool, tensile"),
        (["bench", "swap", "FILE", "--what", "fig12"], "--what: 'fig12' is unknown; there are knees, fig8, fig9"),
        (["bench", "swap", "FILE", "--batches", "1,x"], "--batches: '1,x' is no list of numbers"),
        (["bench", "swap", "FILE", "--batches", "1,0"], "--batches: 0.0 is not positive and finite"),
        (["bench", "swap", "FILE", "--batches", "nan"], "--batches: nan is not positive and finite"),
        (["bench", "swap", "FILE", "--what", "fig10", "--batches", "1e12"], "2**62"),
        (["bench", "swap", "FILE", "--planner", "x"], "--planner: 'x' is unknown"),
        (["bench", "swap", "FILE", "--limits", "70%,"], "--limits: '' is not an amount"),
        (["bench", "swap", "FILE", "--limits", ""], "--limits: '' is not an amount"),
        (["bench", "swap", "FILE", "--step", "0"], "--step: 0.0 is not in (0, 1]"),
        (["bench", "swap", "FILE", "--step", "nan"], "--step: nan is not in (0, 1]"),
        (["bench", "swap", "FILE", "BARE"], "a bare instance has no ops to swap between"),
        (["bench", "swap", "FILE", "--planner", "gives-up", "--seconds", "1"], "--seconds: no use to gives-up"),
        (["bench", "swap", "FILE", "--out", ""], "--out: the name is empty"),
        (["plan", "FILE", "--planner", "gives-up", "--score", "doa"], "--score: no use to gives-up"),
    ],
)
def test_bad_usage_is_one_line(
    cli: Cli, file: Path, table: object, tmp_path: Path, args: list[str], message: str
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_bytes(BARE)
    names = {"FILE": str(file), "BARE": str(bare)}
    assert message in cli.refuses(*[names.get(a, a) for a in args])
    assert list(tmp_path.iterdir()) == [bare]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_one_line_that_names_it(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = bad_file(tmp_path, kind)
    for args in (
        ("swap", path, "--limit", "70%", "--out", tmp_path / "out"),
        ("bound", path),
        ("bench", "swap", "mlp3", path, "--out", tmp_path / "out"),
    ):
        assert cli.refuses(*args).startswith(f"gpumem: error: {path}: ")
    assert {p.name for p in tmp_path.iterdir()} <= {path.name}


@pytest.mark.parametrize("text", BAD_AMOUNTS)
def test_a_bad_amount_is_one_line_that_names_option_and_value(cli: Cli, file: Path, text: str) -> None:
    for command, option in ((["swap"], "--limit"), (["swap"], "--load-limit"), (["bound"], "--load-limit")):
        line = cli.refuses(*command, file, f"{option}={text}")
        assert line.startswith(f"gpumem: error: {option}: ")
        assert repr(text[:40])[:-1] in line


def test_a_plan_may_come_from_any_planner(cli: Cli, file: Path, table: object) -> None:
    row = cli("plan", file, "--planner", "seeded", "--load-limit", "75%", "--json").json
    assert (row["planner"], row["score"]) == ("seeded", "")
    assert "gaps by seeded:" in cli("plan", file, "--planner", "seeded", "--load-limit", "75%").out
    assert "gaps by swdoa:" in cli("plan", file, "--score", "swdoa", "--load-limit", "75%").out


def test_a_plan_that_recomputes_says_so_and_is_drawn(cli: Cli, tmp_path: Path) -> None:
    path, out = bundled_path("resnet18"), tmp_path / "out"
    ran = cli("plan", path, "--planner", "checkpoint", "--load-limit", "80%", "--out", out)
    trace = load(path).trace
    swapped = checkpoint(trace, GTX, trace.peak_load * 8 // 10).apply(trace)
    told = re.search(
        r"\nrecomputed {16}(\d+) gaps by checkpoint: (\d+) ops run again, ([\d.]+) ms an iteration\n", ran.out
    )
    row = cli("plan", path, "--planner", "checkpoint", "--load-limit", "80%", "--json").json
    assert told and list(map(int, told.groups()[:2])) == [row["recomputed"], row["reruns"]]
    assert told[3] == f"{row['recompute_ns'] / 1e6:.2f}" and row["held"] == 0
    assert row["reruns"] == swapped.n - trace.n > 0
    assert row["recompute_ns"] == GTX.durations(swapped)[swapped.ops.role == RECOMPUTE].sum()
    assert len(recorded(swapped)) == len(recorded(trace)) == trace.n  # the pictures' op axis


# --- bound -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FakeBound:
    """What `swap.bound` returns, as far as the commands read it."""

    limit: int
    stall_ns: int = 0


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds without the work: half of the peak load, 1 ms."""
    monkeypatch.setattr("gpumem.swap.bound.zero_stall_limit", lambda t, m, **_: FakeBound(t.peak_load // 2))
    monkeypatch.setattr("gpumem.swap.bound.least_stall", lambda t, m, limit, **_: FakeBound(limit, 10**6))


def test_bound_prints_json(cli: Cli, file: Path, bounded: None) -> None:
    row = cli("bound", file, "--json").json
    assert row.pop("seconds") >= 0
    assert row == {"trace": "net", "machine": "gtx1080ti", "peak_load": PEAK, "zero_stall_limit": PEAK // 2}
    row = cli("bound", file, "--load-limit", "40%", "--machine", "v100", "--json").json
    assert row.pop("seconds") >= 0
    assert row == {
        "trace": "net",
        "machine": "v100",
        "peak_load": PEAK,
        "zero_stall_limit": PEAK // 2,
        "load_limit": PEAK * 4 // 10,
        "least_stall_ns": 10**6,
        "least_overhead": pytest.approx(0.1),
        "least_stall_recompute_ns": 10**6,
        "least_overhead_recompute": pytest.approx(0.1),
    }


def test_bound_prints_a_table(cli: Cli, file: Path, bounded: None) -> None:
    out = cli("bound", file, "--load-limit", "40%").out
    assert out.startswith("net on gtx1080ti: what no swap plan can beat\n")
    assert "limit without a stall          12.00 MiB     50.0%\n" in out
    assert "least stall there                1.00 ms   +10.00%\n" in out
    assert "with values made again           1.00 ms   +10.00%\n" in out


def test_a_real_bound(cli: Cli) -> None:
    trace = gpumem.bundled("mlp3")
    row = cli("bound", "mlp3", "--json").json
    assert 0.9 * trace.peak_load < row["zero_stall_limit"] <= trace.peak_load == row["peak_load"]


def test_a_bound_says_what_it_leaves_out_for_a_host_that_takes_its_time(cli: Cli) -> None:
    ran = cli("bound", "mlp3", "--host-ns", "1e6", "--load-limit", "90%", "--json")
    (said,) = ran.err
    assert said.startswith("gpumem: gtx1080ti: an op takes its host 1.00 ms; for such a machine a bound says only what")
    assert (ran.json["zero_stall_limit"], ran.json["least_stall_ns"]) == (floor(gpumem.bundled("mlp3"))[1], 0)
    assert not cli("bound", "mlp3", "--copy-host-ns", "1e6", "--json").err


# --- bench -----------------------------------------------------------------------------------------------


def test_bench_prints_knees_and_the_figures(cli: Cli, file: Path, table: object, bounded: None) -> None:
    ran = cli("bench", "swap", file, "--quick", "--seed", "4")
    assert (ran.status, ran.err) == (0, [])
    lines = ran.out.splitlines()
    assert lines[0].startswith("# machine: ") and lines[1].startswith("# gpumem 0.1.0, python ")
    assert lines[2:4] == ["# seed: 4", f"# command: python -m benchmarks swap {file} --quick --seed 4"]
    for title in ("Lowest load limit", "Figure 8", "Figure 9", "Figure 10", "Figure 11", "Table II"):
        assert sum(line.startswith(title) for line in lines) == 1
    ten = next(k for k, line in enumerate(lines) if line.startswith("Figure 10"))
    assert [line.split()[0] for line in lines[ten + 2 : ten + 5]] == ["batch", "0.5", "1"]
    knees = next(k for k, line in enumerate(lines) if line.startswith("trace "))
    assert [line.split()[:2] for line in lines[knees + 1 : knees + 4]] == [["net", name] for name in (*table,)]


def test_bench_prints_json_and_writes_files(cli: Cli, file: Path, table: object, bounded: None, tmp_path: Path) -> None:
    ran = cli("bench", "swap", file, "--quick", "--json", "--planner", "autoswap", "--out", tmp_path / "out")
    found = ran.json
    assert list(found) == ["header", "knees", "fig8", "fig9", "fig10", "fig11", "table2"]
    (knee,) = found["knees"]
    assert knee["limit"] <= knee["unbroken"] <= knee["peak_load"] == PEAK and knee["bound"] == PEAK // 2
    assert knee["achieved"] == pytest.approx((PEAK - knee["limit"]) / (PEAK / 2))
    assert found["table2"] == []  # neither a VGG nor a ResNet
    nine, eleven = found["fig9"][0], found["fig11"][0]
    ours = [*SCORES]  # no bayes in the table of planners
    assert [s["name"] for s in nine["series"]] == [*ours, *(f"{name}, 1 target" for name in ours)]
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
    assert loads[0].tolist() == trace.load().tolist()
    for held, part in zip(loads[1:], (0.77, 0.62)):
        assert held.max() <= part * trace.peak_load
    assert loads[3].max() == load_min(candidates(trace, GTX, 1)) < loads[2].max()


def test_each_rule_for_workspaces_has_a_figure_of_its_own(cli: Cli) -> None:
    args = ["--what", "fig8", "--planner", "autoswap", "--json", "--no-check"]
    bare, larger = cli("bench", "swap", "resnet18", *args, "--workspaces", "none,fastest").json["fig8"]
    trace = gpumem.bundled("resnet18")
    assert (bare["trace"], larger["trace"]) == (trace.name, f"{trace.name}, fastest")
    for figure, held in ((bare, trace), (larger, workspaces.add(trace))):
        assert [y * MIB for y in figure["series"][0]["y"]] == held.load().tolist()


def test_another_batch_has_workspaces_of_its_own_size() -> None:
    trace = gpumem.bundled("vgg16")
    half = _rebatched(trace, "fastest", 0.5)
    assert half.buffers.size.tolist() == workspaces.add(rebatch(trace, 0.5)).buffers.size.tolist()
    assert (
        half.buffers.size[len(trace.buffers) :].sum() < workspaces.add(trace).buffers.size[len(trace.buffers) :].sum()
    )
    assert _rebatched(trace, "none", 0.5).peak_load == rebatch(trace, 0.5).peak_load


def test_figures_9_and_11_by_hand(cli: Cli, file: Path) -> None:
    args = ["--what", "fig9,fig11", "--planner", "autoswap", "--limits", "75%,9MiB,5MiB", "--peaks", "all", "--json"]
    found = cli("bench", "swap", file, *args).json
    trace, limits = net(), [18 * MIB, 9 * MIB]
    base, placed = simulate(trace, GTX), best_fit(trace)
    scores = {s["name"]: s["y"] for s in found["fig9"][0]["series"]}
    for name, (score, targets) in {
        **{score: (score, TARGETS) for score in SCORES},
        **{f"{score}, 1 target": (score, (1.0,)) for score in SCORES},
    }.items():
        ways = [partial(autoswap, trace, GTX, limit, score=score, peaks="all", targets=targets) for limit in limits]
        plans = [way().apply(trace) for way in ways]
        costs = [100 * simulate(s, GTX, capacity=limit).overhead(base) for s, limit in zip(plans, limits)]
        assert scores[name] == [*(pytest.approx(cost) for cost in costs), None]  # 5 MiB are below the floor
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
            assert all(s["name"].startswith("quoted, ") for s in drawn)
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
    series = (Series("doa", [75.0, 50.0], [0.0, None]), Series("quoted, below", [43.21], [20.0], "at most"))
    figure = Figure("fig9", "", "", "", series, ("MB", 2.0))
    assert [line.split() for line in limit_table(figure).splitlines()] == [
        ["limit", "%", "MB", "doa"],
        ["75.0", "150", "0.00"],
        ["50.0", "100", "-"],
        ["quoted,", "below:", "20", "%", "at", "a", "limit", "of", "43.2", "%"],
    ]


def test_figure_10_by_hand(cli: Cli, file: Path) -> None:
    parts = (0.8, 0.55, 0.4)
    args = ["--what", "fig10", "--batches", "1,2.3", "--limits", ",".join(f"{p:.0%}" for p in parts), "--peaks", "all"]
    (figure,) = cli("bench", "swap", file, *args, "--json").json["fig10"]
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
                    after = autoswap(trace, GTX, int(trace.peak_load * part), score=score, peaks="all").apply(trace)
                except NotReached:
                    continue
                where = best_fit(after)
                ways.append((where.height, simulate(after, GTX, where).overhead(base)))
        want = [trace.peak_load, *(cnmem.statistics.reserved.peak for cnmem in cnmems), placed.height]
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


@pytest.mark.parametrize("part", ["fig9", "fig10", "knees"])
def test_what_is_shown_was_held_against_the_oracles_by_both_clocks(
    cli: Cli, file: Path, bounded: None, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("gpumem.check.timeline", lambda *args, **options: asked.append(options))
    args = ["--what", part, "--quick", "--planner", "autoswap", "--batches", "1"]
    assert cli("bench", "swap", file, *args, "--no-check").status == 0
    assert asked == []
    assert cli("bench", "swap", file, *args).status == 0
    assert (
        {"placement" in options for options in asked} == {"capacity" in options for options in asked} == {True, False}
    )


@pytest.mark.jit
def test_table_2_is_the_knees_of_vggs_and_resnets(cli: Cli, bounded: None) -> None:
    args = ["--planner", "autoswap", "--step", "0.1", "--json"]
    found = cli("bench", "swap", "vgg16", "mlp3", "--what", "knees,table2", *args).json
    assert [k["trace"] for k in found["knees"]] == ["vgg16_cifar_b100", "mlp3_b128_sgd"]
    (row,) = found["table2"]
    assert row["reduction"] == found["knees"][0]["reduction"] == pytest.approx(0.3, abs=1e-6)
    assert (row["net"], row["paper_reduction"]) == ("vgg16_cifar_b100", pytest.approx(0.309, abs=1e-3))
    text = cli("bench", "swap", "vgg16", "--what", "table2", *args[:-1]).out
    assert text.splitlines()[-1].split() == ["vgg16_cifar_b100", "462.0", "30.0", "30.9"]


@pytest.mark.thorough
@pytest.mark.jit
def test_without_traces_it_is_the_bundled_ones_and_figures_of_vgg16(cli: Cli, table: object, bounded: None) -> None:
    found = cli("bench", "swap", "--quick", "--planner", "autoswap", "--json", "--no-check").json
    assert {k["trace"] for k in found["knees"]} == set(gpumem.io.BUNDLED.values())  # type: ignore[attr-defined]
    assert [f["trace"] for f in (*found["fig8"], *found["fig9"], *found["fig10"], *found["fig11"])] == [
        "vgg16_cifar_b100"
    ] * 4
    assert [r["net"] for r in found["table2"]] == ["vgg16_cifar_b100", "resnet18_cifar_b100"]


def test_search_looks_for_the_lowest_limit_itself(
    cli: Cli, file: Path, bounded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lowest(trace: Trace, machine: Machine, *, stall: float = 0.005, seed: int = 0) -> tuple[Plan, int]:
        assert (stall, seed) == (0.005, 7)
        return autoswap(trace, machine, 20 * MIB), 20 * MIB

    monkeypatch.setattr("gpumem.swap.PLANNERS", {"autoswap": autoswap, "search": seeded})
    module = importlib.import_module("gpumem.swap.search.planner")  # the package has a function of that name
    monkeypatch.setattr(module, "lowest", lowest)
    args = ["--what", "knees", "--planner", "search", "--seed", "7", "--json"]
    (knee,) = cli("bench", "swap", file, *args).json["knees"]
    assert (knee["planner"], knee["limit"], knee["unbroken"]) == ("search", 20 * MIB, 20 * MIB)


def test_a_knee_that_the_oracles_reject_is_never_shown(
    cli: Cli, file: Path, bounded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.swap.PLANNERS", {"autoswap": autoswap, "wrong": wrong("pinned")})
    link = {"latency_ns": 0, "ns_per_byte": 0.001}
    small = {"name": "small", "capacity": 2**40, "out": link, "into": link, "flops": 1, "bandwidth": 1, "pinned": MIB}
    (tmp_path / "small.json").write_text(json.dumps(small))
    args = ["--machine", tmp_path / "small.json", "--planner", "wrong", "--what", "knees", "--quick"]
    line = cli.refuses("bench", "swap", file, *args, "--out", tmp_path / "out", status=1)
    assert "the result failed its own check" in line and not (tmp_path / "out").exists()


def test_two_traces_of_one_name_get_two_pictures(cli: Cli, file: Path, table: object, tmp_path: Path) -> None:
    args = ["--what", "fig9", "--quick", "--planner", "autoswap", "--out", tmp_path]
    assert cli("bench", "swap", file, file, *args).status == 0
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
