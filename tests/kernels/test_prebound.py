"""Launches made once: what is made when an op is bound, what happens when it is started."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gpumem.kernels import in_turn, prebinding, prebound, reference
from gpumem.kernels.prebound import Script
from tests.kernel_cases import CASES, Pick

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


def case(name: str) -> dict[str, Any]:
    return CASES[name](Pick(lambda low, high: high))


@pytest.mark.parametrize("name", CASES)
def test_binding_an_op_computes_nothing_and_takes_its_launches_down(device: ModuleType, name: str) -> None:
    arguments, before, script = case(name), case(name), Script()
    getattr(device, name)(script, **arguments)
    assert script and all(callable(start) for start in script)
    assert getattr(device, name).prebinds and not hasattr(getattr(reference, name), "prebinds")
    for key, value in arguments.items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("name", ["add", "sgd", "adam", "advance"])
def test_each_start_is_a_run_of_the_op(device: ModuleType, name: str) -> None:
    theirs, ours = case(name), case(name)
    start = prebound(getattr(device, name), **theirs)
    for _ in range(2):
        start(0)
        getattr(reference, name)(None, **ours)
    for key, value in ours.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(theirs[key], value, 1e-5)


def test_what_an_op_refuses_is_refused_when_it_is_bound(device: ModuleType) -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"out has the shape \(3,\), expected \(4,\)"):
        prebound(device.add, np.zeros(4, np.float32), np.zeros(4, np.float32), x)


def test_nothing_to_launch_is_nothing_to_start(device: ModuleType) -> None:
    x = np.zeros(0, np.float32)
    prebound(device.add, x, x, x)(0)


def test_any_other_function_is_called_at_each_start() -> None:
    calls: list[tuple[Any, ...]] = []
    start = prebound(lambda stream, x, y=0: calls.append((stream, x, y)), 1, y=2)
    assert not calls
    start("a"), start("b")
    assert calls == [("a", 1, 2), ("b", 1, 2)]


def test_a_marked_function_is_called_once(device: ModuleType) -> None:
    calls = []

    @prebinding
    def twice(stream: object, x: Any) -> None:
        calls.append(stream)
        device.add(stream, x, x, x)
        device.add(stream, x, x, x)

    x = np.ones(2, np.float32)
    start = prebound(twice, x)
    start(0)
    start(0)
    assert len(calls) == 1 and x.tolist() == [16, 16]


def test_starts_in_turn() -> None:
    told: list[str] = []
    in_turn([lambda s: told.append(f"first on {s}"), lambda s: told.append(f"then on {s}")])("a")
    in_turn([])("b")
    assert told == ["first on a", "then on a"]
