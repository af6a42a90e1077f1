"""The kernels in Numba's simulator, for all tests of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.conftest import simulated


@pytest.fixture(scope="module")
def device() -> Iterator[ModuleType]:
    """The kernels, in the simulator; threads take turns more often, which halves the time at barriers."""
    kernels = simulated()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield kernels
    sys.setswitchinterval(interval)
