"""Each part of a run fails once, at each of its first calls: the step has its bits, and the report says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpumem.runtime.residency.follower import Follower
from gpumem.runtime.residency.iteration_recorder import IterationRecorder
from gpumem.torch import managed
from gpumem.torch.capture.op_recorder import OpRecorder
from gpumem.torch.run.engines import OnHost, Swapped
from gpumem.torch.run.environment import StepEnvironment
from gpumem.torch.run.output_sizes import OutputSizePredictor

STEPS = 7
WHAT: dict[str, tuple[Any, str, type[Exception]]] = {
    "the recorder, before": (OpRecorder, "before", OSError),
    "the recorder, after": (OpRecorder, "after", OSError),
    "the detector": (IterationRecorder, "note", OSError),
    "a boundary": (IterationRecorder, "boundary", OSError),
    "the follower": (Follower, "before", OSError),
    "the follower, after": (Follower, "after", OSError),
    "a copy out": (OnHost, "out", OSError),
    "a copy back": (OnHost, "back", OSError),
    "the host's memory": (OnHost, "out", MemoryError),
    "the device's memory": (Swapped, "fill", torch.OutOfMemoryError),
    "an allocation": (Swapped, "fill", OSError),
    "the predictor": (OutputSizePredictor, "_ask", OSError),
}
SILENT = {"the predictor"}  # it guesses instead
CALLS = (1, 2, 5, 11, 23, 47)


def trained(run: Any) -> list[list[float]]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(STEPS):
            optimizer.zero_grad()
            net(torch.randn(128, 32)).square().mean().backward()
            optimizer.step()
    return [p.tolist() for p in net.parameters()]


class Fails:
    """Does what a method does, but for one call."""

    def __init__(self, method: Callable[..., Any], at: int, error: type[Exception]) -> None:
        self.method, self.left, self.error = method, at, error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise self.error("a defect")
        return self.method(*args, **kwargs)


def check(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(warnings.catch_warnings())
    owner, name, error = WHAT[what]
    method = getattr(owner, name)
    fails = Fails(method, at, error)
    static = isinstance(vars(owner)[name], staticmethod)
    stand_in = staticmethod(fails) if static else (lambda self, *args, **kwargs: fails(self, *args, **kwargs))
    monkeypatch.setattr(owner, name, stand_in)
    run = managed("120KiB", device="cpu", planner="heuristic", wait=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert trained(run) == expected
    report = run.report()
    assert max(row.peak for row in report.iterations) <= report.limit
    if fails.left <= 0 and what not in SILENT:
        assert any("a defect" in note for note in report.notes), report.notes


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("what", WHAT)
def test_a_fault_is_survived(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in CALLS:
        with monkeypatch.context() as patched:
            check(what, at, patched)


@pytest.mark.slow
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("at", range(1, 51))
@pytest.mark.parametrize("what", WHAT)
def test_a_fault_at_each_of_the_first_calls_is_survived(what: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(what, at, monkeypatch)


@pytest.mark.usefixtures("forgetful")
def test_a_planner_that_fails_leaves_the_step_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(warnings.catch_warnings())
    run = managed("120KiB", device="cpu", planner="heuristic", wait=True)

    def fails(trace: Any) -> None:
        raise OSError("a defect")

    assert isinstance(run.steps, StepEnvironment)
    run.steps.on_iteration = fails
    assert trained(run) == expected
    assert "OSError: a defect" in run.report().notes[-1]
    assert run.report().iterations[-1].state == "on demand"
