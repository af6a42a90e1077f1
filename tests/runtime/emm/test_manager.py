"""Numba's memory manager, over the fake driver: an unmodified program, and `fake_cuda/emm_checks.py`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import checks_of, needs_kernels, passed

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

ROOT = fake_cuda.HERE.parent.parent
CHECKS = checks_of(fake_cuda.HERE / "emm_checks.py")
OURS = {"NUMBA_CUDA_MEMORY_MANAGER": "gpumem.runtime.emm", "PYTHONPATH": str(ROOT)}
PROGRAM = f"""
import runpy
runpy.run_path({str(ROOT / "tests" / "numba_training.py")!r}, run_name="__main__")
from fake_cuda import control
print(control.count("allocations") + control.count("creates"))
"""
SERVED = """
from gpumem.runtime import emm
print(emm.statistics().share, emm.statistics())
"""


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    """Skip where the fake driver, or what compiles kernels, is missing."""
    needs_kernels()


def ran(code: str, **env: str) -> list[str]:
    """What some code prints that runs on the fake driver."""
    done = fake_cuda.run(code, timeout=200, NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_the_manager_on_the_fake_driver() -> None:
    (printed,) = ran("from fake_cuda import emm_checks; emm_checks.main()", **OURS)
    passed(printed, CHECKS)


@pytest.mark.thorough
def test_an_unmodified_program_computes_the_same_and_is_served_from_the_plan() -> None:
    alone, asked = ran(PROGRAM)
    digest, still_asked, told = ran(PROGRAM + SERVED, **OURS)
    assert digest == alone
    assert int(still_asked) <= 2 < int(asked) // 100
    assert float(told.split()[0]) > 0.95, told


@pytest.mark.thorough
def test_a_device_that_cannot_map_memory_gives_most_of_it_at_once() -> None:
    code = """
from numba import cuda
from gpumem.runtime import emm
total = cuda.current_context().get_memory_info().total
x = cuda.device_array(1000)
print(emm.statistics().held_bytes / total)
"""
    assert [float(part) for part in ran(code, FAKE_CUDA_NO_MAPPING="1", **OURS)] == [pytest.approx(0.9)]


@pytest.mark.thorough
def test_a_program_that_ends_with_arrays_in_its_hands_ends_well() -> None:
    code = """
import numpy as np
from numba import cuda
kept, streams = [cuda.device_array(1000) for _ in range(3)], [cuda.stream() for _ in range(2)]
kept.append(kept)
class Late:
    def __init__(self): self.array = cuda.device_array(10)
    def __del__(self): self.array = None
late = Late()
late.itself = late
"""
    assert ran(code, **OURS) == []
