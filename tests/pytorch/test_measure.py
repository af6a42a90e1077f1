"""Measured steps and rates: the ops are those of a capture, their times are real, and what cannot be measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gpumem.execute.latency import calibrate, table_rows
from gpumem.execute.latency.samples import LatencyTable
from gpumem.torch import WorkloadError, capture, measure, rates, record

WORK = 2_000_000  # ns


@torch.library.custom_op("tests_measure::works", mutates_args=())
def works(x: torch.Tensor) -> torch.Tensor:
    """Take a time that is known."""
    end = time.thread_time_ns() + WORK
    while time.thread_time_ns() < end:
        pass
    return x.clone()


def make(batch: int = 16) -> Callable[[], None]:
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(batch, 64)

    def step() -> None:
        net(works(x)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_ops_are_those_of_a_capture_and_their_times_are_real() -> None:
    found, plain = measure(make, iterations=5, name="small"), capture(make, "cpu")
    assert found.trace.name == "small" and found.trace.ops.name == plain.ops.name
    assert found.trace.ops.attributes == plain.ops.attributes
    took = dict(zip(found.trace.ops.name, found.trace.ops.duration.tolist()))
    worked = took.pop("tests_measure.works.default")
    assert WORK < worked < 3 * WORK and min(took.values()) > 0 and max(took.values()) < worked
    assert found.iteration_ns > WORK
    assert (plain.ops.duration == -1).all()  # a capture for a GPU measures nothing on the host


def test_a_captured_step_is_timed_by_what_was_measured() -> None:
    step = measure(make, iterations=3)
    rows = [row for n in (4, 16, 64) for row in table_rows(measure(make, batch=n, iterations=3).trace)]
    times = calibrate(LatencyTable(tuple(rows), machine=rates()))
    captured = record(make, "cpu", name="small")
    timed = captured.timed(times)
    ns = times.ops_ns(captured.trace.ops, captured.trace.buffers.size)
    assert timed.trace.ops.duration.tolist() == np.rint(ns).astype(int).tolist()
    lo, hi = timed.bounds[-1]
    assert (timed.recording.ops.duration[lo:hi] == timed.trace.ops.duration).all()
    again = record(make, "cpu", timed=True)
    assert again.timed(times).trace.ops.duration.tolist() == again.trace.ops.duration.tolist()  # what is there stands
    assert len(step.trace.ops) == len(captured.trace.ops)


def test_rates_are_of_this_device() -> None:
    machine = rates()
    assert machine.name == "cpu" and machine.flops_efficiency == machine.bandwidth_efficiency == 1
    x = torch.ones(512, 512)
    x @ x
    begin = time.perf_counter()
    x @ x
    rate = 2 * 512**3 / (time.perf_counter() - begin)
    assert machine.flops > rate / 10 and 100 < machine.launch_ns < 1e6


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"device": "meta"}, "device: 'meta'"),
        ({"iterations": 0}, "iterations: 0 is below 1"),
        ({"warmup": -1}, "warmup: -1 is below 0"),
    ],
)
def test_what_cannot_be_measured(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measure(make, **more)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_none_to_measure() -> None:
    for call in (lambda: measure(make, "cuda"), lambda: rates("cuda")):
        with pytest.raises(WorkloadError, match="PyTorch sees no CUDA device"):
            call()
