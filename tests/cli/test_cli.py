"""The command line: tables, files and one-line errors."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gpumem
from gpumem import check
from gpumem.base.errors import CheckError, NotReached
from gpumem.base.names import choices
from gpumem.base.units import amount
from gpumem.cli.common.progress import Progress, tell, voice
from gpumem.cli.main import main, parser
from gpumem.io import Loaded, bundled, bundled_path, load, write
from gpumem.pool import ALLOCATORS, PLANNERS
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.plan import Plan
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.placement import Placement
from tests.conftest import Cli, Ran, tiny_machine
from tests.files import BAD_AMOUNTS, BARE, FILES, KINDS, PICTURES, bad_file, full_disk, snapshot
from tests.nets import MIB, net
from tests.strategies import traces


@pytest.fixture(scope="module")
def net_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.json"
    trace = net()
    write(path, trace)
    return path


PEAK = net().peak_load


def test_the_net_is_what_the_tests_below_take_it_for() -> None:
    assert PEAK == (4 + 5 * 4) * MIB
    assert net().n == 10


# --- plan ------------------------------------------------------------------------------------------------

ISSUE_KEYS = {"peak_load", "peak_load_after", "footprint", "footprint_after", "overhead", "makespan_ns"}
ISSUE_KEYS |= {"bytes_in", "bytes_out", "stalls"}


def test_plan_prints_a_table(cli: Cli, net_file: Path) -> None:
    ran = cli("plan", net_file, "--limit", "75%")
    assert (ran.status, ran.err) == (0, [])
    assert "net: 10 ops, 9 buffers, on gtx1080ti, pool of 18.00 MiB" in ran.out
    rows = [line.split("  ")[0] for line in ran.out.splitlines() if line]
    assert rows[2:] == [
        "peak load",
        "footprint",
        "competitive ratio",
        "iteration (placed clock)",
        "swapped",
        "overhead",
        "stalls",
    ]


def test_plan_prints_json_with_the_keys_of_the_issue(cli: Cli, net_file: Path) -> None:
    ran = cli("plan", net_file, "--limit", "75%", "--json")
    row = ran.json
    assert set(row) >= ISSUE_KEYS
    assert row["peak_load"] == PEAK
    assert row["footprint"] >= row["peak_load"]
    assert row["footprint_after"] <= row["limit"] == PEAK * 3 // 4
    assert row["peak_load_after"] <= row["footprint_after"]
    assert row["bytes_out"] == row["bytes_in"] > 0
    assert row["overhead"] == row["makespan_ns"] / row["makespan_before_ns"] - 1
    assert row["makespan_before_ns"] == 10 * 10**6
    assert set(row["stalls"]) == {"data", "copy", "memory"}
    assert all(isinstance(ns, int) and ns >= 0 for ns in row["stalls"].values())
    assert row["clock"] == "placed"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (str(18 * MIB), 18 * MIB),
        (f"{18 * MIB}B", 18 * MIB),
        ("18432KiB", 18 * MIB),
        ("18MiB", 18 * MIB),
        ("18 mib", 18 * MIB),
        ("0.0175781250GiB", 18 * MIB),
        ("75%", 18 * MIB),
        ("75.0 %", 18 * MIB),
    ],
)
@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_limits_are_bytes_units_or_percent_of_the_peak(
    cli: Cli, net_file: Path, option: str, text: str, size: int
) -> None:
    row = cli("plan", net_file, option, text, "--json").json
    if option == "--limit":
        assert row["limit"] == size and row["load_limit"] <= size
    else:
        assert row["limit"] is None and row["load_limit"] == size
        assert row["clock"] == "capacity"
        assert row["peak_load_after"] <= size


def test_a_limit_on_the_load_is_judged_by_the_capacity_clock(cli: Cli, net_file: Path) -> None:
    trace, machine = net(), Machine.named("gtx1080ti")
    row = cli("plan", net_file, "--load-limit", "80%", "--json").json
    assert row["makespan_before_ns"] == simulate(trace, machine).makespan
    assert row["makespan_ns"] <= row["placed_makespan_ns"]


def test_without_a_file_it_is_the_bundled_vgg16(cli: Cli) -> None:
    row = cli("plan", "--load-limit", "70%", "--json").json
    assert row["trace"] == "vgg16_cifar_b100"
    assert row["peak_load"] == bundled().peak_load
    assert row["peak_load_after"] <= row["load_limit"] == bundled().peak_load * 7 // 10


@pytest.mark.parametrize("limit", [["--limit", "150%"], ["--load-limit", "100%"], ["--limit", "1TiB"], []])
def test_a_limit_that_binds_nothing_gives_a_plan_of_nothing(
    cli: Cli, net_file: Path, tmp_path: Path, limit: list[str]
) -> None:
    ran = cli("plan", net_file, *limit, "--json", "--out", tmp_path)
    assert (ran.status, ran.err) == (0, [])
    row = ran.json
    assert (row["swaps"], row["bytes_out"], row["bytes_in"], row["overhead"]) == (0, 0, 0, 0.0)
    assert row["makespan_ns"] == row["makespan_before_ns"]
    assert Plan.from_json((tmp_path / "plan.json").read_bytes()) == Plan((), 10, "net")
    written = load(tmp_path / "trace.json.gz")
    assert written.trace.load().tolist() == net().load().tolist()


@given(st.integers(1, 2**50))
def test_all_of_it_is_100_percent(whole: int) -> None:
    assert amount("100%", whole, "--limit") == whole
    assert amount("200%", whole, "--limit") == 2 * whole
    assert amount("70%", 10 * whole, "--limit") == 7 * whole


@pytest.mark.parametrize(
    ("option", "value"),
    [("--score", name) for name in ("doa", "aoa", "wdoa", "swdoa")]
    + [("--peaks", "all"), ("--peaks", "first"), ("--pool", "first-fit"), ("--pool", "best-fit")]
    + [("--planner", "autoswap"), ("--alignment", "512"), ("--threshold", "2MiB"), ("--machine", "h200")],
)
def test_every_option_plans(cli: Cli, net_file: Path, option: str, value: str) -> None:
    row = cli("plan", net_file, "--limit", "75%", option, value, "--json").json
    assert row["footprint_after"] <= row["limit"]
    assert row["machine"] == (value if option == "--machine" else "gtx1080ti")


def test_a_threshold_above_all_buffers_leaves_nothing_to_swap(cli: Cli, net_file: Path) -> None:
    line = cli.refuses("plan", net_file, "--load-limit", "75%", "--threshold", "5MiB", status=3)
    assert line == (
        "gpumem: not reached: the limit is 18.00 MiB, "
        f"the planner got down to a peak load of 24.00 MiB ({24 * MIB} bytes); peaks `all` has more candidates"
    )


def test_a_machine_may_be_a_file(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    link = {"latency_ns": 0, "ns_per_byte": 0}
    description = {"name": "mine", "capacity": 18 * MIB, "out": link, "into": link, "flops": 1, "bandwidth": 1}
    (tmp_path / "mine.json").write_text(json.dumps(description))
    row = cli("plan", net_file, "--machine", tmp_path / "mine.json", "--json").json
    assert (row["machine"], row["limit"]) == ("mine", 18 * MIB)  # what the machine has is the limit
    assert row["footprint_after"] <= 18 * MIB


@pytest.mark.parametrize("limit", [["--limit", "77%"], ["--load-limit", "80%"]])
def test_out_writes_files_that_agree_with_each_other(
    cli: Cli, net_file: Path, tmp_path: Path, limit: list[str]
) -> None:
    folder = tmp_path / "new" / "out"
    ran = cli("plan", net_file, *limit, "--json", "--out", folder)
    assert (ran.status, ran.err) == (0, [])
    row = ran.json
    assert {path.name for path in folder.iterdir()} == FILES | PICTURES
    assert {path.name for path in folder.parent.iterdir()} == {"out"}

    machine = Machine.named("gtx1080ti")
    plan = Plan.from_json((folder / "plan.json").read_bytes())
    assert json.loads((folder / "plan.json").read_text())["format"] == "gpumem.plan/1"
    assert (plan.n, plan.trace, len(plan.swaps)) == (10, "net", row["swaps"])

    written = load(folder / "trace.json.gz")
    trace, placed, meta = written.trace, written.placement, written.meta
    assert placed is not None
    again = plan.apply(net())
    assert trace.buffers.size.tolist() == again.buffers.size.tolist()
    assert trace.buffers.start.tolist() == again.buffers.start.tolist()
    assert trace.buffers.end.tolist() == again.buffers.end.tolist()
    assert trace.ops.reads.tolist() == again.ops.reads.tolist()
    assert trace.ops.writes.tolist() == again.ops.writes.tolist()
    assert trace.ops.duration.tolist() == machine.durations(again).tolist()
    assert trace.peak_load == row["peak_load_after"]

    assert (meta["format"], meta["n_ops"], meta["machine"]) == ("gpumem.trace/1", trace.n, "gtx1080ti")
    assert (meta["name"], meta["source"]) == ("net", "net.json")
    assert meta["height"] == placed.height == row["footprint_after"]
    assert meta["height"] <= meta["capacity"] == (row["limit"] if row["limit"] is not None else meta["height"])
    assert meta["makespan_ns"] == row["placed_makespan_ns"] == simulate(trace, machine, placed).makespan
    check.everything(net(), trace, placed, simulate(trace, machine, placed), machine, limit=row["load_limit"])

    timeline = json.loads((folder / "timeline.json").read_text())
    spans = [e for e in timeline["traceEvents"] if e["ph"] == "X"]
    assert [e["args"]["op"] for e in spans] == list(range(trace.n))
    assert timeline["otherData"] == {"trace": "net", "makespan_ns": row["makespan_ns"]}
    assert [round(e["dur"] * 1000) for e in spans] == trace.ops.duration.tolist()
    names = {e["tid"]: e["args"]["name"] for e in timeline["traceEvents"] if e["ph"] == "M"}
    assert [names[e["tid"]] for e in spans] == [op.stream for op in trace.ops]
    counters = [e["args"]["bytes"] for e in timeline["traceEvents"] if e["ph"] == "C"]
    assert counters == trace.load().tolist()

    for name in PICTURES:
        data = (folder / name).read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
        assert int.from_bytes(data[16:20], "big") > 600  # wide enough to see something


def test_out_writes_the_bundled_trace_under_its_name(cli: Cli, tmp_path: Path) -> None:
    assert cli("plan", "--load-limit", "80%", "--out", tmp_path).status == 0
    assert load(tmp_path / "trace.json.gz").meta["source"] == "vgg16_cifar_b100.json.gz"


def test_the_same_call_writes_the_same_bytes(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        cli("plan", net_file, "--limit", "75%", "--out", tmp_path / name)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_out_replaces_what_it_wrote_before_and_leaves_the_rest(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plan.json").write_text("old")
    assert cli("plan", net_file, "--limit", "75%", "--out", tmp_path).status == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert Plan.from_json((tmp_path / "plan.json").read_text()).n == 10
    assert {path.name for path in tmp_path.iterdir()} == FILES | PICTURES | {"notes.txt"}


def test_without_matplotlib_there_are_no_pictures_and_a_line_says_so(
    cli: Cli, net_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpumem.pipeline.report.plot.available", lambda: False)
    ran = cli("plan", net_file, "--limit", "75%", "--out", tmp_path)
    assert (ran.status, len(ran.err)) == (0, 1)
    assert "no pictures: matplotlib is not installed" in ran.err[0]
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_a_rewritten_trace_may_be_planned_again(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "75%", "--out", tmp_path)
    row = cli("plan", tmp_path / "trace.json.gz", "--limit", "75%", "--json")
    assert row.status in (0, 3)
    same = cli("plan", tmp_path / "trace.json.gz", "--limit", "1GiB", "--json").json
    assert same["overhead"] == 0.0 and same["bytes_out"] > 0


# --- status 3 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_below_the_one_op_floor_it_is_infeasible_and_nothing_is_written(
    cli: Cli, net_file: Path, tmp_path: Path, option: str
) -> None:
    line = cli.refuses("plan", net_file, option, "5MiB", "--out", tmp_path / "out", status=3)
    # backward reads two activations and changes a weight; the other weights may be away
    assert line.startswith("gpumem: infeasible: op ")
    assert (
        f"must hold 9.00 MiB, the limit is 5.00 MiB; the least limit that could do is 9.00 MiB ({9 * MIB} bytes)"
        in line
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--limit", "--load-limit"])
def test_between_the_floor_and_what_the_planner_reaches_it_says_how_far_it_got(
    cli: Cli, net_file: Path, tmp_path: Path, option: str
) -> None:
    (tmp_path / "plan.json").write_text("old")
    before = snapshot(tmp_path)
    line = cli.refuses("plan", net_file, option, 9 * MIB, "--out", tmp_path, "--threshold", "2MiB", status=3)
    assert line.startswith("gpumem: not reached: the limit is 9.00 MiB, the planner got down to a ")
    assert int(line.split(" bytes)")[0].split("(")[-1]) > 9 * MIB
    assert snapshot(tmp_path) == before


def test_a_pool_that_no_placement_fits_names_the_lowest(
    cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(trace: Trace, machine: Machine, limit: int, **options: object) -> Plan:
        if limit < 10 * MIB:
            raise NotReached(10 * MIB, limit)
        return Plan()

    monkeypatch.setitem(gpumem.swap.PLANNERS, "autoswap", nothing)  # type: ignore[attr-defined]
    line = cli.refuses("plan", net_file, "--limit", 12 * MIB, status=3)
    reached = f"a pool of 24.00 MiB ({24 * MIB} bytes)"
    assert line == f"gpumem: not reached: the limit is 12.00 MiB, the planner got down to {reached}"


# --- status 2 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_one_line_that_names_it(cli: Cli, tmp_path: Path, kind: str) -> None:
    path, out = bad_file(tmp_path, kind), tmp_path / "out"
    for args in (
        ("plan", path, "--limit", "70%", "--out", out),
        ("pool", path, "--out", tmp_path / "out.csv"),
        ("pool", bundled_path("mlp3"), path),
        ("info", path),
    ):
        assert cli.refuses(*args).startswith(f"gpumem: error: {path}: ")
    assert {p.name for p in tmp_path.iterdir()} <= {path.name}


@pytest.mark.parametrize("text", BAD_AMOUNTS)
def test_a_bad_amount_is_one_line_that_names_option_and_value(cli: Cli, net_file: Path, text: str) -> None:
    options = {"--limit": "plan", "--load-limit": "plan", "--capacity": "pool"}
    for option, command in options.items():
        line = cli.refuses(command, net_file, f"{option}={text}")
        assert line.startswith(f"gpumem: error: {option}: ")
        assert repr(text[:40])[:-1] in line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "FILE", "--machine", "gtx"], "gpumem: error: --machine: 'gtx' is unknown; there are gtx1080ti, "),
        (["plan", "FILE", "--machine", "no.json"], "gpumem: error: no.json: No such file or directory"),
        (["plan", "FILE", "--machine", "x" * 5000], "gpumem: error: --machine: 'xxx"),
        (["plan", "FILE", "--machine", "FILE"], "net.json: machine: object missing required field `name`"),
        (["plan", "FILE", "--score", "best"], "gpumem: error: --score: 'best' is unknown; there are doa, aoa, wdoa"),
        (["plan", "FILE", "--peaks", "some"], "gpumem: error: --peaks: 'some' is unknown; there are first, all"),
        (["plan", "FILE", "--planner", "vdnn"], "gpumem: error: --planner: 'vdnn' is unknown; there are autoswap"),
        (["plan", "FILE", "--pool", "worst-fit"], "gpumem: error: --pool: 'worst-fit' is unknown; there are best-fit"),
        (["plan", "FILE", "--pool", "all"], "gpumem: error: --pool: 'all' is unknown"),
        (["plan", "FILE", "--pool", "best-fit,first-fit"], "gpumem: error: --pool: 'best-fit,first-fit' is unknown"),
        (["plan", "FILE", "--alignment", "0"], "gpumem: error: alignment: 0 is not in [1, 2**40]"),
        (["plan", "FILE", "--alignment", "-256"], "gpumem: error: alignment: -256 is not in [1, 2**40]"),
        (["plan", "FILE", "--alignment", str(2**70)], "gpumem: error: alignment: 1180591620717411303424 is not in"),
        (["plan", "FILE", "--alignment", "big"], "gpumem: error: --alignment: 'big' is not a whole number"),
        (["plan", "FILE", "--limit"], "gpumem: error: --limit: a value must follow"),
        (["plan", "FILE", "--out", ""], "gpumem: error: --out: the name is empty"),
        (["plan", "FILE", "FILE"], "gpumem plan takes no such argument"),
        (["plan", "FILE", "--nonsense"], "gpumem: error: --nonsense: gpumem plan has no such option"),
        (["plan", "FILE", "--nonsense=a\nb"], "gpumem: error: --nonsense: gpumem plan has no such option"),
        (["pool"], "gpumem: error: FILE is missing: trace file, or vgg16,"),
        (["pool", "FILE", "--planner", "magic"], "gpumem: error: --planner: 'magic' is unknown; there are best-fit"),
        (["pool", "FILE", "--planner", "best-fit,"], "gpumem: error: --planner: '' is unknown"),
        (["pool", "FILE", "--allocator", "magic"], "gpumem: error: --allocator: 'magic' is unknown; there are native"),
        (["pool", "FILE", "--allocator", ""], "gpumem: error: --allocator: '' is unknown"),
        (["pool", "FILE", "--seed", "1"], "gpumem: error: --seed: no use to best-fit"),
        (["pool", "FILE", "--planner", "search", "--seed", "-1"], "gpumem: error: --seed: -1 is below 0"),
        (["pool", "FILE", "--planner", "search", "--effort", "nan"], "gpumem: error: --effort: nan is not positive"),
        (["pool", "FILE", "--planner", "search", "--seconds", "0"], "gpumem: error: --seconds: 0.0 is not positive"),
        (["pool", "FILE", "--alignment", "0"], "gpumem: error: alignment: 0 is not in [1, 2**40]"),
        (["pool", "FILE", "--out", "x.png"], "gpumem: error: --out: 'x.png' ends in none of .csv, .json, .json.gz"),
        (["pool", "FILE", "--out", ""], "gpumem: error: --out: '' ends in none of"),
        (["pool", "FILE", "FILE", "--out", "x.csv"], "gpumem: error: --out: one placement goes into 'x.csv', but"),
        (["pool", "FILE", "--out", "/nowhere/x.csv"], "error: /nowhere/x.csv: cannot write here (No such folder)"),
        (["info"], "gpumem: error: FILE is missing: trace file, or vgg16,"),
        (["info", "FILE", "--score", "doa"], "gpumem: error: --score: gpumem info has no such option"),
        (["train"], "gpumem: error: COMMAND: 'train' is unknown; there are fit, capture, plan, swap"),
    ],
)
def test_bad_usage_is_one_line(cli: Cli, net_file: Path, args: list[str], message: str) -> None:
    assert message in cli.refuses(*[str(net_file) if a == "FILE" else a for a in args])


def test_a_bare_instance_cannot_be_planned(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_bytes(BARE)
    line = cli.refuses("plan", tmp_path / "bare.csv", "--limit", "70%")
    assert line == f"gpumem: error: {tmp_path}/bare.csv: a bare instance has no ops to swap between; see gpumem pool"


@pytest.mark.parametrize("out", ["file", "file/out", "x" * 300])
def test_a_folder_that_cannot_be_made_is_one_line_and_nothing_changes(
    cli: Cli, net_file: Path, tmp_path: Path, out: str
) -> None:
    (tmp_path / "file").write_text("mine")
    line = cli.refuses("plan", net_file, "--limit", "75%", "--out", tmp_path / out)
    assert line.startswith(f"gpumem: error: --out: {tmp_path / out}: cannot write here (")
    assert snapshot(tmp_path) == {"file": b"mine"}


def test_a_folder_in_the_way_of_a_file_is_one_line_and_nothing_changes(
    cli: Cli, net_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text("old")
    (tmp_path / "trace.json.gz").mkdir()
    line = cli.refuses("plan", net_file, "--limit", "75%", "--out", tmp_path)
    assert line == f"gpumem: error: --out: {tmp_path}/trace.json.gz is a directory"
    assert {p.name for p in tmp_path.iterdir()} == {"plan.json", "trace.json.gz"}
    assert (tmp_path / "plan.json").read_text() == "old"


@pytest.mark.parametrize("existed", [False, True])
def test_a_disk_that_fills_up_leaves_no_half_of_the_files(
    cli: Cli, net_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    folder = full_disk(tmp_path, monkeypatch, existed)
    line = cli.refuses("plan", net_file, "--limit", "75%", "--out", folder)
    assert line == f"gpumem: error: --out: {folder}: cannot write (No space left on device)"
    assert snapshot(tmp_path) == ({"out/plan.json": b"old"} if existed else {})
    assert folder.exists() == existed


def test_a_plan_that_the_oracles_reject_is_never_written(
    cli: Cli, net_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(trace: Trace, *, alignment: int = 256) -> object:
        placed = best_fit(trace, alignment=alignment)
        placed.offset[:] = np.where(trace.buffers.host, -1, 0)  # all on top of each other
        return placed

    monkeypatch.setitem(PLANNERS, "best-fit", wrong)  # type: ignore[arg-type]
    for command in (
        ["plan", net_file, "--limit", "2GiB", "--pool", "best-fit", "--out", tmp_path],
        ["pool", net_file, "--out", tmp_path / "x.csv"],
    ):
        line = cli.refuses(*command, status=1)
        assert line.startswith("gpumem: internal error: the result failed its own check, please report this: buffers ")
        assert "overlap in time and address" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.jit
def test_a_pool_and_a_load_limit_together(cli: Cli) -> None:
    row = cli("plan", "--limit", "75%", "--load-limit", "65%", "--json").json
    alone = cli("plan", "--load-limit", "65%", "--json").json
    assert row["footprint_after"] <= row["limit"] == 363354252
    assert row["peak_load_after"] <= row["load_limit"] <= alone["load_limit"]
    assert (row["clock"], alone["clock"], alone["limit"]) == ("capacity", "capacity", None)


def test_a_typo_in_a_machine_file_is_found(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    link = {"latency_ns": 0, "ns_per_byte": 0}
    description = {"name": "mine", "capacity": 1, "out": link, "into": link, "flops": 1, "bandwidth": 1, "pined": 5}
    (tmp_path / "mine.json").write_text(json.dumps(description))
    line = cli.refuses("plan", net_file, "--machine", tmp_path / "mine.json")
    assert "key: 'pined' is unknown; there are " in line and line.endswith("did you mean 'pinned'?")


@pytest.mark.parametrize("command", ["plan", "swap", "bound", "jobs", "run", "bench swap", "bench tensile"])
def test_what_is_wrong_with_the_host_of_a_machine_is_one_line(cli: Cli, net_file: Path, command: str) -> None:
    for option, value, why in (
        ("--host-ns", "-1", "-1.0 is not finite and >= 0"),
        ("--copy-host-ns", "nan", "nan is not finite and >= 0"),
        ("--host-ns", "inf", "inf is not finite and >= 0"),
        ("--reserved", "11GiB", "11GiB leaves nothing of 11.00 GiB"),
        ("--reserved", "much", "'much' is not an amount; write bytes, 300MiB, 1.5GiB or 70%"),
    ):
        limit = ["--limit", "70%"] if command == "swap" else []
        line = cli.refuses(*command.split(), net_file, "--machine", "gtx1080ti", *limit, option, value)
        assert line == f"gpumem: error: {option}: {why}"


def test_a_host_that_would_take_for_ever_is_one_line(cli: Cli, net_file: Path) -> None:
    line = cli.refuses("plan", net_file, "--limit", "2GiB", "--host-ns", "1e15")
    assert line.startswith("gpumem: error: machine 'gtx1080ti': to hand over ")
    assert line.endswith(" ops takes too long to count in ns")


def test_the_host_is_on_where_its_time_is_given(cli: Cli, net_file: Path) -> None:
    off, on = (cli("plan", net_file, "--limit", "75%", "--json", *more).json for more in ([], ["--host-ns", "1e8"]))
    assert "host" not in off["stalls"] and on["stalls"]["host"] > 0
    assert on["makespan_before_ns"] >= 1e8 * on["ops"] > off["makespan_before_ns"]


def test_info_tells_of_copies_that_block(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "75%", "--planner", "on-demand", "--out", tmp_path / "out")
    row = cli("info", tmp_path / "out" / "trace.json.gz", "--json").json[0]
    assert row["hosts"] == ["host"] and row["blocking"] > 0
    assert "blocking" not in cli("info", net_file, "--json").json[0]


def test_durations_of_another_machine_are_pointed_out(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "100%", "--machine", "v100", "--out", tmp_path / "out")
    ran = cli("plan", tmp_path / "out" / "trace.json.gz", "--limit", "100%", "--machine", "p40")
    assert ran.status == 0
    assert "holds the durations of v100" in ran.err[0]


@pytest.mark.jit
def test_the_cheapest_score_counts(cli: Cli) -> None:
    plan = ("plan", "--limit", "70%", "--pool", "best-fit", "--json")
    rows = {s: cli(*plan, "--score", s).json for s in ("doa", "aoa", "wdoa", "swdoa")}
    best = cli(*plan).json
    assert best["makespan_ns"] == min(row["makespan_ns"] for row in rows.values())
    assert best == rows[best["score"]]
    assert best == cli(*plan, "--score", "doa,wdoa").json  # the first of equals


def test_an_iteration_of_no_time_has_no_overhead_to_tell(cli: Cli, tmp_path: Path) -> None:
    rows = {
        "meta": {"format": "gpumem.trace/1", "name": "x", "n_ops": 3},
        "buffers": [
            {"id": 0, "bytes": 2**21, "start": 0, "end": 3, "persistent": False, "kind": "", "space": "device"},
            {"id": 1, "bytes": 2**21, "start": 1, "end": 2, "persistent": False, "kind": "", "space": "device"},
        ],
        "ops": [
            {"i": i, "name": "", "stream": "s", "reads": r, "writes": w, "duration_ns": 0, "role": "compute", "of": i}
            for i, (r, w) in enumerate([([], [0]), ([], [1]), ([0], [])])
        ],
    }
    (tmp_path / "x.json").write_text(json.dumps(rows))
    assert cli("plan", tmp_path / "x.json", "--load-limit", "60%", "--json").json["overhead"] is None
    assert "infinite" in cli("plan", tmp_path / "x.json", "--load-limit", "60%").out


LIMITS = [["--limit", "95%"], ["--load-limit", "70%", "--peaks", "all"]]


def test_the_oracles_may_be_left_out(cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **options: object) -> None:
        raise CheckError("overlap", "an oracle was asked")

    for oracle in ("placement", "budget", "data_flow", "timeline"):
        with monkeypatch.context() as patch:
            patch.setattr(f"gpumem.check.{oracle}", never)
            assert cli.refuses("plan", net_file, "--limit", "75%", status=1).endswith("an oracle was asked")
            assert cli("plan", net_file, "--limit", "75%", "--no-check").status == 0


def test_only_an_oracle_says_that_the_result_is_wrong(
    cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*args: object, **options: object) -> None:
        raise ValueError("this input makes no sense")

    monkeypatch.setattr("gpumem.check.data_flow", refuses)
    assert cli.refuses("plan", net_file, "--limit", "75%") == "gpumem: error: this input makes no sense"


@given(traces(max_ops=8, max_buffers=6), st.sampled_from(LIMITS))
def test_any_trace_is_planned_or_one_line_says_why_not(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, limit: list[str]
) -> None:
    import contextlib
    import io

    path = tmp_path_factory.getbasetemp() / "random.json"
    write(path, trace, machine=tiny_machine().with_(name="gtx1080ti"))  # or a line says whose the durations are
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["plan", str(path), *limit, "--threshold", "1", "--alignment", "1", "--json"])
    ran = Ran(status, out.getvalue(), err.getvalue())
    if status == 0:
        assert set(ran.json) >= ISSUE_KEYS and ran.err == []
    else:
        assert (ran.out, len(ran.err)) == ("", 1)
        assert status == (3 if trace.peak_load > 1 else 2)


# --- pool ------------------------------------------------------------------------------------------------

ROW_KEYS = {"file", "planner", "buffers", "peak_load", "footprint", "ratio", "bound", "optimal", "seconds", "feasible"}


@pytest.fixture
def bare_file(tmp_path: Path) -> Path:
    path = tmp_path / "bare.csv"
    path.write_bytes(BARE)
    return path


def test_pool_prints_a_table(cli: Cli, net_file: Path, bare_file: Path) -> None:
    ran = cli("pool", net_file, bare_file, "--planner", "all")
    lines = ran.out.splitlines()
    assert (ran.status, ran.err, len(lines)) == (0, [], 1 + 2 * len(PLANNERS))
    heads = ["file", "planner", "buffers", "peak", "load", "footprint", "ratio", "bound", "seconds", "fits"]
    assert lines[0].split() == heads
    assert [line.split()[-8] for line in lines[1:]] == [*PLANNERS, *PLANNERS]
    assert {line.split()[-3] for line in lines[1:]} == {"optimal"}
    assert {line.split()[-1] for line in lines[1:]} == {"yes"}


def test_pool_prints_rows_of_json_for_every_file_and_planner(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", net_file, bare_file, "--planner", "first-fit,best-fit", "--json").json
    assert [(row["file"], row["planner"]) for row in rows] == [
        (str(path), planner) for path in (net_file, bare_file) for planner in ("first-fit", "best-fit")
    ]
    for row, trace in zip(rows, (net(), net(), load(bare_file).trace, load(bare_file).trace)):
        assert set(row) == ROW_KEYS
        placed = PLANNERS[row["planner"]](trace, alignment=256 if len(trace.ops) else 1)
        assert row["buffers"] == len(trace.buffers)
        assert row["peak_load"] == trace.peak_load
        assert row["footprint"] == placed.height
        assert row["ratio"] == placed.height / trace.peak_load
        assert row["seconds"] >= 0 and row["feasible"] is True
        assert row["bound"] == trace.peak_load and row["optimal"] is (placed.height == trace.peak_load)


def proves(trace: Trace, *, alignment: int = 1, seed: int = 0, effort: float = 1.0) -> Placement:
    """A planner that places 100 bytes too high, and knows a bound that depends on what it was told."""
    placed = best_fit(trace, alignment=alignment)
    return Placement(placed.offset + 100, placed.height + 100, bound=trace.peak_load + seed)


def test_a_bound_that_one_planner_proves_holds_for_all(
    cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANNERS, "proves", proves)
    args = ["pool", bare_file, "--planner", "best-fit,proves"]  # the peak load is 9
    for options, bound, optimal in (([], 9, [True, False]), (["--seed", "100", "--effort", "2"], 109, [True, True])):
        rows = cli(*args, *options, "--json").json
        assert [(row["bound"], row["optimal"]) for row in rows] == [(bound, o) for o in optimal]
    assert [line.split()[-3] for line in cli(*args).out.splitlines()[1:]] == ["optimal", "1.0000"]
    rows = cli("pool", bare_file, "--planner", "proves", "--seed", "50", "--json").json
    assert (rows[0]["bound"], rows[0]["optimal"]) == (59, False)
    assert cli("pool", bare_file, "--planner", "proves", "--seed", "9").out.splitlines()[1].split()[-3] == "2.0000"


def test_options_reach_only_the_planners_that_take_them(
    cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[object, ...]] = []

    def listens(
        trace: Trace,
        *,
        alignment: int,
        effort: float = 1.0,
        seconds: float = 9.0,
        seed: int = 0,
        progress: object = None,
    ) -> Placement:
        told.append((alignment, effort, seconds, seed, callable(progress)))
        return best_fit(trace, alignment=alignment)

    monkeypatch.setitem(PLANNERS, "listens", listens)
    options = ["--effort", "0.5", "--seconds", "3", "--seed", "7", "--alignment", "2"]
    assert cli("pool", bare_file, "--planner", "best-fit,listens", *options).status == 0
    assert told == [(2, 0.5, 3.0, 7, True)] * 2  # the first for what has to be compiled
    line = cli.refuses("pool", bare_file, "--seed", "7")
    assert line == "gpumem: error: --seed: no use to best-fit; it is an option of search, exact, listens"


def test_pool_replays_through_allocators(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", net_file, bare_file, "--allocator", "all", "--json").json
    names = ["best-fit", *ALLOCATORS]
    assert [(row["file"], row["planner"]) for row in rows] == [
        (str(f), n) for f in (net_file, bare_file) for n in names
    ]
    for row in rows:
        trace = load(row["file"]).trace
        assert set(row) == ROW_KEYS
        if row["planner"] == "best-fit":
            continue
        allocator = ALLOCATORS[row["planner"]]()
        replay(trace, allocator)
        assert row["footprint"] == allocator.statistics.reserved.peak
        assert (row["peak_load"], row["bound"]) == (trace.peak_load, trace.peak_load)
        assert row["optimal"] is (row["footprint"] == trace.peak_load)
    ran = cli("pool", bare_file, "--allocator", "cnmem", "--capacity", "9")
    assert [line.split()[-1] for line in ran.out.splitlines()[1:]] == ["yes", "no"]


def test_an_allocator_in_pieces_may_fit_where_no_placement_does(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def far() -> Native:
        """Take as many bytes as are alive, at addresses that no pool reaches up to."""
        device = Native(granularity=1)
        device.reserve(100)
        return device

    trace = Trace.from_lifetimes([2, 2, 2, 4], [0, 0, 0, 1], [1, 2, 1, 2], name="holes")
    write(tmp_path / "holes.json", trace)
    monkeypatch.setitem(PLANNERS, "wide", lambda t, *, alignment: Placement(np.array([0, 2, 4, 6]), 10))
    monkeypatch.setitem(ALLOCATORS, "far", far)
    args = ["--planner", "wide", "--allocator", "far", "--capacity", "6", "--out", tmp_path / "out.csv", "--json"]
    ran = cli("pool", tmp_path / "holes.json", *args)
    assert (ran.status, [row["feasible"] for row in ran.json]) == (0, [False, True])
    assert [row["footprint"] for row in ran.json] == [10, 6]
    assert ran.err == [f"gpumem: {tmp_path}/holes.json: no placement fits 6 bytes, the lowest takes 10 bytes"]
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("kind", ["overlap", "moves", "full"])
def test_an_allocator_that_does_wrong_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Wrong(Native):
        """Hands out what another one has, never the same twice, or nothing at all."""

        calls = 0

        def allocate(self, size: int, *, stream: int = 0) -> int:
            if kind == "full":
                raise MemoryError("no room")
            self.calls += 1
            return 0 if kind == "overlap" else self.calls * 2**20

        def free(self, offset: int, *, stream: int = 0) -> None:
            pass

    monkeypatch.setitem(ALLOCATORS, "wrong", Wrong)
    trace = Trace.from_lifetimes([1, 4], [0, 2], [3, 4], n=3, name="arc")
    write(tmp_path / "arc.json", trace)
    line = cli.refuses("pool", tmp_path / "arc.json", "--allocator", "wrong", status=1 if kind == "overlap" else 2)
    message = {
        "overlap": "gpumem: internal error: the result failed its own check, please report this: buffers ",
        "moves": "gpumem: error: arc: wrong: buffer 1: wraps, but lies at ",
        "full": "gpumem: error: arc: wrong: buffer 0, before the first iteration: no room",
    }
    assert line.startswith(message[kind])


def test_pool_takes_best_fit_unless_told_otherwise(cli: Cli, net_file: Path) -> None:
    assert [row["planner"] for row in cli("pool", net_file, "--json").json] == ["best-fit"]
    rows = cli("pool", net_file, "--planner", "best-fit, first-fit,best-fit", "--json").json
    assert [row["planner"] for row in rows] == ["best-fit", "first-fit"]


def test_alignment_is_256_for_traces_and_1_for_bare_instances(cli: Cli, bare_file: Path) -> None:
    assert cli("pool", bare_file, "--json").json[0]["footprint"] == 9
    assert cli("pool", bare_file, "--alignment", "256", "--json").json[0]["footprint"] == 256 + 4
    default, packed = (
        cli("pool", bundled_path("vgg16"), *args, "--json").json[0]["footprint"] for args in ([], ["--alignment", "1"])
    )
    assert default == best_fit(bundled()).height
    assert packed == best_fit(bundled(), alignment=1).height


def test_capacity_decides_what_is_feasible(cli: Cli, net_file: Path, bare_file: Path) -> None:
    rows = cli("pool", bare_file, "--capacity", "9", "--json")
    assert (rows.status, rows.json[0]["feasible"]) == (0, True)
    rows = cli("pool", bare_file, "--capacity", "8", "--planner", "all", "--json")
    assert (rows.status, [row["feasible"] for row in rows.json]) == (3, [False] * len(PLANNERS))
    assert rows.err == [f"gpumem: {bare_file}: no placement fits 8 bytes, the lowest takes 9 bytes"]
    mixed = cli("pool", net_file, bare_file, "--capacity", "1MiB", "--json")
    assert (mixed.status, [row["feasible"] for row in mixed.json]) == (3, [False, True])
    assert cli("pool", net_file, bare_file, "--capacity", "100%").status == 0
    assert "no" in cli("pool", bare_file, "--capacity", "8").out.split()


def test_one_planner_that_fits_is_enough(cli: Cli, bare_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tall(trace: Trace, *, alignment: int = 1) -> object:
        placed = best_fit(trace, alignment=alignment)
        return type(placed)(placed.offset + 100, placed.height + 100)

    monkeypatch.setitem(PLANNERS, "tall", tall)  # type: ignore[arg-type]
    ran = cli("pool", bare_file, "--planner", "tall,best-fit", "--capacity", "9", "--json")
    assert (ran.status, [row["feasible"] for row in ran.json], ran.err) == (0, [False, True], [])


@pytest.mark.parametrize("name", ["out.csv", "out.json", "out.json.gz"])
def test_out_holds_the_best_placement(cli: Cli, bare_file: Path, tmp_path: Path, name: str) -> None:
    ran = cli("pool", bare_file, "--planner", "all", "--out", tmp_path / name, "--json")
    assert (ran.status, ran.err) == (0, [])
    written, original = load(tmp_path / name), load(bare_file).trace
    assert written.placement is not None
    check.placement(written.trace, written.placement)
    assert written.placement.height == min(row["footprint"] for row in ran.json)
    assert written.trace.load().tolist() == original.load().tolist()
    if name != "out.csv":
        assert written.meta["source"] == "bare.csv"
        assert written.meta["height"] == written.meta["capacity"] == 9


def test_out_of_a_recording_keeps_its_ops(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "vgg16.json.gz"
    cli("pool", bundled_path("vgg16"), "--capacity", "1GiB", "--out", out)
    written, trace = load(out), bundled()
    assert written.placement is not None
    check.placement(written.trace, written.placement)
    assert written.trace.ops.reads.tolist() == trace.ops.reads.tolist()
    assert written.trace.buffers.persistent.tolist() == trace.buffers.persistent.tolist()
    assert written.meta["capacity"] == 2**30 >= written.meta["height"]
    assert written.meta["source"] == "vgg16_cifar_b100.json.gz"


def test_what_does_not_fit_is_not_written(cli: Cli, bare_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    ran = cli("pool", bare_file, "--capacity", "8", "--out", out)
    assert (ran.status, len(ran.err)) == (3, 1)
    assert not out.exists()


def test_an_arc_does_not_go_into_a_csv(cli: Cli, tmp_path: Path) -> None:
    trace = Trace.from_lifetimes([1, 4], [0, 2], [3, 4], n=3)
    write(tmp_path / "arc.json", trace)
    line = cli.refuses("pool", tmp_path / "arc.json", "--out", tmp_path / "out.csv")
    assert line == f"gpumem: error: {tmp_path}/out.csv: buffer 1: [2, 4) crosses the boundary at 3; the CSV has no arcs"
    assert [p.name for p in tmp_path.iterdir()] == ["arc.json"]


# --- info, help ------------------------------------------------------------------------------------------


def test_info_describes_traces(cli: Cli, net_file: Path, bare_file: Path) -> None:
    ran = cli("info", net_file, bare_file)
    assert (ran.status, ran.err) == (0, [])
    first, second = ran.out.split("\n\n")
    assert first.splitlines()[0] == str(net_file)
    assert f"peak load       {PEAK} (24.00 MiB)" in first
    assert "activation 16.00 MiB" in first and "param 4.00 MiB" in first and "input 4.00 MiB" in first
    assert second.splitlines()[0] == str(bare_file)
    assert "peak load       9 (9 B)" in second and "unknown" in second


def test_info_prints_rows_of_json(cli: Cli, net_file: Path, bare_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "75%", "--out", tmp_path / "out")
    rows = cli("info", net_file, bare_file, tmp_path / "out" / "trace.json.gz", "--json").json
    recorded, bare, swapped = rows
    assert recorded["file"] == str(net_file)
    assert (recorded["ops"], recorded["steps"], recorded["buffers"], recorded["persistent"]) == (10, 10, 9, 4)
    assert (recorded["peak_load"], recorded["peak_op"]) == (PEAK, 4)
    assert recorded["at_the_peak"] == {"activation": 16 * MIB, "param": 4 * MIB, "input": 4 * MIB}
    assert (bare["ops"], bare["steps"], bare["streams"], bare["peak_load"]) == (0, 3, [], 9)
    assert swapped["host_buffers"] > 0 and swapped["streams"] == ["compute", "d2h", "h2d"]
    assert swapped["footprint"] <= PEAK * 3 // 4 and swapped["ratio"] >= 1
    assert "footprint" not in recorded


def test_info_counts_what_came_over_the_boundary(cli: Cli, tmp_path: Path) -> None:
    trace = Trace(Buffers.make([1, 4, 2], [0, 2, 1], [3, 4, 2], kind=["a", "b", "c"]), Ops.make([], []), 3)
    write(tmp_path / "arc.json", trace)
    (row,) = cli("info", tmp_path / "arc.json", "--json").json
    assert (row["peak_load"], row["peak_op"], row["wrapping"]) == (5, 0, 1)
    assert row["at_the_peak"] == {"b": 4, "a": 1}


@pytest.mark.parametrize("suite", ["swap", "pool", "tensile"])
def test_help_shows_percent_signs_and_not_the_parser(cli: Cli, suite: str) -> None:
    assert "{" not in cli("bench", suite, "--help").out


def test_help_and_version(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.status, ran.out.strip(), ran.err) == (0, f"gpumem {gpumem.__version__}", [])
    ran = cli("--help")
    assert (ran.status, ran.err) == (0, [])
    assert all(command in ran.out for command in ("plan", "pool", "info"))
    for command, options in {
        "plan": ["--limit", "--load-limit", "--machine", "--planner", "--score", "--pool", "--out", "--json"],
        "pool": [
            "--planner",
            "--allocator",
            "--effort",
            "--seconds",
            "--seed",
            "--capacity",
            "--alignment",
            "--out",
            "--json",
        ],
        "info": ["--json"],
    }.items():
        ran = cli(command, "--help")
        assert (ran.status, ran.err) == (0, [])
        assert all(option in ran.out for option in options)


@pytest.mark.parametrize("command", ["plan", "pool"])
def test_a_long_command_says_what_it_is_at(
    cli: Cli, net_file: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    spoke = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        spoke.set()

    def slow(path: object) -> Loaded:  # until somebody has said something
        assert spoke.wait(60)
        return load(str(path))

    parser()  # which imports the commands: one that is imported later would keep what is patched here
    monkeypatch.setattr("gpumem.cli.common.progress.tell", tell)
    monkeypatch.setattr("gpumem.io.load", slow)
    monkeypatch.setattr("gpumem.cli.common.progress.Progress.__init__.__defaults__", (0.001,))
    assert cli(command, net_file).status == 0
    assert told[0] in ("working", f"{'reading' if command == 'plan' else 'placing'} {net_file}")


def test_progress_says_each_thing_once_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    progress, steps = Progress(2), iter(["one thing", "one thing", "another"])

    class Clock(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout == 2
            text = next(steps, None)
            if text is not None:
                progress(text)
            return text is None

    progress.done = Clock()
    progress._watch()
    assert capsys.readouterr().err == "gpumem: one thing\ngpumem: another\n"
    with Progress() as progress:
        assert not progress.done.is_set()
    assert progress.done.is_set()


class Terminal(io.StringIO):
    """What a terminal gets to see."""

    def isatty(self) -> bool:
        return True

    def shows(self, pattern: str) -> bool:
        end = time.monotonic() + 60
        while not re.search(pattern, self.getvalue()) and time.monotonic() < end:
            time.sleep(0.001)
        return bool(re.search(pattern, self.getvalue()))


def test_progress_on_a_terminal_is_one_line_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(0) as progress:
        for name in progress.over(["vgg16", "[mlp3]"]):  # a name is no markup
            progress(f"{name}: 3 of 4: greedy")
            progress.begin = time.monotonic() - 75
            assert terminal.shows(re.escape(f"{progress.line()} "))
            left = "[34]:.." if name == "vgg16" else "0:[23]."
            assert terminal.shows(f" 1:.., about {left} left")
            tell(f"a line about {name}")
            assert f"a line about {name}\n" in terminal.getvalue()
    shown = terminal.getvalue()
    assert "1 of 2: vgg16: 3 of 4: greedy" in shown and "2 of 2: [mlp3]: 3 of 4: greedy" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("greedy")  # the cursor is there again, the line is not
    assert "\x1b[3" not in shown  # no colours


@pytest.mark.parametrize("kind", ["dumb", "quiet"])
def test_where_no_line_stays_there_are_lines_or_none(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "dumb" if kind == "dumb" else "xterm")
    monkeypatch.setattr(voice, "quiet", kind == "quiet")
    with Progress(0.001) as progress:
        progress("one thing")
        assert kind == "quiet" or terminal.shows("gpumem: one thing\n")
    assert "\x1b" not in terminal.getvalue() and (kind == "dumb" or not terminal.getvalue())


def test_choices_are_names_once_each() -> None:
    table = {"a": 1, "b": 2}
    assert choices("all", table, "--x") == ["a", "b"]
    assert choices("b, a,b", table, "--x") == ["b", "a"]
    with pytest.raises(ValueError, match=r"--x: 'c' is unknown; there are a, b"):
        choices("a,c", table, "--x")


def test_memory_that_runs_out_is_one_line(cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def huge(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gpumem.io.load", huge)
    assert cli.refuses("info", net_file) == "gpumem: error: out of memory"


def test_an_interrupt_is_one_line(cli: Cli, net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem.io.load", interrupted)
    assert cli.refuses("info", net_file, status=130) == "gpumem: interrupted"


def test_the_module_runs_and_its_output_may_be_cut_off(net_file: Path) -> None:
    command = [sys.executable, "-m", "gpumem"]
    env = os.environ | {"PYTHONPATH": str(Path(gpumem.__file__).parents[1])}
    ran = subprocess.run([*command, "info", str(net_file)], capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "peak load" in ran.stdout
    ran = subprocess.run([*command, "info", "/nowhere"], capture_output=True, text=True, check=False, env=env)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "gpumem: error: /nowhere: No such file or directory\n"
    with subprocess.Popen(
        [*command, "info", *[str(net_file)] * 400], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # as `head` does
        assert process.stderr.read() == b""
    assert process.returncode == 141
