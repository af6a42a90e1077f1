"""`gpumem measure`, and `--measured` of the commands that plan: tables that are written, used, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpumem.cli.main import main
from gpumem.execute.latency import calibrate, read_table
from gpumem.io import bundled, read
from tests.conftest import Cli

pytest.importorskip("torch")

FILE = """
import torch

def make(batch=8):
    net = torch.nn.Linear(32, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def step():
        net(torch.ones(batch, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

NETS = {f"b{n}": (lambda batch=n: make(batch)) for n in (4, 8, 32)}
print("a file that talks")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nets") / "net.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def table(file: Path) -> Path:
    path = file.with_name("table.jsonl.gz")
    assert main(["measure", "--ops", str(path), str(file), "--iterations", "3"]) == 0
    return path


def test_it_writes_a_table_of_all_nets(cli: Cli, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    ran = cli("measure", "--ops", path, file, f"{file}:make", "mlp3_b2", "--iterations", "3", "--json")
    assert ran.status == 0
    row, found = json.loads(ran.out), read_table(path)
    nets = ["b4", "b8", "b32", "net.make", "mlp3_b2"]
    assert [each["net"] for each in row["nets"]] == nets == list(found.iterations)
    assert {r.net for r in found.rows} == {*nets} and row["rows"] == len(found.rows)
    assert all(each["sum_ns"] > 0 and each["iteration_ns"] > 0 for each in row["nets"])
    assert found.machine is not None and (found.machine.name, found.machine.flops) == ("cpu", row["flops"])
    assert "gpumem measure" in found.source and "1 thread" in found.source and "torch" in found.source
    assert all(r.sample.signature for r in found.rows if r.sample.reads)


def test_it_prints_what_it_measured(cli: Cli, file: Path, tmp_path: Path) -> None:
    ran = cli("measure", "--ops", tmp_path / "t.jsonl", f"{file}:make", "--iterations", "3")
    first, head, row, last = ran.out.splitlines()
    assert (
        first.startswith("cpu: ")
        and first.endswith(" ns an op")
        and head.split() == ["net", "ops", "types", "iteration", "sum", "of", "ops"]
    )
    assert row.split()[0] == "net.make" and last.endswith("t.jsonl")


def test_a_capture_has_the_durations_of_the_table(cli: Cli, file: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    assert cli("capture", f"{file}:make", "-o", out, "--measured", table).status == 0
    trace, times = read(out), calibrate(read_table(table))
    want = np.rint(times.ops_ns(trace.ops, trace.buffers.size)).astype(int)
    assert trace.ops.duration.tolist() == want.tolist() and (want > 0).all()


@pytest.mark.parametrize("command", ["plan", "fit", "swap"])
def test_plans_rest_on_the_table(cli: Cli, file: Path, table: Path, tmp_path: Path, command: str) -> None:
    what = [f"{file}:make"] if command == "fit" else ["vgg16", "--load-limit", "80%", "--planner", "autoswap"]
    rows = [cli(command, *what, *more, "--json") for more in ([], ["--measured", table])]
    assert [row.status for row in rows] == [0, 0] and rows[0].out != rows[1].out
    if command == "plan":
        vgg, times = bundled("vgg16"), calibrate(read_table(table))
        row = json.loads(rows[1].out)
        assert row["makespan_ns"] == np.rint(times.ops_ns(vgg.ops, vgg.buffers.size)).sum() + row["stalls"]["data"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["measure"], "NET is missing"),
        (["measure", "mlp3"], "--ops is missing"),
        (["measure", "--ops", "x.json", "mlp3"], "--ops: 'x.json' ends in none of .jsonl, .jsonl.gz"),
        (["measure", "--ops", "OUT", "mlp9"], "zoo: 'mlp9' is unknown"),
        (["measure", "--ops", "OUT", "nowhere.py"], "'nowhere.py': no such file"),
        (["measure", "--ops", "OUT", "mlp3", "--device", "gpu"], "--device: 'gpu' is unknown"),
        (["measure", "--ops", "OUT", "mlp3", "--threads", "0"], "--threads: 0 is below 1"),
        (["measure", "--ops", "OUT", "mlp3", "--iterations", "0"], "iterations: 0 is below 1"),
        (["plan", "mlp3", "--measured", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["plan", "mlp3", "--measured", "OLD"], "does not say which machine it was measured on"),
        (["capture", "FILE:make", "-o", "out.json", "--measured", "BAD"], "BAD, line 2"),
        (["capture", "FILE:make", "--compare", "--measured", "OLD"], "--compare: it compares ops"),
    ],
)
def test_what_is_refused_is_one_line(cli: Cli, file: Path, tmp_path: Path, args: list[str], message: str) -> None:
    head = '{"format": "gpumem.execute.latency/1"}\n'
    (tmp_path / "OLD").write_text(
        head + '{"sample": {"name": "x", "reads": [], "writes": []}, "utilisation": 0, "ns": 1}\n'
    )
    (tmp_path / "BAD").write_text(head + '{"sample": 3}\n')
    places = {
        "OUT": tmp_path / "t.jsonl",
        "OLD": tmp_path / "OLD",
        "BAD": tmp_path / "BAD",
        "FILE:make": f"{file}:make",
    }
    assert message in cli.refuses(*[str(places.get(a, a)) for a in args])


def test_a_file_whose_nets_are_none(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("NETS = [1]")
    told = cli.refuses("measure", "--ops", str(tmp_path / "t.jsonl"), str(path))
    assert "NETS is [1]; expected a dict of names to functions that return a step" in told
