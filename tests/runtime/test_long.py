"""The transparent device in long runs: what an op costs does not grow with what came before."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from gpumem.runtime import Adaptive, InMemory, LimitError, OnClock
from gpumem.simulator.machine import Machine

MACHINE = Machine.named("rtx4090")


class Visited(list[Any]):
    """Counts what is looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            Visited.seen += 1
            yield item


class Warmth(OrderedDict[Any, None]):
    """The same for blocks by their last use."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            Warmth.seen += 1
            yield item


def test_an_op_that_is_recorded_looks_at_no_event_before_it() -> None:
    device = Adaptive(OnClock(MACHINE), "1GiB")
    iterations = device._loop.phase.iterations
    assert iterations is not None
    iterations.recorder._events = Visited()
    x = device.malloc(1)
    for k in range(200):
        device.exec(f"op {k}", [x], [x], duration=1)
    assert Visited.seen <= 2 * len(iterations.recorder._events)


def test_an_eviction_looks_at_those_that_go() -> None:
    device = Adaptive(OnClock(MACHINE), 1000, planner="on-demand")
    device._memory.on_device = Warmth()
    blocks = [device.malloc(1) for _ in range(1200)]
    for x in blocks:
        device.exec("make", [], [x], duration=1)
    evicted = sum(entry.kind == "empty" for entry in device.log)
    assert evicted == 200 and Warmth.seen <= 10 * evicted


def test_a_block_without_bytes_makes_no_room() -> None:
    device = Adaptive(OnClock(MACHINE), 1, planner="on-demand")
    nothing, one, other = device.malloc(0), device.malloc(1), device.malloc(1)
    for x in (nothing, one, other):
        device.exec("make", [], [x], duration=1)
    assert [entry.block for entry in device.log if entry.kind == "empty"] == [one]


def test_writes_of_inputs_that_never_repeat() -> None:
    device, names = Adaptive(OnClock(MACHINE), "1GiB", detect="writes"), random.Random(1)
    x, begin = device.malloc(10), perf_counter()
    for _ in range(400):
        device.write(x, b"1")
        device.exec(str(names.random()), [x], [x], duration=1)
    assert perf_counter() - begin < 4  # 0.05 s; 13 s where each write looks at all pairs of those before


def test_a_write_that_is_refused_is_none() -> None:
    device = Adaptive(InMemory(), 300, planner="heuristic", detect="writes", wait=True)
    large, x, y, z, w = device.malloc(400), *(device.malloc(100) for _ in range(4))
    with pytest.raises(LimitError):
        device.write(large, b"1")
    for k in range(6):
        device.write(x, np.full(100, k, np.uint8))
        for one, other in ((x, y), (y, z), (z, w)):
            device.exec("next", [one], [other], call=lambda stream, a, b: np.add(a, 1, out=b))
        if not k:
            with pytest.raises(LimitError):
                device.write(large, b"1")
    assert [(e.op, e.what) for e in device.log if e.kind == "found"] == [(8, "4 ops")]
