"""The transparent device in small cases: what a call does to blocks, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpumem.runtime import Adaptive, InMemory, LiveBlock
from tests.runtime.programs import Small, begin, short, step, told


def test_an_exception_passes_through_and_the_block_is_what_the_op_left() -> None:
    device = Adaptive(InMemory(), 100)
    a, b = device.malloc(100), device.malloc(100)
    device.write(a, bytes(100))

    def half(stream: object, x: Any) -> None:
        x[:50] = 1
        raise KeyError("half-way")

    device.read(b)  # sends a away, so that the host has a copy of it
    with pytest.raises(KeyError, match="half-way"):
        device.exec("half", [a], [a], call=half)
    device.read(b)
    assert device.read(a).tolist() == [1] * 50 + [0] * 50


def test_arrays_are_typed_and_each_block_comes_once() -> None:
    device = Adaptive(InMemory(), "1KiB")
    x = device.malloc(100, shape=(3, 4), dtype="float32")
    y = device.malloc(8)
    seen: list[tuple[Any, ...]] = []
    device.exec("look", [x, y, x], [y], call=lambda stream, *arrays: seen.extend((a.shape, a.dtype) for a in arrays))
    assert seen == [((3, 4), np.dtype("float32")), ((8,), np.dtype("uint8"))]


def wrong(**options: Any) -> Callable[[], object]:
    return lambda: Adaptive(InMemory(), **{"limit": 100, **options})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (wrong(limit=0), "limit"),
        (wrong(limit="many"), "limit"),
        (wrong(planner="nonsense"), "planner"),
        (wrong(planner=[]), "planner"),
        (wrong(detect="omens"), "detect"),
        (wrong(min_length=0), "min_length 0"),
        (wrong(seconds=-1.0), "seconds"),
    ],
)
def test_bad_options(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_bad_calls() -> None:
    device = Adaptive(InMemory(), 100)
    a = device.malloc(10)
    for call, says in (
        (lambda: device.malloc(-1), "malloc: size -1"),
        (lambda: device.malloc(4, shape=(2,), dtype="float32"), "takes more than 4 bytes"),
        (lambda: device.free(7), "free: block 7 was never allocated"),
        (lambda: device.exec("x", [a, 9]), r"op 0 \(x\): block 9 was never allocated"),
        (lambda: device.exec("x", [a], duration=-5), r"op 0 \(x\): duration -5 ns is negative"),
        (lambda: device.exec("x", [a], flops=float("nan")), r"op 0 \(x\): flops nan is not finite and >= 0"),
        (lambda: device.exec("x", [a], moved=-1), r"op 0 \(x\): moved -1 is not finite and >= 0"),
        (lambda: device.write(a, bytes(11)), "write: 11 bytes for block 0, which has 10"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    with pytest.raises(TypeError, match="integer"):
        device.exec("x", [a], duration=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"op 0 \(x\): 5 is no list of blocks"):
        device.exec("x", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write: 'abc' is no array of numbers, nor bytes"):
        device.write(a, "abc")  # type: ignore[arg-type]
    device.free(a)
    with pytest.raises(ValueError, match="read: block 0 was already freed"):
        device.read(a)
    assert not device.log


def test_nothing_goes_on_once_it_was_closed() -> None:
    device = Adaptive(InMemory(), 100)
    device.malloc(10)
    device.close()
    device.close()
    for call, where in ((lambda: device.malloc(10), "malloc"), (lambda: device.exec("x"), r"op 0 \(x\)")):
        with pytest.raises(ValueError, match=f"{where}: the device was closed"):
            call()


class Stuck(InMemory):
    """A device that fails to take memory back once."""

    failing = closed = False

    def empty(self, storage: LiveBlock) -> None:
        if self.failing:
            self.failing = False
            raise RuntimeError("stuck")
        super().empty(storage)

    def close(self) -> None:
        self.closed = True


def test_close_goes_on_where_a_step_fails() -> None:
    environment = Stuck()
    device = Adaptive(environment, 300)
    blocks = begin(device, 3)
    environment.failing = True
    with pytest.raises(RuntimeError, match="stuck"):
        device.close()
    assert told(device, "empty") == [("empty", 3, block) for block in blocks[1:]] and environment.closed


def test_what_ended_the_program_is_what_it_is_told() -> None:
    environment = Stuck()
    with pytest.raises(KeyError, match="the program's"), Adaptive(environment, 300) as device:
        begin(device, 3)
        environment.failing = True
        raise KeyError("the program's")
    assert environment.closed


def test_hooks_see_each_op_and_where_it_stands() -> None:
    device = short(InMemory(), 500, wait=True)
    seen: list[tuple[str, str, int]] = []
    device.before.append(lambda op, i: seen.append(("before", op.name, i)))
    device.after.append(lambda op, i: seen.append(("after", op.name, i)))
    weights = begin(device)
    assert seen == [(when, "write", -1) for _ in weights for when in ("before", "after")]
    for _ in range(6):
        step(device, weights)
    places = [i for when, _, i in seen if when == "after"]
    assert sorted(places[-8:]) == list(range(8))


def test_close_gives_everything_back() -> None:
    environment = Small(1000)
    with short(environment, 500, wait=True) as device:
        weights = begin(device)
        for _ in range(6):
            step(device, weights)
    assert environment.evict_for == 1000
