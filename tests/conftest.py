"""Shared by all tests: Hypothesis profiles, where the shared instances are, a small machine."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads spin, which is slow on a busy machine
if "gpu" not in sys.argv:  # pytest -m gpu
    os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # Numba's simulator, chosen before the first import

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpumem.machine import Link, Machine

_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=_slow_is_fine)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=20)  # the pass without the compiler
settings.register_profile("nightly", max_examples=1000, deadline=None, suppress_health_check=_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared(pattern: str) -> list[Path]:
    """Return the shared instances that match, none where there are none."""
    return sorted(SHARED.glob(pattern))


@pytest.fixture
def machine() -> Machine:
    """A slow machine whose copies take about as long as the ops of random traces."""
    return tiny_machine()


def tiny_machine(*, duplex: bool = True) -> Machine:
    """Copies take 3 + bytes / 2 ns out and 2 + bytes / 4 ns in."""
    return Machine(
        "tiny", 10**6, Link(3, 0.5), Link(2, 0.25), flops=1e9, bandwidth=1e9, launch_ns=1, duplex=duplex, pinned=10**6
    )
