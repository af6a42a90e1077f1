"""`gpumem jobs` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.io import bundled
from gpumem.jobs import PLANNERS, separately
from gpumem.simulator.machine import Machine
from gpumem.swap import Plan, Task, heuristic
from gpumem.trace import Trace
from tests.conftest import Cli

GTX = Machine.named("gtx1080ti")


def test_jobs_share_a_gpu_within_the_limit(cli: Cli) -> None:
    peak = bundled("resnet18").peak_live_bytes
    row = cli("jobs", "resnet18", "resnet18", "--limit", "80%", "--iterations", "12", "--json").json
    assert row["capacity"] == 2 * peak * 80 // 100 and row["planner"] == "tensile"
    assert row["together"]["peak"] <= row["capacity"] < row["together"]["peak_unmanaged"]
    first, second = row["jobs"]
    assert (first["job"], second["job"]) == ("resnet18_cifar_b100", "resnet18_cifar_b100#2")
    for job in row["jobs"]:
        assert job["peak"] <= job["budget"] and job["iterations"] == 12 and job["refused"] == 0
        assert job["msr"] > 0 and job["eor"] < 0.2
    assert row["together"]["msr"] == pytest.approx(1 - (first["peak"] + second["peak"]) / (2 * peak))


def test_the_table_says_who_was_planned_and_what_it_costs(cli: Cli) -> None:
    ran = cli("jobs", "mlp3", "mlp3", "--arrive", "0,2ms", "--iterations", "3,2", "--slowdown", "0")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0] == "2 jobs by tensile on rtx2080ti, limit of 11.00 GiB"
    assert [line.split()[0] for line in lines[3:6]] == ["mlp3_b128_sgd", "mlp3_b128_sgd#2", "together"]
    assert "Plans were made anew" in lines[-1]


def test_without_a_limit_jobs_share_what_the_machine_has_available(cli: Cli, tmp_path: Path) -> None:
    path, link = tmp_path / "card.json", {"latency_ns": 9000, "ns_per_byte": 0.1}
    card = {"name": "card", "capacity": 2**33, "reserved": 2**29, "out": link, "into": link}
    path.write_text(json.dumps(card | {"flops": 1e13, "bandwidth": 5e11}))
    ran = cli("jobs", "mlp3", "--machine", path, "--iterations", "2", "--planner", "none")
    assert ran.out.splitlines()[0] == "1 jobs by none on card, limit of 7.50 GiB"


def test_the_log_is_written_line_by_line(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert cli("jobs", "mlp3", "--iterations", "2", "--log", log).status == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [events[0]["kind"], events[-1]["kind"]] == ["arrive", "leave"]
    assert sum(e["kind"] == "start" for e in events) == 2 * bundled("mlp3").n
    assert list(tmp_path.iterdir()) == [log]


def test_a_job_that_never_fits_is_refused(cli: Cli) -> None:
    ran = cli("jobs", "mlp3", "--limit", "20%", "--iterations", "2", "--json")
    assert ran.status == 3 and ran.json["jobs"][0]["refused"] > ran.json["capacity"]
    assert "refused: the limit is" in ran.err[-1] and "its plan got down to" in ran.err[-1]


def test_a_newcomer_waits_until_there_is_room(cli: Cli) -> None:
    ran = cli("jobs", "mlp3", "mlp3", "--limit", "60%", "--iterations", "3", "--arrive", "0,1ms", "--json")
    first, second = ran.json["jobs"]
    assert ran.status == 0 and second["arrive"] == 1_000_000 and second["launch"] == first["leave"]


def test_a_planner_that_fails_for_one_job_leaves_that_job_as_it_is(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def picky(trace: Trace, machine: Machine, limit: int) -> Plan:
        if trace.name.startswith("resnet18"):
            raise ZeroDivisionError("division by zero")
        return heuristic(trace, machine, limit)

    monkeypatch.setitem(PLANNERS, "picky", separately(picky))
    words = ["jobs", "resnet18", "mlp3", "mlp3", "--limit", "90%", "--iterations", "3", "--planner", "picky"]
    ran = cli(*words, "--json")
    broken, *others = ran.json["jobs"]
    assert ran.status == 1 and broken["error"] == "ZeroDivisionError: division by zero"
    assert [job["iterations"] for job in ran.json["jobs"]] == [3, 3, 3]
    assert broken["budget"] == broken["peak_live_bytes"] and not any("error" in job for job in others)
    told = "gpumem: resnet18_cifar_b100: picky: failed: ZeroDivisionError: division by zero; --traceback shows where"
    assert [line.startswith(told) for line in ran.err] == [True]
    ran = cli(*words, "--traceback")
    assert ran.status == 1 and ran.err[0].startswith("Traceback") and len(ran.out.splitlines()) > 6
    with pytest.raises(ZeroDivisionError):  # where nobody is told
        separately(picky)([Task(bundled("resnet18"), GTX.durations(bundled("resnet18")))], GTX, 10)


@pytest.mark.parametrize("planner", ["none", "capuchin", "vdnn-all", "heuristic"])
def test_other_planners_under_the_same_conditions(cli: Cli, planner: str) -> None:
    row = cli(
        "jobs", "resnet18", "resnet18", "--limit", "90%", "--iterations", "6", "--planner", planner, "--json"
    ).json
    assert row["together"]["peak"] <= row["capacity"]
    if planner == "none":  # one after the other
        assert row["jobs"][1]["launch"] >= row["jobs"][0]["leave"] and row["together"]["msr"] == 0
    else:
        assert row["together"]["msr"] > 0.05


def test_options_of_the_schedule(cli: Cli) -> None:
    def msr(*options: str) -> float:
        row = cli("jobs", "resnet18", "--least", "--iterations", "6", *options, "--json").json
        return float(row["together"]["msr"])

    whole = msr()
    assert whole > 0.4 and msr("--ratio", "0") == 0 and 0 < msr("--ratio", "0.02") < whole
    assert msr("--half-duplex") < whole and msr("--activity") == pytest.approx(whole, abs=0.02)
    assert msr("--link", "job") == msr("--no-rest") == pytest.approx(whole, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "x"], "--limit: 'x' is not an amount"),
        (["--arrive", "soon"], "--arrive: 'soon' is not a time; write 20us, 1.5ms, 2s or nanoseconds"),
        (["--arrive", "0,1,2"], "--arrive: 3 values for 1 jobs"),
        (["--arrive", "1e9"], "--arrive: '1e9' is not a time"),
        (["--leave", "0", "--arrive", "5"], "leaves at 0 ns, before it arrives at 5 ns"),
        (["--iterations", "0"], "--iterations: '0' is not a number of iterations from 1 to a million"),
        (["--iterations", "two"], "--iterations: 'two' is not a number"),
        (["--ratio", "2"], "--ratio: 2.0 is not in [0, 1]"),
        (["--ratio", "nan"], "--ratio: nan is not in [0, 1]"),
        (["--ratio", "high"], "--ratio: 'high' is not a number"),
        (["--slowdown", "-1"], "--slowdown: -1.0 is not finite and >= 0"),
        (["--slowdown", "inf"], "--slowdown: inf is not finite"),
        (["--threshold", "nan"], "--threshold: nan is not finite"),
        (["--planner", "best"], "--planner: 'best' is unknown; there are tensile, none"),
        (["--planner", "capuchin", "--least"], "--least: no use to capuchin"),
        (["--planner", "none", "--no-rest"], "--no-rest: no use to none"),
        (["--planner", "none", "--trace", "a.json"], "--trace: no use to none; it is an option of waterwave, waterw"),
        (["--priority", "2"], "--priority: no use to tensile; it is an option of waterwave, temporal"),
        (["--planner", "waterwave-s", "--split", "1"], "--split: no use to waterwave-s; it is an option of waterwave"),
        (["--link", "wire"], "link: 'wire' is unknown; there are global, job"),
        (["--accounting", "mine"], "accounting: 'mine' is unknown"),
        (["--machine", "none"], "machine: 'none' is unknown"),
        (["--log", "/nowhere/at/all.jsonl"], "/nowhere/at/all.jsonl: "),
    ],
)
def test_bad_input_is_one_line(cli: Cli, options: list[str], message: str) -> None:
    assert message in cli.refuses("jobs", "mlp3", "--iterations", "2", *options)


def test_a_missing_file_is_one_line(cli: Cli) -> None:
    assert "no-such-trace" in cli.refuses("jobs", "no-such-trace.json.gz")


def test_jobs_have_hosts(cli: Cli) -> None:
    """At 1 ms of host an op, which outlasts every kernel, an iteration takes that for each op, and the last kernel."""
    trace = bundled("mlp3")
    ran = cli("jobs", "mlp3", "--host-ns", 1e6, "--iterations", "2", "--planner", "none", "--json")
    last = int(Machine.named("rtx2080ti").durations(trace)[-1])
    assert ran.json["jobs"][0]["iteration_ns"] == trace.n * 1e6 + last


def test_wrong_durations_and_how_they_are_made_up_for(cli: Cli) -> None:
    def extra(*options: str) -> list[float]:
        row = cli("jobs", "vgg16", "--limit", "80%", "--spread", "0.6", "--seed", "1", *options, "--json").json
        assert row["uncertainty"]["spread"] == 0.6
        return [turn["eor"] for turn in row["iterations"]]

    by_sum, by_windows = extra(), extra("--replan", "windows")
    assert by_sum[0] == by_windows[0] > 0.02 and by_sum[-1] > 0.01 > by_windows[-1]
    assert "passive swap-ins" in cli("jobs", "mlp3", "--noise", "0.1").out
    assert "iterations" not in cli("jobs", "mlp3", "--json").json


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--link-rate", "2"], "--link-rate: 2.0 is not in (0, 1]"),
        (["--noise", "-1"], "--noise: -1.0 is not in [0, 3]"),
        (["--seed", "-1"], "--seed: -1 is below 0"),
        (["--replan", "often"], "--replan: 'often' is unknown"),
        (["--replan", "windows", "--threshold", "1"], "--threshold: no use to --replan windows"),
        (["--late", "0.1"], "--late: no use to --replan sum"),
        (["--planner", "temporal", "--spread", "0.1"], "--planner: temporal runs jobs by their estimates"),
    ],
)
def test_bad_uncertainty_is_one_line(cli: Cli, options: list[str], message: str) -> None:
    assert message in cli.refuses("jobs", "mlp3", *options)
