"""`gpumem plan`: tables and rows, the files that are written, limits that bind, bind nothing, or are missed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gpumem
from gpumem import check
from gpumem.base.errors import CheckError, NotReached
from gpumem.cli.main import main
from gpumem.io import bundled, bundled_path, load, write
from gpumem.pipeline.report.plot import recorded
from gpumem.pool import PLANNERS
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.plan import Plan
from gpumem.trace import RECOMPUTE, Trace
from tests.conftest import Cli, Ran, tiny_machine
from tests.files import BARE, FILES, PICTURES, snapshot
from tests.nets import GTX, MIB, PEAK, net
from tests.strategies import traces


def test_the_net_is_what_the_tests_below_take_it_for() -> None:
    assert PEAK == (4 + 5 * 4) * MIB
    assert net().n == 10


BY_SCORE = "--planner", "autoswap"
ISSUE_KEYS = {"peak_live_bytes", "peak_live_bytes_after", "footprint", "footprint_after", "overhead", "makespan_ns"}
ISSUE_KEYS |= {"bytes_in", "bytes_out", "stalls"}


def test_plan_prints_a_table(cli: Cli, net_file: Path) -> None:
    ran = cli("plan", net_file, "--limit", "75%")
    assert (ran.status, ran.err) == (0, [])
    assert "net: 10 ops, 9 buffers, on gtx1080ti, pool of 18.00 MiB" in ran.out
    rows = [line.split("  ")[0] for line in ran.out.splitlines() if line]
    assert rows[2:] == [
        "peak live bytes",
        "footprint",
        "fragmentation ratio",
        "iteration (address-aware)",
        "swapped",
        "overhead as planned",
        "stalls",
    ]


def test_plan_prints_json_with_the_keys_of_the_issue(cli: Cli, net_file: Path) -> None:
    ran = cli("plan", net_file, "--limit", "75%", "--json")
    row = ran.json
    assert set(row) >= ISSUE_KEYS
    assert row["peak_live_bytes"] == PEAK
    assert row["footprint"] >= row["peak_live_bytes"]
    assert row["footprint_after"] <= row["limit"] == PEAK * 3 // 4
    assert row["peak_live_bytes_after"] <= row["footprint_after"]
    assert row["bytes_out"] == row["bytes_in"] > 0
    assert row["overhead"] == row["makespan_ns"] / row["makespan_before_ns"] - 1
    assert row["makespan_before_ns"] == 10 * 10**6
    assert set(row["stalls"]) == {"data", "copy", "memory"}
    assert all(isinstance(ns, int) and ns >= 0 for ns in row["stalls"].values())
    assert row["clock"] == "address-aware"


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
        assert row["clock"] == "byte-counting"
        assert row["peak_live_bytes_after"] <= size


def test_a_limit_on_the_load_is_judged_by_the_capacity_clock(cli: Cli, net_file: Path) -> None:
    trace, machine = net(), Machine.named("gtx1080ti")
    row = cli("plan", net_file, "--load-limit", "80%", "--json").json
    assert row["makespan_before_ns"] == simulate(trace, machine).makespan
    assert row["makespan_ns"] <= row["placed_makespan_ns"]


def test_without_a_file_it_is_the_bundled_vgg16(cli: Cli) -> None:
    row = cli("plan", "--load-limit", "70%", "--json").json
    assert row["trace"] == "vgg16_cifar_b100"
    assert row["peak_live_bytes"] == bundled().peak_live_bytes
    assert row["peak_live_bytes_after"] <= row["load_limit"] == bundled().peak_live_bytes * 7 // 10


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
    assert written.trace.live_bytes().tolist() == net().live_bytes().tolist()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--score", name) for name in ("doa", "aoa", "wdoa", "swdoa")]
    + [("--peaks", "all"), ("--peaks", "first"), ("--pool", "first-fit"), ("--pool", "best-fit")]
    + [("--planner", "autoswap"), ("--alignment", "512"), ("--threshold", "2MiB"), ("--machine", "h200")],
)
def test_every_option_plans(cli: Cli, net_file: Path, option: str, value: str) -> None:
    row = cli("plan", net_file, "--limit", "75%", *BY_SCORE, option, value, "--json").json
    assert row["footprint_after"] <= row["limit"]
    assert row["machine"] == (value if option == "--machine" else "gtx1080ti")


def test_a_threshold_above_all_buffers_leaves_nothing_to_swap(cli: Cli, net_file: Path) -> None:
    line = cli.refuses("plan", net_file, "--load-limit", "75%", *BY_SCORE, "--threshold", "5MiB", status=3)
    assert line == (
        "gpumem: not reached: the limit is 18.00 MiB, "
        f"the planner got down to a peak of 24.00 MiB ({24 * MIB} bytes); peaks `all` has more candidates"
    )


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
    assert trace.peak_live_bytes == row["peak_live_bytes_after"]

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
    assert counters == trace.live_bytes().tolist()

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
    limits = (option, 9 * MIB, "--threshold", "2MiB")
    line = cli.refuses("plan", net_file, *BY_SCORE, *limits, "--out", tmp_path, status=3)
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

    monkeypatch.setitem(gpumem.swap.PLANNERS, "search", nothing)  # type: ignore[attr-defined]
    line = cli.refuses("plan", net_file, "--limit", 12 * MIB, status=3)
    reached = f"a pool of 24.00 MiB ({24 * MIB} bytes)"
    assert line == f"gpumem: not reached: the limit is 12.00 MiB, the planner got down to {reached}"


# --- status 2 --------------------------------------------------------------------------------------------


def test_a_bare_instance_cannot_be_planned(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_bytes(BARE)
    line = cli.refuses("plan", tmp_path / "bare.csv", "--limit", "70%")
    assert line == f"gpumem: error: {tmp_path}/bare.csv: a bare instance has no ops to swap between; see gpumem pool"


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
    assert row["peak_live_bytes_after"] <= row["load_limit"] <= alone["load_limit"]
    assert (row["clock"], alone["clock"], alone["limit"]) == ("byte-counting", "byte-counting", None)


def test_durations_of_another_machine_are_pointed_out(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    cli("plan", net_file, "--limit", "100%", "--machine", "v100", "--out", tmp_path / "out")
    ran = cli("plan", tmp_path / "out" / "trace.json.gz", "--limit", "100%", "--machine", "p40")
    assert ran.status == 0
    assert "holds the durations of v100" in ran.err[0]


@pytest.mark.jit
def test_the_cheapest_score_counts(cli: Cli) -> None:
    plan = ("plan", "--limit", "70%", *BY_SCORE, "--pool", "best-fit", "--json")
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
    plan = ("plan", tmp_path / "x.json", "--load-limit", "60%", *BY_SCORE)
    assert cli(*plan, "--json").json["overhead"] is None
    assert "infinite" in cli(*plan).out


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

    path = tmp_path_factory.getbasetemp() / "random.json"
    write(path, trace, machine=tiny_machine().with_(name="gtx1080ti"))  # or a line says whose the durations are
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["plan", str(path), *limit, *BY_SCORE, "--threshold", "1", "--alignment", "1", "--json"])
    ran = Ran(status, out.getvalue(), err.getvalue())
    if status == 0:
        assert set(ran.json) >= ISSUE_KEYS and ran.err == []
    else:
        assert (ran.out, len(ran.err)) == ("", 1)
        assert status == (3 if trace.peak_live_bytes > 1 else 2)


@pytest.mark.jit
def test_what_fits_already_is_said_in_one_line(cli: Cli) -> None:
    ran = cli("plan", "mlp3", "--limit", "400MiB")
    assert (ran.status, ran.err) == (0, [])
    assert ran.out.endswith("\n\nfits already, without a swap: its pool takes 231.70 MiB of 400.00 MiB\n")
    ran = cli("swap", "mlp3", "--load-limit", "100%", "--planner", "autoswap")
    assert ran.out.endswith("\n\nfits already, without a swap: its load takes 231.70 MiB of 231.70 MiB\n")
    assert "without a swap" not in cli("plan", "mlp3", "--load-limit", "95%").out


@pytest.mark.jit
def test_a_limit_that_is_missed_by_bytes_is_told_in_bytes(cli: Cli) -> None:
    told = "without a swap its pool takes 231.70 MiB (242952196 bytes), 900 bytes more than the limit\n"
    assert cli("plan", "mlp3", "--limit", "100%").out.endswith(f"\n\n{told}")
    assert cli("swap", "mlp3", "--limit", "100%", "--planner", "autoswap").out.endswith(f"\n\n{told}")
    ran = cli("plan", "mlp3", "--load-limit", "242951295", *BY_SCORE, "--threshold", "1GiB")  # no buffer is that large
    assert ran.status == 3
    assert "the limit is 231.70 MiB (242951295 bytes), the planner got down to a peak of 231.70 MiB" in ran.err[0]


def test_a_plan_may_come_from_any_planner(cli: Cli, net_file: Path, table: object) -> None:
    row = cli("plan", net_file, "--planner", "seeded", "--load-limit", "75%", "--json").json
    assert (row["planner"], row["score"]) == ("seeded", "")
    assert "gaps by seeded:" in cli("plan", net_file, "--planner", "seeded", "--load-limit", "75%").out
    assert "gaps by swdoa:" in cli("plan", net_file, *BY_SCORE, "--score", "swdoa", "--load-limit", "75%").out


@pytest.mark.jit
def test_a_plan_that_recomputes_says_so_and_is_drawn(cli: Cli, tmp_path: Path) -> None:
    path, out = bundled_path("resnet18"), tmp_path / "out"
    ran = cli("plan", path, "--planner", "checkpoint", "--load-limit", "80%", "--out", out)
    trace = load(path).trace
    swapped = checkpoint(trace, GTX, trace.peak_live_bytes * 8 // 10).apply(trace)
    told = re.search(r"\nrecomputed {16}(\d+) gaps by checkpoint: (\d+) ops, ([\d.]+) ms an iteration\n", ran.out)
    row = cli("plan", path, "--planner", "checkpoint", "--load-limit", "80%", "--json").json
    assert told and list(map(int, told.groups()[:2])) == [row["recomputed"], row["recomputed_ops"]]
    assert told[3] == f"{row['recompute_ns'] / 1e6:.2f}" and row["held"] == 0
    assert row["recomputed_ops"] == swapped.n - trace.n > 0
    assert row["recompute_ns"] == GTX.durations(swapped)[swapped.ops.role == RECOMPUTE].sum()
    assert len(recorded(swapped)) == len(recorded(trace)) == trace.n  # the pictures' op axis


def test_what_it_costs_where_durations_are_off(cli: Cli, net_file: Path) -> None:
    ran = cli("plan", net_file, "--limit", "75%", "--link-rate", "0.1")
    assert ran.status == 0 and re.search(
        "as it turns out +median [0-9.]+%, 95th percentile [0-9.]+% of 100 draws", ran.out
    )
    row = json.loads(cli("plan", net_file, "--limit", "75%", "--link-rate", "0.1", "--json").out)
    assert row["overhead_p95"] >= row["overhead_median"] > row["overhead"] and row["uncertainty"]["link"] == 0.1
    assert "draws" not in json.loads(cli("plan", net_file, "--limit", "75%", "--json").out)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--spread", "4"), "--spread: 4.0 is not in [0, 3]"),
        (("--link-rate", "0"), "--link-rate: 0.0 is not in (0, 1]"),
        (("--link-used", "1"), "--link-used: 1.0 is not in [0, 1)"),
        (("--bias", "nan"), "--bias: nan is not finite and > 0"),
        (("--robust", "-1"), "robust: -1.0 is not in [0, 3]"),
        (("--planner", "tensile", "--robust", "0.3"), "--robust: no use to tensile"),
    ],
)
def test_durations_that_cannot_be(cli: Cli, net_file: Path, words: tuple[str, ...], told: str) -> None:
    ran = cli("plan", net_file, "--limit", "75%", *words)
    assert ran.status == 2 and told in ran.err[-1] and not ran.out
