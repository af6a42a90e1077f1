"""`execute/cuda` on the fake driver: orders, events, faults, graphs. See `fake_cuda/backend_checks.py`."""

from __future__ import annotations

import json
import re

import pytest

from tests import fake_cuda
from tests.conftest import absent, needs

CHECKS = re.findall(r"^def (check_\w+)", (fake_cuda.HERE / "backend_checks.py").read_text(), re.M)


@pytest.fixture(scope="module")
def outcome() -> dict[str, str | None]:
    """What came of each check: all of them run in one process, and in one test, so that no two workers run them."""
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    done = fake_cuda.run("from fake_cuda import backend_checks; backend_checks.main()", timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def test_streams_have_hardware_queues_of_their_own_unless_the_user_says_otherwise() -> None:
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
import ctypes, gpumem.execute.cuda
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"CUDA_DEVICE_MAX_CONNECTIONS").decode())
"""
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert [fake_cuda.run(code, **given).stdout for given in ({}, env)] == ["32\n", "1\n"]


@pytest.mark.thorough
def test_on_the_fake_driver(outcome: dict[str, str | None]) -> None:
    assert set(outcome) == set(CHECKS)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
