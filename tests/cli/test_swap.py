"""`gpumem swap`: rows, files, and the one-line errors that it shares with `bound` and `python -m benchmarks swap`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem import check
from gpumem.base.units import exact, human
from gpumem.cli.swap import ROUNDS
from gpumem.io import load
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.bound import least_stall
from gpumem.swap.plan import Plan, Variant
from tests.cli.planners import TOLD, breaks, wrong
from tests.conftest import Cli
from tests.files import BAD_AMOUNTS, BARE, FILES, KINDS, PICTURES, bad_file, snapshot
from tests.nets import GTX, MIB, PEAK, net

FIGURES = ["peak_live_bytes", "footprint", "bytes_out", "bytes_in", "recompute_ns", "overhead", "seconds"]
KEYS = ["planner", "limit", "feasible", *FIGURES]
BOUND = ["least_ns", "recompute", "not_for"]
pytestmark = pytest.mark.usefixtures("bounded")  # what is bounded in earnest takes a process of its own


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_a_row_has_exactly_these_keys(cli: Cli, net_file: Path, table: object, option: str) -> None:
    ran = cli("swap", net_file, option, "75%", "--json")
    assert ran.status == 0
    assert [list(row) for row in ran.json] == [KEYS] * 3 + [[*KEYS, *BOUND]]
    first, lost, third, bound = ran.json
    assert [row["planner"] for row in ran.json] == ["autoswap", "gives-up", "seeded", "bound"]
    assert bound | {"seconds": 0} == dict.fromkeys(KEYS) | {
        "planner": "bound",
        "limit": PEAK * 3 // 4,
        "overhead": 0.0,  # as that of the first
        "seconds": 0,
        "least_ns": 10**7,
        "recompute": False,
        "not_for": [],
    }
    for row in (first, third):
        assert row["feasible"] is True
        assert all(type(row[key]) is int for key in ("limit", "peak_live_bytes", "footprint", "bytes_out", "bytes_in"))
        assert row["peak_live_bytes"] <= row["limit"] == PEAK * 3 // 4
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
        f"the planner got down to a peak of {exact(PEAK)}; a better planner may"
    ]


def test_a_load_limit_is_judged_by_the_capacity_clock(cli: Cli, net_file: Path) -> None:
    trace, limit = net(), PEAK * 60 // 100
    row, _ = cli("swap", net_file, "--load-limit", "60%", "--planner", "autoswap", "--peaks", "all", "--json").json
    swapped = autoswap(trace, GTX, limit, peaks="all").apply(trace)
    assert row["peak_live_bytes"] == swapped.peak_live_bytes <= limit
    assert row["footprint"] == best_fit(swapped).height
    cost = simulate(swapped, GTX, capacity=limit).overhead(simulate(trace, GTX))
    assert row["overhead"] == cost > 0


def test_a_pool_is_judged_by_the_placed_clock(cli: Cli, net_file: Path) -> None:
    trace, limit = net(), PEAK * 60 // 100
    row, _ = cli("swap", net_file, "--limit", "60%", "--planner", "autoswap", "--peaks", "all", "--json").json
    assert row["footprint"] <= row["limit"] == limit
    plan = cli(
        "plan", net_file, "--limit", "60%", "--planner", "autoswap", "--score", "swdoa", "--peaks", "all", "--json"
    ).json
    assert row["overhead"] == plan["overhead"] and row["footprint"] == plan["footprint_after"]
    assert plan["makespan_before_ns"] == simulate(trace, GTX, best_fit(trace)).makespan


def test_a_limit_that_binds_nothing_costs_nothing(cli: Cli, net_file: Path) -> None:
    for option in ("--limit", "--load-limit"):
        row, _ = cli("swap", net_file, option, "1GiB", "--planner", "autoswap", "--json").json
        assert (row["overhead"], row["bytes_out"], row["bytes_in"], row["peak_live_bytes"]) == (0.0, 0, 0, PEAK)


def test_swap_prints_a_table(cli: Cli, net_file: Path, table: object) -> None:
    lines = cli("swap", net_file, "--load-limit", "75%").out.splitlines()
    assert lines[0].startswith("net: peak live bytes 24.00 MiB, footprint ")
    assert lines[0].endswith("on gtx1080ti, load limit of 18.00 MiB (byte-counting simulation)")
    heads = ["planner", "peak live bytes", "footprint", "bytes out", "bytes in", "recomputed", "overhead", "seconds"]
    assert [cell.strip() for cell in lines[2].split("  ") if cell.strip()] == heads
    names = [line.split()[0] for line in lines[3:]]
    assert names == ["autoswap", "seeded", "gives-up", "bound", "bound:"]  # by overhead
    assert lines[5].split()[1:3] == ["not", "reached"]
    assert "pool of 18.00 MiB (address-aware simulation)" in cli("swap", net_file, "--limit", "75%").out


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_the_last_row_is_what_no_plan_can_beat(
    cli: Cli, net_file: Path, table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("gpumem.swap.bound.least_stall", least_stall)
    monkeypatch.setattr("gpumem.cli.swap.BOUNDING", 600.0)  # however busy the machine is
    *rows, bound = cli("swap", net_file, option, "55%", "--planner", "autoswap", "--peaks", "all", "--json").json
    base, sure = 10**7, least_stall(net(), GTX, PEAK * 55 // 100, placed=option == "--limit", rounds=ROUNDS).stall_ns
    assert bound["least_ns"] == base + sure and bound["overhead"] == sure / base
    assert 0 < bound["overhead"] <= min(row["overhead"] for row in rows)


def test_it_is_said_whom_a_bound_is_for(cli: Cli, net_file: Path, table: dict[str, Any]) -> None:
    def faster(trace: gpumem.Trace, machine: gpumem.Machine, limit: int) -> Plan:
        swaps = autoswap(trace, machine, limit, peaks="all").decisions
        return Plan.of(trace, [*swaps, Variant(1, "a faster way", 10, 0)])

    table |= {"faster": faster, "again": checkpoint}
    args = ["swap", net_file, "--load-limit", "85%", "--planner"]
    assert cli(*args, "autoswap").out.splitlines()[5] == "bound: certified for every plan that swaps"
    told = "bound: certified for every plan that swaps; not for faster: ops run in other ways"
    assert cli(*args, "autoswap,faster").out.splitlines()[6] == told
    assert cli(*args, "autoswap,faster", "--json").json[-1]["not_for"] == ["faster"]
    told = "bound: certified for every plan that swaps and recomputes values; not for faster: ops run in other ways"
    assert told in cli(*args, "autoswap,again,faster").out and told in cli(*args, "faster").out
    waits = cli(*args, "autoswap", "--host-ns", "1e6", "--json").json
    assert [row["planner"] for row in waits] == ["autoswap"]  # nothing is known where ops wait for a host


def test_a_load_limit_says_which_plans_take_a_larger_pool(cli: Cli) -> None:
    args = ("swap", "vgg16", "--load-limit", "70%", "--planner")
    rows = cli(*args, "heuristic,tensile,vdnn-all", "--json").json
    over = [row["footprint"] > row["limit"] for row in rows[:-1]]
    assert over == [True, True, False] and rows[0]["overhead"] == 0
    told = f"Overheads are by the limit: {human(rows[0]['limit'])} of live bytes, wherever they lie.\nAs one pool"
    most = human(max(row["footprint"] for row in rows[:-1]))
    for planners, those in (
        ("heuristic,tensile,vdnn-all", f"2 of 3 plans take more, up to {most}"),
        ("heuristic,vdnn-all", f"1 of 2 plans takes more, {most}"),
        ("heuristic", f"it takes {most}"),
    ):
        assert f"{told} {those} (footprint); --limit plans for a pool." in cli(*args, planners).out
    assert "As one pool" not in cli(*args, "vdnn-all").out
    mlp = cli("swap", "mlp3", "--load-limit", "100%", "--planner", "heuristic")  # it fits
    assert (
        f"limit: {exact(gpumem.bundled('mlp3').peak_live_bytes)} of live bytes" in mlp.out and "fits already" in mlp.out
    )
    assert "As one pool" not in cli("swap", "vgg16", "--limit", "70%", "--planner", "vdnn-all").out


def test_without_a_file_it_is_the_bundled_vgg16_and_names_do(cli: Cli) -> None:
    limit = gpumem.bundled("vgg16").peak_live_bytes * 7 // 10
    assert cli("swap", "--load-limit", "70%", "--planner", "autoswap", "--json").json[0]["limit"] == limit
    mlp = cli("swap", "mlp3", "--load-limit", "100%", "--planner", "autoswap", "--json").json
    assert mlp[0]["limit"] == gpumem.bundled("mlp3").peak_live_bytes


def test_options_go_to_the_planners_that_take_them(cli: Cli, net_file: Path, table: object) -> None:
    ran = cli("swap", net_file, "--load-limit", "75%", "--seed", "5", "--seconds", "0.5", "--json")
    ((seed, seconds),) = TOLD
    assert ran.status == 0 and seed == 5 and 0 < seconds < 0.5  # the rest is for placing, judging and checking
    assert f"a peak of {exact(PEAK - 5)}" in ran.err[0]
    cli("swap", net_file, "--load-limit", "75%")
    assert TOLD[1:] == [(0, 60.0)]


def test_every_planner_of_the_package_plans_or_says_why_not(cli: Cli, net_file: Path) -> None:
    short = ["--effort", "0.01"] if "search" in gpumem.swap.PLANNERS else []  # type: ignore[attr-defined]
    ran = cli("swap", net_file, "--load-limit", "70%", "--threshold", "0", "--json", *short)
    assert ran.status == 0
    rows = ran.json[:-1]
    assert [row["planner"] for row in rows] == list(gpumem.swap.PLANNERS)  # type: ignore[attr-defined]
    assert len(ran.err) == sum(not row["feasible"] for row in rows)


@pytest.mark.parametrize("option", ["--limit", pytest.param("--load-limit", marks=pytest.mark.thorough)])
def test_out_writes_a_folder_for_each_planner(
    cli: Cli, net_file: Path, table: object, tmp_path: Path, option: str
) -> None:
    folder = tmp_path / "new" / "out"
    ran = cli("swap", net_file, option, "75%", "--json", "--out", folder)
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
        assert written.trace.peak_live_bytes == row["peak_live_bytes"]
        plan = Plan.from_json((mine / "plan.json").read_bytes())
        assert plan.apply(net()).peak_live_bytes == row["peak_live_bytes"]
        line = simulate(written.trace, GTX, written.placement)
        assert written.meta["makespan_ns"] == line.makespan
        check.everything(net(), written.trace, written.placement, line, GTX)
    before = snapshot(folder)
    again = ["--planner", "autoswap", "--out", folder]  # over what is there
    assert cli("swap", net_file, option, "75%", *again).status == 0
    after = snapshot(folder)
    assert {name for name in before if before[name] != after[name]} <= {"swap.json"}  # seconds


def test_nobody_gets_there(cli: Cli, net_file: Path, table: object, tmp_path: Path) -> None:
    ran = cli("swap", net_file, "--load-limit", "9MiB", "--planner", "gives-up", "--json", "--out", tmp_path / "out")
    assert (ran.status, len(ran.err), len(ran.json)) == (3, 1, 1)
    ran = cli("swap", net_file, "--limit", "1MiB", "--json", "--out", tmp_path / "out")
    assert (ran.status, len(ran.err), len(ran.json)) == (3, 3, 3)
    assert ran.err[0].startswith("gpumem: autoswap: infeasible: op ")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_a_line_says_so_once(
    cli: Cli, net_file: Path, table: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.pipeline.report.plot.available", lambda: False)
    ran = cli("swap", net_file, "--load-limit", "75%", "--planner", "autoswap,seeded", "--out", tmp_path)
    assert (ran.status, len(ran.err)) == (0, 1)
    assert "no pictures: matplotlib is not installed" in ran.err[0]
    assert {p.name for p in (tmp_path / "seeded").iterdir()} == FILES


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_a_planner_that_fails_costs_its_own_row(
    cli: Cli, net_file: Path, table: dict[str, Any], tmp_path: Path, option: str
) -> None:
    table |= {"breaks": breaks, "above": wrong("limit"), "last": autoswap}
    ran = cli(
        "swap", net_file, option, "75%", "--planner", "autoswap,breaks,gives-up,last", "--json", "--out", tmp_path
    )
    first, broken, lost, last, _ = ran.json
    assert ran.status == 1 and first["feasible"] and last["feasible"] and first["bytes_out"] == last["bytes_out"] > 0
    assert broken == dict.fromkeys(KEYS) | {
        "planner": "breaks",
        "limit": PEAK * 3 // 4,
        "feasible": False,
        "error": "ZeroDivisionError: division by zero",
    }
    told = "gpumem: breaks: failed: ZeroDivisionError: division by zero; --traceback shows where"
    assert ran.err[0] == told and len(ran.err) == 2 and "error" not in lost
    assert {path.name for path in tmp_path.iterdir()} == {"swap.json", "autoswap", "last"}
    ran = cli("swap", net_file, option, "75%", "--planner", "breaks,autoswap")
    rows = [line.split() for line in ran.out.splitlines()[3:5]]
    assert ran.status == 1 and rows[1] == ["breaks", "failed"] and rows[0][0] == "autoswap" and len(rows[0]) > 8
    ran = cli("swap", net_file, option, "75%", "--planner", "breaks,gives-up", "--traceback")
    assert ran.status == 1 and ran.err[0].startswith("Traceback") and any("in breaks" in line for line in ran.err)
    assert "failed: ZeroDivisionError: division by zero" in ran.err[-2] and "--traceback" not in ran.err[-2]
    line = cli.refuses("swap", net_file, option, "75%", "--planner", "breaks", status=1)
    assert line.startswith("gpumem: error: in planner breaks")


def test_a_bound_that_fails_costs_its_own_row(
    cli: Cli, net_file: Path, table: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.swap.bound.least_stall", lambda *_, **__: 1 // 0)
    args = ["swap", net_file, "--load-limit", "55%", "--peaks", "all", "--planner", "autoswap"]
    ran = cli(*args, "--json")
    assert ran.status == 1 and ran.json[0]["feasible"] and ran.json[1]["error"].startswith("ZeroDivisionError")
    assert ran.err == ["gpumem: bound: failed: " + ran.json[1]["error"] + "; --traceback shows where, to report it"]
    assert [line.split()[:2] for line in cli(*args).out.splitlines()[3:5]][1] == ["bound", "failed"]


def test_a_plan_that_the_oracles_reject_costs_its_own_row(cli: Cli, net_file: Path, table: dict[str, Any]) -> None:
    table["above"] = wrong("limit")
    ran = cli("swap", net_file, "--load-limit", "75%", "--planner", "above,autoswap", "--json")
    assert ran.status == 1 and [row["feasible"] for row in ran.json] == [False, True, None]
    assert ran.json[0]["error"].startswith("RuntimeError: the result failed its own check, please report this: ")


@pytest.mark.parametrize("kind", ["limit", "pinned"])
def test_what_the_oracles_reject_is_never_shown(
    cli: Cli, net_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("gpumem.swap.planners.PLANNERS", {"wrong": wrong(kind)})
    link = {"latency_ns": 0, "ns_per_byte": 0.001}
    small = {"name": "small", "capacity": 2**40, "out": link, "into": link, "flops": 1, "bandwidth": 1, "pinned": MIB}
    (tmp_path / "small.json").write_text(json.dumps(small))
    args = ["--machine", tmp_path / "small.json", "--load-limit", "60%", "--out", tmp_path / "out"]
    line = cli.refuses("swap", net_file, *args, status=1)
    assert line.startswith("gpumem: internal error: the result failed its own check, please report this: ")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_leaves_no_half_of_the_folders(
    cli: Cli, net_file: Path, table: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *args: object) -> None:
        if path.parent.name == "seeded":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpumem.io.chrome.write", full)
    options = ["--load-limit", "75%", "--planner", "autoswap,seeded", "--out"]
    line = cli.refuses("swap", net_file, *options, tmp_path / "out")
    assert line == f"gpumem: error: --out: {tmp_path / 'out'}: cannot write (No space left on device)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["autoswap", "swap.json", "autoswap/plan.json"])
def test_something_in_the_way_is_one_line_and_nothing_changes(
    cli: Cli, net_file: Path, tmp_path: Path, place: str
) -> None:
    if place == "autoswap":
        (tmp_path / place).write_text("mine")
    else:
        (tmp_path / place).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    line = cli.refuses("swap", net_file, "--load-limit", "75%", "--planner", "autoswap", "--out", tmp_path)
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
        (
            ["bench", "swap", "FILE", "--what", "fig12"],
            "--what: 'fig12' is unknown; there are lowest_limits, fig8",
        ),
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
    cli: Cli, net_file: Path, table: object, tmp_path: Path, args: list[str], message: str
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_bytes(BARE)
    names = {"FILE": str(net_file), "BARE": str(bare)}
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
def test_a_bad_amount_is_one_line_that_names_option_and_value(cli: Cli, net_file: Path, text: str) -> None:
    for command, option in ((["swap"], "--limit"), (["swap"], "--load-limit"), (["bound"], "--load-limit")):
        line = cli.refuses(*command, net_file, f"{option}={text}")
        assert line.startswith(f"gpumem: error: {option}: ")
        assert repr(text[:40])[:-1] in line
