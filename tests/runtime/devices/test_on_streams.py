"""The transparent device on the fake driver's streams. See `fake_cuda/environment_checks.py`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import all_pass, checks_of, needs_kernels


@pytest.mark.thorough
@pytest.mark.jit
def test_the_device_on_streams() -> None:
    needs_kernels()
    all_pass("environment_checks", checks_of(fake_cuda.HERE / "environment_checks.py"))
