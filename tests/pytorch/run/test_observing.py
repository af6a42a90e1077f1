"""What is only written down of a program never ends it: what the observer does wrong is forgotten."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from gpumem.torch import managed
from gpumem.torch.capture.op_recorder import OpRecorder
from tests.pytorch.small_runs import HOW, fails


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("name", ["before", "after", "begin", "end", "_note", "flops_of"])
def test_a_recorder_that_fails_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = OpRecorder if hasattr(OpRecorder, name) else sys.modules[OpRecorder.__module__]
    monkeypatch.setattr(owner, name, fails)
    with warnings.catch_warnings(), managed("64KiB", **HOW) as run:
        warnings.simplefilter("ignore")
        x = torch.ones(64) * 3
        assert (x + 1).sum().item() == 256
    assert any("cannot be recorded: OSError: a defect" in note for note in run.report().notes)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("name", ["_shape", "_meta"])
def test_a_prediction_that_fails_is_a_guess(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"gpumem.torch.run.output_sizes.{name}", fails)
    with managed("64KiB", **HOW):
        assert (torch.ones(64) + 1).sum().item() == 128


def test_our_own_tests_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpRecorder, "_note", fails)
    with pytest.raises(OSError, match="a defect"), managed("64KiB", **HOW):
        torch.ones(64)
