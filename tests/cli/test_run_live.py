"""`gpumem run --live`: on demand, then planned, with the bytes of the native run; and the picture of its start."""

from __future__ import annotations

import json
from typing import Any

import pytest
from matplotlib.figure import Figure

from gpumem.cli import doctor
from gpumem.cli.main import main
from gpumem.pipeline.report import first_iterations
from gpumem.runtime import InMemory, Iteration, LiveBlock, LogEntry
from tests import fake_cuda
from tests.on_fake_driver import needs_kernels

pytestmark = pytest.mark.jit


def live(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["run", *arguments[:1], "--live", *arguments[1:]])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("planner", ["autoswap", "heuristic", "on-demand-nonblocking"])
@pytest.mark.parametrize("model", ["mlp", "cnn-norm"])
def test_on_demand_and_then_planned(capsys: pytest.CaptureFixture[str], model: str, planner: str) -> None:
    arguments = [model, "--batch", "64", "--limit", "85%", "--iterations", "6", "--device", "emulate", "--json"]
    status, out, _ = live(capsys, *arguments, "--planner", planner)
    row = json.loads(out)
    assert status == 0 and row["identical"] and row["compared"] > 20 and row["differing"] == []
    assert row["peak"] <= row["limit"] < row["peak_native"] and row["planned_peak"] <= row["limit"]
    assert [x["state"] for x in row["rows"][:5]] == ["on demand"] * 3 + ["planned"] * 2 and row["planned_from"] == 3
    before, planned = row["rows"][2], row["rows"][4]
    assert before["ops"] == planned["ops"] == row["ops"] and before["misses"] > 0 == planned["misses"]
    assert before["alone_ns"] == planned["alone_ns"] and planned["overhead"] >= 0
    assert before["overhead"] > planned["overhead"] or planner.startswith("on-demand")
    assert sum(x["ops"] for x in row["rows"]) == 6 * row["ops"] + row["compared"]  # each has its first value written


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = live(capsys, "mlp", "--batch", "64", "--limit", "70%", "--iterations", "5", "--device", "emulate")
    assert status == 0
    assert "81 ops on the emulator, 5 iterations within" in out and "times by gtx1080ti; natively it holds" in out
    for what in ("overhead\n", "on demand", "planned", "from iteration 3 on", "planner search", "bit-identical (39"):
        assert what in out, what


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--planner", "on-demand"], "none, as was asked for"),
        (["--limit", "100%"], "none needed: all fits"),
        (["--iterations", "1"], "none: nothing was found to repeat"),
    ],
)
def test_no_plan(capsys: pytest.CaptureFixture[str], arguments: list[str], why: str) -> None:
    usual = ["mlp", "--batch", "64", "--device", "emulate", "--iterations", "5", "--limit", "70%"]
    status, out, _ = live(capsys, *usual, *arguments)
    assert status == 0 and f"plan               {why}\n" in out and "planned" not in out


def test_a_trace_with_generic_ops(capsys: pytest.CaptureFixture[str]) -> None:
    """Its bytes stand for as many as the alignment says, in the table and on the clock."""
    usual = ["resnet18", "--limit", "80%", "--iterations", "4", "--planner", "heuristic", "--device", "emulate"]
    rows = []
    for unit in ("256", "4096"):
        status, out, err = live(capsys, *usual, "--alignment", unit, "--json")
        rows.append(json.loads(out))
        assert status == 0 and f"a byte stands for {unit} here" in err
    for row in rows:
        assert row["identical"] and row["peak"] <= row["limit"] and row["planned_from"] == 3
    few, many = (row["rows"][2] for row in rows)
    assert few["moved_in"] == pytest.approx(many["moved_in"], rel=0.2) and many["moved_in"] > 2**20
    assert few["ns"] == pytest.approx(many["ns"], rel=0.1)


def test_a_plan_beside_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The program does not wait: whether the plan comes in time is luck; the bytes and the limit are not."""
    status, out, _ = live(capsys, "mlp", "--background", "--iterations", "3", "--device", "emulate", "--json")
    row = json.loads(out)
    assert status == 0 and row["identical"] and row["peak"] <= row["limit"]


def test_a_copy_that_is_forgotten_is_found_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def back(self: InMemory, storage: LiveBlock, copy: Any) -> None:
        pass

    monkeypatch.setattr(InMemory, "back", back)
    status, out, err = live(capsys, "mlp", "--batch", "64", "--iterations", "3", "--device", "emulate")
    assert status == 1 and "DIFFER: " in out and "other bytes than the native one: please report this" in err


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (["--limit", "5%"], 3, "infeasible: op 0 must hold"),
        (["--load-limit", "50%"], 2, "--load-limit: of no use to --live, which knows no plan beforehand"),
        (["--pool", "best-fit"], 2, "--pool: of no use to --live"),
        (["--score", "aoa"], 2, "--score: of no use to --live"),
        (["--no-check"], 2, "--no-check: of no use to --live"),
        (["--planner", "heuristic,belady"], 2, "--planner: 'belady' is unknown"),
        (["--planner", "autoswap", "--effort", "2"], 2, "--effort: no use to autoswap"),
        (["--seconds", "0"], 2, "--seconds: 0.0 is not positive and finite"),
        (["--iterations", "0"], 2, "--iterations: 0 is below 1"),
        (["--device", "tpu"], 2, "--device: 'tpu' is unknown"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, why: str) -> None:
    got, out, err = live(capsys, "mlp", *arguments)
    assert (got, out) == (status, "")
    assert why in err.splitlines()[-1] and "Traceback" not in err


def test_options_of_one_kind_of_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["run", "--background"]) == 2
    assert "--background: only --live plans while the program runs" in capsys.readouterr().err
    monkeypatch.setattr(doctor, "why_no_cuda", lambda: "")
    assert main(["run", "--live", "--graph", "--device", "cuda"]) == 2
    assert "--graph: of no use to --live" in capsys.readouterr().err


@pytest.mark.thorough
def test_on_the_fake_driver() -> None:
    """A model with its compiled kernels, and a trace whose ops need scratch arrays."""
    needs_kernels()
    code = """
from gpumem.cli.main import main
common = ["--live", "--device", "cuda", "--iterations", "6", "--planner", "heuristic", "--json"]
for arguments in (["mlp", "--batch", "8", "--limit", "90%"], ["cnn-norm", "--batch", "2", "--limit", "90%"]):
    assert main(["run", *arguments, *common]) == 0
"""
    done = fake_cuda.run(code, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        assert row["identical"] and row["peak"] <= row["limit"] and row["device"].startswith("Fake GPU")
        assert row["planned_from"] == 3, row


def drawn(states: tuple[str, ...] = ("on demand", "planned")) -> tuple[list[LogEntry], list[Iteration]]:
    """Two iterations of an op each: a block is filled, evicted, and comes back."""
    log = [
        LogEntry("fill", 0, "", 0, 2**20, 0, 0),
        LogEntry("op", 0, "a", -1, 0, 0, 2_000_000),
        LogEntry("out", 1, "", 0, 2**20, 2_000_000, 3_000_000),
        LogEntry("empty", 1, "", 0, 2**20, 3_000_000, 3_000_000),
        LogEntry("fill", 1, "", 0, 2**20, 3_000_000, 3_000_000),
        LogEntry("in", 1, "", 0, 2**20, 3_000_000, 5_000_000),
        LogEntry("op", 1, "a", -1, 0, 5_000_000, 6_000_000),
    ]
    return log, [Iteration(k, state, 1, 2**20, 0, 0, 0, 0, 0, "", 0.0) for k, state in enumerate(states)]


def test_the_picture_of_the_first_iterations() -> None:
    ax = Figure().subplots()
    log, rows = drawn()
    assert first_iterations(log, rows, 2**20, ax=ax) is ax
    held = next(line for line in ax.lines if line.get_label() == "held")
    assert held.get_xydata().tolist() == [[0, 0], [0, 1], [3, 0], [3, 1]]
    out, back = (bars.get_paths()[0].get_extents() for bars in ax.collections)
    assert (out.x0, out.x1, back.x0, back.x1) == (2, 3, 3, 5) and out.y0 > back.y1
    assert [span.get_extents().width > 0 for span in ax.patches] == [True, True]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["held", "limit", "on demand", "planned"]
    assert [label.get_text() for label in ax.get_yticklabels()][-2:] == ["copies out", "copies in"]
    one = first_iterations(log, rows, 2**20, count=1, ax=Figure().subplots())
    assert one.get_xlim() == (0, 2)


def test_what_cannot_be_drawn() -> None:
    log, rows = drawn()
    with pytest.raises(ValueError, match="count: 0 of 2 iterations"):
        first_iterations(log, rows, 2**20, count=0)
    with pytest.raises(ValueError, match="1 ops of these 2, or without their times"):
        first_iterations(log[:2], rows, 2**20)
    with pytest.raises(ValueError, match="without their times"):
        first_iterations([entry._replace(start=-1, end=-1) for entry in log], rows, 2**20)
