"""Compiled kernels on the fake driver, as models run them. See `fake_cuda/model_checks.py`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import all_pass, checks_of, needs_kernels


@pytest.mark.thorough
@pytest.mark.jit
def test_models_on_the_fake_driver() -> None:
    needs_kernels()
    all_pass("model_checks", checks_of(fake_cuda.HERE / "model_checks.py"))
