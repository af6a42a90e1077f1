"""`gpumem run`: a planned run ends with the bytes of the unmanaged one, and what cannot run is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem import autoswap
from gpumem.cli import doctor
from gpumem.cli.main import main
from gpumem.execute import Emulator
from gpumem.execute.models import MODELS, mlp
from gpumem.io import bundled_path
from gpumem.kernels import reference
from gpumem.pipeline import Planned
from gpumem.pipeline.planned_vs_unmanaged import Workload, compare
from gpumem.pipeline.report import Run
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator.simulate import simulate
from tests.conftest import tiny_machine


def gpumem(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capsys.readouterr()
    return status, out, err


def test_help_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert ",".join(MODELS) in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("model", ["mlp", "cnn-adam", "residual", "transformer"])
def test_a_model_planned_and_unmanaged(capsys: pytest.CaptureFixture[str], model: str) -> None:
    arguments = ["run", model, "--batch", "16", "--limit", "80%", "--iterations", "4", "--device", "emulate", "--json"]
    status, out, _ = gpumem(capsys, *arguments)
    row = json.loads(out)
    assert status == 0
    assert row["identical"] and row["differing"] == [] and row["compared"] > 20
    assert row["device_planned"] <= row["limit"] < row["device_unmanaged"]
    assert row["host_unmanaged"] == 0 < row["host_planned"] <= row["moved_planned"]
    assert row["iteration_ns_planned"] > 0 and row["predicted_ns_planned"] >= row["predicted_ns_unmanaged"] > 0
    assert row["overlap_planned"] == 0  # the emulator runs one op at a time


@pytest.mark.jit
def test_a_trace_runs_with_generic_ops(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(bundled_path("resnet18")), "--limit", "80%", "--iterations", "2", "--seed", "3"]
    status, out, err = gpumem(capsys, *arguments)
    assert status == 0
    assert "resnet18_cifar_b100: " in out and "bit-identical" in out and "order 3" in out
    assert "a byte stands for 256 here" in err


def test_the_table_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = gpumem(capsys, "run", "--batch", "16", "--limit", "100%", "--iterations", "1")
    assert status == 0
    for what in (
        "device bytes held",
        "pinned host bytes held",
        "bytes copied",
        "measured",
        "predicted",
        "state afterwards",
    ):
        assert what in out


@pytest.mark.parametrize(
    "arguments, status, why",
    [
        (["run", "vgg"], 2, "vgg: No such file or directory; there are mlp, mlp-adam, cnn"),
        (["run", "--device", "tpu"], 2, "--device: 'tpu' is unknown; there are auto, emulate, cuda"),
        (["run", "--iterations", "0"], 2, "--iterations: 0 is below 1"),
        (["run", "--seed", "-1"], 2, "--seed: -1 is below 0"),
        (["run", "--alignment", "0"], 2, "--alignment: 0 is below 1"),
        (["run", "--batch", "-1"], 2, "--batch: -1 is below 1"),
        (["run", "--limit", "5%"], 3, "infeasible: op"),
        (["run", "--load-limit", "50%"], 2, "--load-limit: a run needs addresses"),
        (["run", "--planner", "belady"], 2, "--planner: 'belady' is unknown"),
        (["run", "--pool", "worst-fit"], 2, "--pool: 'worst-fit' is unknown"),
        (["run", "--machine", "abacus"], 2, "machine: 'abacus' is unknown"),
        (["run", str(bundled_path("mlp3")), "--batch", "3"], 2, "its batch is what was recorded"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, why: str) -> None:
    got, out, err = gpumem(capsys, *arguments)
    assert (got, out) == (status, "")
    assert why in err.splitlines()[-1] and "Traceback" not in err


def test_cuda_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "why_no_cuda", lambda: "driver: none; install one")
    status, out, err = gpumem(capsys, "run", "--device", "cuda")
    assert (status, out) == (2, "") and "no CUDA here: driver: none; install one (see gpumem doctor)" in err
    status, _, err = gpumem(capsys, "run", "--graph")
    assert status == 2 and "--graph: it needs CUDA" in err


def test_a_bare_instance_cannot_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("id,lower,upper,size\n0,0,3,4\n")
    status, out, err = gpumem(capsys, "run", str(path))
    assert (status, out) == (2, "") and "a bare instance has no ops to run" in err


def test_a_backend_that_forgets_a_copy_is_found_out() -> None:
    class Forgetful(Emulator):
        def copier(self, source, target):  # type: ignore[no-untyped-def]
            return lambda stream: None

    model, machine = mlp(batch=8, hidden=(8,) * 4), tiny_machine()
    limit = model.trace.peak_live_bytes * 9 // 10
    plan = autoswap(model.trace, machine, limit, threshold=0, peaks="all")
    swapped = plan.apply(model.trace)
    halves = []
    for trace in (model.trace, swapped):
        placement = best_fit(trace)
        halves.append(Run(trace, placement, simulate(trace, machine, placement)))
    planned = Planned(plan, machine, *halves, halves[1].timeline, None, None, limit, "autoswap", "swdoa")
    names = {i: name for name, i in model.names.items()}
    for backend, same in ((Emulator, True), (Forgetful, False)):
        workload = Workload(planned, lambda: model.launch(reference), model.initial, names)
        found = compare(workload, lambda timing, b=backend: b(), where="here", iterations=3)
        assert found.row()["identical"] is same
        assert same or ("loss" in found.differing and "DIFFER: " in found.table())
