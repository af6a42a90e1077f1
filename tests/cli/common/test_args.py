"""Machines and the folder of --out, which several commands take: good ones do, and each bad one is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.swap.plan import Plan
from tests.conftest import Cli
from tests.files import FILES, PICTURES, full_disk, snapshot
from tests.nets import MIB


def test_a_machine_may_be_a_file(cli: Cli, net_file: Path, tmp_path: Path) -> None:
    link = {"latency_ns": 0, "ns_per_byte": 0}
    description = {"name": "mine", "capacity": 18 * MIB, "out": link, "into": link, "flops": 1, "bandwidth": 1}
    (tmp_path / "mine.json").write_text(json.dumps(description))
    row = cli("plan", net_file, "--machine", tmp_path / "mine.json", "--json").json
    assert (row["machine"], row["limit"]) == ("mine", 18 * MIB)  # what the machine has is the limit
    assert row["footprint_after"] <= 18 * MIB


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
    assert line.startswith("gpumem: error: machine 'gtx1080ti': to launch ")
    assert line.endswith(" ops takes too long to count in ns")


def test_the_host_is_on_where_its_time_is_given(cli: Cli, net_file: Path) -> None:
    off, on = (cli("plan", net_file, "--limit", "75%", "--json", *more).json for more in ([], ["--host-ns", "1e8"]))
    assert "host" not in off["stalls"] and on["stalls"]["host"] > 0
    assert on["makespan_before_ns"] >= 1e8 * on["ops"] > off["makespan_before_ns"]
