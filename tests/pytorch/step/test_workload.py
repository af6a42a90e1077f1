"""Files as people have them (`workload`, `load_workload`): their top, what they ask of a GPU, what they print."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpumem.cli.main import main
from gpumem.torch import WorkloadError, load, record

SCRIPT = """
from __future__ import annotations
import argparse, pickle
from dataclasses import dataclass
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=4)
args = parser.parse_args()


class Sample:
    pass


def plain(batch=8):
    @dataclass
    class Local:
        sample: Sample

    pickle.dumps(Sample())
    net = torch.nn.Linear(args.width, 2).to(device)

    def step():
        net(torch.randn(batch, args.width).to(device)).sum().backward()

    return step


def make(batch=8):
    step = plain(batch)
    pinned = torch.utils.data.DataLoader([torch.ones(4, device="cpu")] * 16, batch_size=batch, pin_memory=True)

    def loud():
        for x in pinned:
            x.cuda(non_blocking=True)
        step()
        torch.cuda.ipc_collect()
        free, total = torch.cuda.mem_get_info()
        used = torch.cuda.memory_stats()["allocated_bytes.all.current"], torch.cuda.memory_summary()
        loss, known = torch.randn(99999).sum(), torch.arange(3).sum()
        print(f"loss {loss:.3f} {known:d}", free / torch.cuda.get_device_properties(0).total_memory, used)

    return loud


def generator(batch=8):
    def step():
        yield

    return step


def asynchronous(batch=8):
    async def step():
        pass

    return step


def argued(batch=8):
    return lambda images, labels=None: None


def model(batch=8):
    return torch.nn.Linear(4, 2)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_with_arguments_a_device_and_questions_of_its_own(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", mine := ["gpumem", "capture", "train.py"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of pinned memory, where there is no GPU
        assert main(["capture", str(script), "-o", str(tmp_path / "t.json"), "--json", "--iterations", "1"]) == 0
    told = capsys.readouterr()
    row = json.loads(told.out)
    assert row["peak_by_kind"]["param"] == 4 * (4 * 2 + 2)  # `to(device)` at the top is the GPU, not the host
    assert "loss 1.000 3 1.0 (0, '')" in told.err
    line = 1 + SCRIPT.splitlines().index(
        '        print(f"loss {loss:.3f} {known:d}", free / torch.cuda.get_device_properties(0).total_memory, used)'
    )
    assert row["assumptions"] == [
        {
            "place": f"the step, {script}, line {line}",
            "asked": "the value of sum.default",
            "answer": "1.0",
            "times": 2,
        }
    ]
    assert sys.argv is mine


def test_what_a_file_finds_at_its_top_is_the_device_that_it_is_loaded_for(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script"])
    assert str(load(f"{script}:plain").__globals__["device"]) == "cuda"  # type: ignore[attr-defined]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert str(load(f"{script}:plain", "cpu").__globals__["device"]) == "cpu"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "generator",
            "generator: its step is async or yields, and so runs nothing when called; write a plain function",
        ),
        ("asynchronous", "asynchronous: its step is async or yields"),
        ("argued", "argued: its step needs images; it is called without, and makes its batch itself"),
        ("model", "model: its step needs input; it is called without, and makes its batch itself"),
    ],
)
def test_a_step_that_cannot_be_called_is_named(
    script: Path, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(WorkloadError) as refused:
        record(load(f"{script}:{name}"))
    assert str(refused.value).startswith(why)


def test_what_pytorch_says_comes_without_frames_of_its_own(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["script"])
    with pytest.raises(WorkloadError, match=r"randn\(\): .*Overflow .*\(.*a script\.py, line \d+\)") as refused:
        record(load(f"{script}:plain"), batch=10**20)
    assert "frame #" not in str(refused.value) and "Exception raised" not in str(refused.value)


def test_what_a_distribution_checks_is_well() -> None:
    def make() -> Callable[[], None]:
        def step() -> None:
            torch.distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=True).rsample()

        return step

    assert not record(make).assumptions  # it is computed


def test_a_generator_of_a_gpu_that_is_not_there_draws_on_meta() -> None:
    def make() -> Callable[[], None]:
        generator = torch.Generator(device="cuda").manual_seed(1)
        assert isinstance(generator, torch.Generator)

        def step() -> None:
            torch.randn(4, generator=generator, device="cuda") + torch.randperm(4, generator=generator, device="cuda")

        return step

    assert record(make).trace.ops.rng.tolist() == [True, True, False]
