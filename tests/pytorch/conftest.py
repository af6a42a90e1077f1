"""Shared by the tests that need PyTorch."""

import gc
from collections.abc import Iterator

import pytest
import torch

import gpumem.runtime.residency.observing

gpumem.runtime.residency.observing.STRICT = True  # what the observer does wrong is a defect of ours: here it is raised


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums come out the same in one order only. (What was imported up to here is no garbage.)"""
    gc.freeze()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user has it: what the observer does wrong is forgotten."""
    monkeypatch.setattr(gpumem.runtime.residency.observing, "STRICT", False)
