"""Will it fit: the answer, the largest batches, the plan, what is written, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpumem
from gpumem import Machine, Plan, check, io
from gpumem.base.errors import Infeasible, NotReached
from gpumem.pipeline.compare_planners import BEST, QUICK
from gpumem.swap.facts.limits import fits
from gpumem.swap.planners import PLANNERS
from gpumem.torch import Fit, WorkloadError, capture, fit
from gpumem.torch.fit_report import SECONDS
from gpumem.trace.batch import MOST, batch_of, largest, place_of, step_at
from tests.cli.planners import breaks
from tests.conftest import Cli
from tests.files import snapshot

MIB = 2**20
FILE = '''
import torch
from torch import nn

def make(batch=64, width=512):
    """Layers that hold more than their weights."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(6)], nn.Linear(width, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    def step():
        optimizer.zero_grad()
        net(torch.randn(batch, width)).sum().backward()
        optimizer.step()
    return step

def fixed():
    return make(batch=8)

def keeper():
    net, losses = nn.Linear(4, 1), []
    def step():
        losses.append(net(torch.randn(2, 4)).sum())
        losses[-1].backward()
        losses[-1] = losses[-1].detach()
    return step

def few(batch):
    if batch > 100:
        raise RuntimeError("there are 100 samples")
    return make(batch)

def picks():
    """What it trains on depends on values, and it talks."""
    net = nn.Linear(4, 1)
    def step():
        x = torch.ones(8, 4)
        print("picking")
        net(x[net(x)[:, 0] < 5]).sum().backward()
    return step

def fails():
    raise RuntimeError("no data")

def ends():
    raise SystemExit(3)

def nothing():
    return lambda: None

def doubles():
    """One op, which touches all there is."""
    w = torch.ones(2**16)
    return lambda: w.mul_(2)
'''


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with steps. It is loaded as the module `train`; pages have files of that name too, so it goes again."""
    file = tmp_path_factory.mktemp("workload") / "train.py"
    file.write_text(FILE)
    yield file
    sys.modules.pop("train", None)


@pytest.fixture(scope="module")
def make(train: Path) -> Any:
    from gpumem.torch import load

    return load(str(train))


@pytest.fixture
def card() -> Machine:
    """A small fast card, on which copies take about as long as matrices of these nets."""
    return Machine.named("rtx4090").with_(name="card", capacity=64 * MIB, reserved=8 * MIB, flops=2e12)


def test_a_step_that_fits_says_what_it_takes(make: Any, card: Machine) -> None:
    found = fit(make, card, batch=64)
    assert found.fits and found.fits_planned and found.planned is None and found.limit == 56 * MIB
    trace = capture(make, batch=64)
    assert found.need.live == trace.peak_live_bytes == sum(size for _, size in found.need.kinds)
    assert found.need.live <= found.need.reserved == found.need.tensors  # nothing here is a convolution
    assert found.makespan == gpumem.simulator.simulate(trace, card).makespan
    assert repr(found).startswith("Fit(make at batch 64 on card: fits yes, needs ")
    assert "8.00 MiB  beside the limit, as the machine says" in found.report()
    assert found.next("train.py:make") == "gpumem fit train.py:make --machine card --largest"


def test_a_plan_makes_a_step_fit_and_says_whose_tensors_move(make: Any, card: Machine) -> None:
    found = fit(make, card, batch=4096, overhead="80%", planner=["tensile", "capuchin"], seconds=120)
    planned = found.planned
    assert not found.fits and found.fits_planned and planned is not None
    assert planned.placement.height <= planned.pool == found.limit == 56 * MIB < found.need.reserved
    assert 0 <= planned.overhead <= 0.8 and not planned.checked.left_out
    check.placement(planned.trace, planned.placement)
    check.data_flow(found.trace, planned.trace)
    row = found.row()
    again = {d.buffer for d in planned.plan.decisions}
    assert sum(part["tensors"] for part in row["modules"]) >= len(again) > 0
    assert {part["module"] for part in row["modules"]} <= {f"{k}.{m}" for k in range(6) for m in (0, 1)} | {
        "6",
        "(input)",
        "(gradient)",
    }
    assert all("forward" in part["when"] or "optimizer" in part["when"] for part in row["modules"])
    assert json.loads(json.dumps(row))["plan"]["overhead"] == planned.overhead
    told = "gpumem fit t.py:make --machine card --batch 4096 --overhead 80% --seconds 120 --out planned"
    assert found.next("t.py:make") == told


def test_what_no_plan_can_do_names_the_least_limit_that_would_do(make: Any, card: Machine) -> None:
    found = fit(make, card, batch=512, limit="12MiB", planner="capuchin", seconds=120)
    assert not found.fits_planned and found.least is not None and found.least.pool is not None
    assert found.least.placement.height <= found.least.pool
    again = fit(make, card, batch=512, limit=found.least.pool, planner="capuchin", seconds=120)
    assert again.fits_planned
    typed = f"{found.least.pool // MIB}MiB"
    assert f"the least limit found is {typed}" in found.answer()
    command = "gpumem fit t.py:make --machine card --batch 512"
    assert found.next("t.py:make") == f"{command} --limit {typed} --seconds 120"
    short = found.with_(seconds=4.0, needs=0)  # as if it were not proved that there is none
    assert "in 4 s; try --seconds 32" in short.answer()
    assert short.next("t.py:make") == f"{command} --limit 12MiB --seconds 32"
    assert "--limit" in short.with_(needs=13 * MIB).next("t.py:make")


def test_it_is_what_plan_makes_of_it_in_the_same_seconds(
    make: Any, card: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, the planner is `search`, and has all of the time; where any plan will do, quick ones come first."""
    asked = list[tuple[str, float]]()

    def noted(name: str) -> Any:
        def planner(trace: Any, machine: Machine, limit: int, *, seconds: float | None = None) -> Plan:
            asked.append((name, seconds or 0.0))
            raise NotReached(trace.peak_live_bytes, limit)

        return planner

    for name in (*QUICK, *BEST):
        monkeypatch.setitem(PLANNERS, name, noted(name))
    trace = fit(make, card, batch=4096).trace
    first, rest = asked[0], asked[1:]
    assert first[0] == "search" and rest[0][0] == "tensile" and {name for name, _ in rest} == {*QUICK, *BEST}
    asked.clear()
    with pytest.raises(NotReached):
        gpumem.plan(trace, card, pool=56 * MIB, planner="search", seconds=SECONDS)
    assert first[1] == pytest.approx(asked[0][1], rel=0.1)


def test_a_planner_that_fails_costs_its_own_row(cli: Cli, train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANNERS, "tensile", breaks)
    told = "gpumem: tensile: failed: ZeroDivisionError: division by zero; --traceback shows where"
    for batch, limit, found in ((8192, "64MiB", "plan"), (512, "12MiB", "least_limit")):
        words = ["fit", f"{train}:make", "--batch", batch, "--limit", limit, "--planner", "tensile,capuchin"]
        ran = cli(*words, "--json")
        assert ran.status == 1 and told in ran.err and ran.json[found] is not None
        assert ran.json["tried"][0]["why"] == "failed: ZeroDivisionError: division by zero"
    ran = cli(*words, "--traceback")
    assert ran.status == 1 and any("in breaks" in line for line in ran.err) and "tensile: failed: Zero" in ran.out


def test_a_limit_is_a_part_of_the_peak_load_and_at_most_what_the_machine_has(make: Any, card: Machine) -> None:
    assert fit(make, card, limit="100%", seconds=3).limit == capture(make).peak_live_bytes
    for options, why in (
        ({"limit": "57MiB"}, "limit: 57.00 MiB is more than a card has: 56.00 MiB beside a context of 8.00 MiB"),
        ({"limit": "much"}, "limit: 'much' is not an amount"),
        ({"overhead": "10"}, "overhead: '10' is 1000%; did you mean '10%'?"),
        ({"planner": "magic"}, "planner: 'magic' is unknown"),
        ({"seconds": 0}, "seconds: 0 must be positive"),
        ({"batch": 0}, "batch: 0 is below 1"),
        ({"batch": 8, "largest": True}, "batch: 8: with largest, batches are tried"),
        ({"limit": "50%", "largest": True}, "limit: '50%' is a part of one batch's peak; with largest, write bytes"),
    ):
        with pytest.raises(ValueError, match=".*".join(map(str, why.split()[:3]))) as found:
            fit(make, card, **options)
        assert str(found.value).startswith(why)


def test_the_largest_batches_fit_and_the_next_ones_do_not(make: Any, card: Machine) -> None:
    planner = ["tensile", "checkpoint"]
    found = fit(make, card, largest=True, overhead="30%", planner=planner)
    assert found.largest is not None and found.batch == found.largest.planned > found.largest.unplanned > 64
    assert found.planned is not None and found.planned.overhead <= 0.3
    plain = found.largest.unplanned
    assert fit(make, card, batch=plain, planner=planner).fits
    assert not fit(make, card, batch=plain + step_at(plain), planner=planner).fits
    above = found.batch + step_at(found.batch)
    assert not fit(make, card, batch=above, planner=planner, overhead="30%").fits_planned
    assert f"tried in steps of {step_at(plain)}" in found.report()
    assert found.row()["largest"] == {"unplanned": plain, "planned": found.batch}


def test_a_batch_at_which_the_step_fails_is_too_large(train: Path, card: Machine) -> None:
    from gpumem.torch import load

    found = fit(load(f"{train}:few"), card.with_(capacity=36 * MIB), largest=True, planner="capuchin", seconds=1)
    assert found.largest is not None and found.largest.failed
    small = fit(load(f"{train}:few"), card.with_(capacity=10 * MIB), largest=True, planner="capuchin", seconds=1)
    assert small.largest is not None and (small.largest.planned, small.batch, small.fits_planned) == (0, 1, False)
    assert "batch 128: few: RuntimeError: there are 100 samples" in found.largest.failed[0]
    assert found.largest.failed[0] in found.report() and found.largest.planned == found.largest.unplanned == 100
    with pytest.raises(WorkloadError, match="fixed: takes no batch to make larger"):
        fit(load(f"{train}:fixed"), card, largest=True)


@pytest.mark.parametrize("most", [0, 1, 2, 31, 32, 63, 64, 65, 100, 1000, 12345, MOST, 10**9])
@pytest.mark.parametrize("start", [1, 32, 64, 2000, 10**7])
def test_the_largest_of_a_grid(most: int, start: int) -> None:
    asked = []

    def holds(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    found = largest(holds, start)
    assert found == (batch_of(place_of(min(most, MOST))) if most else 0)
    assert len(asked) == len({*asked}) < 60


def test_the_grid_is_fine_and_its_places_are_those_of_its_batches() -> None:
    batches = np.array([batch_of(k) for k in range(1, place_of(MOST) + 1)])
    assert batches[-1] == MOST and [place_of(b) for b in batches.tolist()] == [*range(1, len(batches) + 1)]
    steps = np.diff(batches)
    assert (steps == [step_at(b) for b in batches[:-1].tolist()]).all() and (steps <= 1 + batches[:-1] / 32).all()


def test_fit_on_the_command_line(cli: Cli, train: Path, tmp_path: Path) -> None:
    words = ["fit", f"{train}:make", "--batch", 8192, "--limit", "64MiB", "--planner", "tensile,capuchin"]
    ran = cli(*words, "--out", tmp_path / "planned")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith("train at batch 8192 does not fit: needs ") and "the limit is 64.00 MiB" in lines[0]
    assert lines[-1] == f'next: with gpumem.torch.managed("64MiB", plan="{tmp_path / "planned"}"): ...'
    written = {path.name for path in (tmp_path / "planned").iterdir()}
    assert {"report.txt", "captured.json.gz", "plan.json", "trace.json.gz", "timeline.json"} <= written
    assert (tmp_path / "planned" / "report.txt").read_text().splitlines() == lines[:-2]
    plan = Plan.from_json((tmp_path / "planned" / "plan.json").read_text())
    before = io.read(tmp_path / "planned" / "captured.json.gz")
    after = io.load(tmp_path / "planned" / "trace.json.gz")
    assert plan.apply(before).live_bytes().tolist() == after.trace.live_bytes().tolist()
    assert after.placement is not None and after.placement.height <= 64 * MIB
    row = cli(*words, "--json").json
    assert row["batch"] == 8192 and not row["fits"] and row["plan"]["footprint_after"] <= 64 * MIB


def test_a_limit_that_nothing_reaches_ends_with_3_and_says_the_least(cli: Cli, train: Path) -> None:
    ran = cli("fit", f"{train}:make", "--limit", "2MiB", "--planner", "capuchin", "--seconds", 2)
    assert ran.status == 3 and len(ran.err) == 1
    assert "no plan reaches that: some op holds " in ran.err[0] and "; the least limit found is " in ran.err[0]
    assert ran.err[0] == f"gpumem: {ran.out.splitlines()[0]}"


def test_capture_asks_next_for_no_less_than_an_op_holds(cli: Cli, train: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    command = cli("capture", f"{train}:doubles", "-o", out).out.splitlines()[-1]
    assert command == f"next: gpumem plan {out} --machine rtx4090"
    assert cli(*command.split()[2:]).status == 0
    with pytest.raises(Infeasible):
        fits(io.read(out), io.read(out).peak_live_bytes * 90 // 100)


def test_capture_writes_a_trace_that_other_commands_read(cli: Cli, train: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    ran = cli("capture", f"{train}:make", "-o", out, "--batch", 8192)
    assert ran.status == 0 and not ran.err
    assert ran.out.splitlines()[-1] == f"next: gpumem plan {out} --limit 70% --machine rtx4090"
    mine = capture(load_make(train), batch=8192)
    read = io.read(out)
    assert (read.name, read.n, read.live_bytes().tolist()) == ("train", mine.n, mine.live_bytes().tolist())
    assert read.ops.flops.tolist() == mine.ops.flops.tolist() and read.ops.module == mine.ops.module
    assert cli("info", out, "--json").json[0]["peak_live_bytes"] == mine.peak_live_bytes
    row = cli("capture", f"{train}:make", "-o", out, "--batch", 8192, "--json").json
    assert (row["ops"], row["peak_live_bytes"], row["kept"], row["batch"]) == (mine.n, mine.peak_live_bytes, 0, 8192)


def load_make(train: Path) -> Any:
    from gpumem.torch import load

    return load(str(train))


def test_what_a_step_keeps_is_told(cli: Cli, train: Path, tmp_path: Path) -> None:
    ran = cli("capture", f"{train}:keeper", "-o", tmp_path / "x.json")
    assert ran.status == 0 and "train.keeper: each iteration keeps 4 B for good" in ran.err[0]
    assert "kept            4 B more in each iteration" in ran.out
    assert not cli("fit", f"{train}:keeper", "--quiet").err


@pytest.mark.parametrize("command", [["fit"], ["capture", "-o", "OUT/x.json"]])
def test_what_is_wrong_with_a_workload_is_one_line(cli: Cli, train: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    (script := tmp_path / "script.py").write_text("width = 3")
    for words, why in (
        ([f"{train}:make", "--batch", "0"], "batch: 0 is below 1"),
        ([f"{train}:maker"], "no function 'maker'; did you mean 'make'?"),
        ([script], "no function 'make'; it defines no function (a whole script is --script script.py)"),
        ([f"{train}:fixed", "--batch", "4"], "fixed: takes no batch, got batch=4; write def make(batch=...)"),
        ([f"{train}:fails"], f"fails: RuntimeError: no data ({train}, line "),
        ([f"{train}:ends"], f"ends: SystemExit: 3 ({train}, line "),
        ([f"{train}:few"], "few: has no batch of its own; say which (--batch N)"),
        ([f"{train}:nothing"], "iteration 0: no op ran on meta"),
        ([tmp_path / "none.py"], "no such file; expected FILE.py:make"),
        ([tmp_path], "not a Python file; expected FILE.py:make"),
        ([tmp_path / "broken.py"], "broken.py: ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ):
        line = cli.refuses(command[0], *words, *[word.replace("OUT", str(tmp_path)) for word in command[1:]])
        assert why in line and line.startswith("gpumem: error: ")
    assert sorted(snapshot(tmp_path)) == ["broken.py", "script.py"]


def test_a_step_that_needs_values_is_captured_on_the_host_and_may_talk(cli: Cli, train: Path) -> None:
    line = cli("fit", f"{train}:picks").err[-1]
    assert "depends on what the net computes" in line and "device='cpu'" in line
    ran = cli("fit", f"{train}:picks", "--device", "cpu", "--json")
    assert ran.json["fits"] and ran.err == ["picking"] * 3
    last = cli("fit", f"{train}:picks", "--device", "cpu").out.splitlines()[-1]
    assert last == f"next: gpumem capture {train}:picks --device cpu -o trace.json.gz"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_cuda_without_cuda_is_one_line(cli: Cli, train: Path, tmp_path: Path) -> None:
    line = cli.refuses("capture", f"{train}:make", "-o", tmp_path / "x.json", "--device", "cuda")
    assert line == "gpumem: error: device: 'cuda': PyTorch sees no CUDA device here; 'meta' needs none"


def test_a_file_imports_from_its_own_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a_model_of_mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(2, 2)")
    (tmp_path / "train.py").write_text(
        "import torch\nfrom a_model_of_mine import net\ndef make():\n"
        "    return lambda n=net(): n(torch.ones(1, 2)).sum().backward()"
    )
    assert cli("capture", tmp_path / "train.py", "-o", tmp_path / "x.json").status == 0


def test_an_answer_is_a_row_and_shows_itself(make: Any, card: Machine) -> None:
    found = fit(make, card, batch=8)
    assert isinstance(found, Fit) and "<table>" in found._repr_html_()
    assert found.row()["reserved"] == found.need.reserved and found.row()["plan"] is None
