"""Pools behind the memory of cuda.core and CuPy, on the fake driver. See `fake_cuda/resource_checks.py`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import all_pass, checks_of, needs_driver


@pytest.mark.thorough
@pytest.mark.jit  # no loop of gpumem's is compiled here
def test_pools_on_the_fake_driver() -> None:
    needs_driver()
    checks = checks_of(fake_cuda.HERE / "resource_checks.py")
    all_pass("resource_checks", checks, PYTHONPATH=str(fake_cuda.HERE.parent.parent))
