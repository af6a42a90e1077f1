"""Durations on a GPU, with doubles of its events: what is measured, between what, and when the host waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

from gpumem import Machine
from gpumem.torch import capture, record
from gpumem.torch.step.timing import HostStopwatch, Stopwatch, stopwatch
from gpumem.trace import UNKNOWN
from tests.pytorch.fakes import Log


class Device:
    """A GPU that takes a microsecond for each letter of an op's name; between ops it waits for the host."""

    def __init__(self) -> None:
        self.said = [""]
        self.now = 0.0  # milliseconds
        self.events = 0

    def event(self) -> Event:
        self.events += 1
        return Event(self)

    def wait(self) -> None:
        self.said.append("wait")


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1.0

    def record(self) -> None:
        if not self.device.said[-1].startswith("aten."):
            self.device.now += 5.0  # the host was not there yet
        self.device.said.append("event")
        self.at = self.device.now

    def elapsed_time(self, end: Any, /) -> float:
        assert self.device.said[-1] == "wait"  # asked before, a device would not know
        return float(end.at - self.at)


class Runs(Log):
    """Lets the device's clock go on with each op that comes through."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.device.said.append(str(func))
        self.device.now += 0.001 * len(func.name())
        return super().__torch_dispatch__(func, types, args, kwargs)


def make() -> Callable[[], None]:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_each_op_is_measured_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(
        import_module("gpumem.torch.capture.capture"),
        "stopwatch",
        lambda kind, host: Stopwatch(device.event, device.wait),
    )
    with Runs(device):
        found = record(make, "cpu", warmup=1, iterations=2)
    trace = found.trace
    assert trace.ops.duration.tolist() == [
        1000 * len(f"aten::{name}".removesuffix(".default")) for name in trace.ops.name
    ]
    assert [what for what in device.said if what == "wait"] == ["wait"] * 3  # at the end of each iteration
    begins = [i for i, what in enumerate(device.said) if what == "event"][::2]
    assert len(begins) == len(found.recording.ops) == 3 * trace.n
    for i in begins:
        assert device.said[i + 1].startswith("aten.") and "event" in device.said[i + 2 : i + 4]
    assert device.events == 2 * trace.n  # they serve again
    assert (Machine.named("rtx4090").durations(trace) == trace.ops.duration).all()


def test_elsewhere_nothing_is_measured() -> None:
    assert stopwatch("cpu") is None and stopwatch("meta") is None
    for device in ("meta", "cpu"):
        assert (capture(make, device).ops.duration == UNKNOWN).all()


def test_the_host_is_measured_where_that_is_asked_for() -> None:
    watch = stopwatch("cpu", host=True)
    assert isinstance(watch, HostStopwatch) and watch.clock is time.thread_time_ns
    assert watch(lambda x: time.sleep(0.02) or x + 1, (1,), {}) == 2  # asleep, the thread takes no time
    torch.set_num_threads(2)
    try:
        several = HostStopwatch()
    finally:
        torch.set_num_threads(1)
    several(time.sleep, (0.02,), {})
    (alone,), (clock,) = watch.read(), several.read()
    assert 0 < alone < 15e6 < clock and watch.read() == []
    assert stopwatch("meta", host=True) is None


def test_an_op_that_fails_is_not_measured() -> None:
    device = Device()
    watch = Stopwatch(device.event, device.wait)
    with pytest.raises(ZeroDivisionError):
        watch(lambda: 1 // 0, (), {})
    assert watch(lambda x: x + 1, (1,), {}) == 2
    assert len(watch.read()) == 1 and watch.read() == []


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    durations = capture(make, "cuda").ops.duration
    assert (durations > 0).all() and durations.sum() < 1e9
