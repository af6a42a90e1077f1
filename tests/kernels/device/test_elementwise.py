"""Ops that look at each element alone: several elements a thread, none at all, values that are no numbers."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.kernel_cases import CASES, SHAPED, Pick, bias, of_shape
from tests.kernels.comparing import compare, largest, smallest

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@pytest.fixture
def two_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of two threads for kernels that look at each element."""
    monkeypatch.setattr("gpumem.kernels.numba_cuda.THREADS", 2)
    monkeypatch.setattr("gpumem.kernels.numba_cuda._WAVES", 2)


MANY = [*((name, n) for name in SHAPED for n in (12, 13, 16, 37)), *((name, 0) for name in ("copy", "fill"))]


@pytest.mark.usefixtures("two_by_two")
@pytest.mark.parametrize(("name", "n"), MANY)
def test_a_thread_may_have_many_elements(
    device: ModuleType, name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pick, "shape", lambda pick: (n,))
    compare(device, name, CASES[name](Pick(largest)))


@pytest.mark.usefixtures("two_by_two")
@pytest.mark.parametrize("shape", [(9, 1), (9, 3), (3, 5, 1, 3), (5, 2, 3, 2), (5, 1, 2, 1), (1, 2, 3, 3)])
def test_biases_of_a_thread_with_many_elements(device: ModuleType, shape: tuple[int, ...]) -> None:
    compare(device, "bias", bias(Pick(largest), of_shape(*shape)))


@pytest.mark.parametrize("name", ["adam", "add", "copy", "dropout", "dropout_gradient", "relu", "relu_gradient", "sgd"])
def test_nothing_is_launched_for_empty_arrays(device: ModuleType, name: str) -> None:
    arguments = CASES[name](Pick(smallest))
    for key, value in arguments.items():
        if isinstance(value, np.ndarray) and key not in ("step", "counter"):
            arguments[key] = np.zeros(0, value.dtype)
    compare(device, name, arguments)


def test_nan_stays_visible(device: ModuleType) -> None:
    x = np.array([np.nan, -np.inf, -1, 2], np.float32)
    compare(device, "relu", {"x": x, "out": np.zeros(4, np.float32)})
