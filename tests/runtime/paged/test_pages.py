"""Pages, and the memory behind pools, over the fake driver. See `fake_cuda/live_checks`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import all_pass, checks_of, needs_driver

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

CHECKS = checks_of(*sorted((fake_cuda.HERE / "live_checks").glob("*.py")))


def test_on_the_fake_driver() -> None:
    needs_driver()
    all_pass("live_checks", CHECKS, memory=12 << 16, FAKE_CUDA_GRANULE="65536")
