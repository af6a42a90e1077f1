"""Numba's arrays under a limit, over the fake driver: unmodified programs on a device that is too small for them.

`fake_cuda/limit_checks.py` has the rest: all of its checks run in one process, and in one test.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from tests import fake_cuda
from tests.on_fake_driver import checks_of, needs_kernels, passed

pytestmark = [pytest.mark.jit, pytest.mark.thorough]  # no loop of gpumem's is compiled here

ROOT = fake_cuda.HERE.parent.parent
CHECKS = checks_of(fake_cuda.HERE / "limit_checks.py")
DEVICE = 80 * 1024
OURS = {"NUMBA_CUDA_MEMORY_MANAGER": "gpumem.runtime.emm"}
EACH = """
import json
from hashlib import sha256
from tests.numba_programs import PROGRAMS
def outcome(program):
    try:
        return sha256(program()).hexdigest()
    except Exception as error:
        return str(error)
print(json.dumps({name: outcome(program) for name, program in PROGRAMS.items()}))
"""
TRAINING = f"""
import runpy
runpy.run_path({str(ROOT / "tests" / "numba_training.py")!r}, run_name="__main__")
"""
TOLD = """
from gpumem.runtime import emm
for row in emm.report().iterations:
    print(row.state, row.misses, row.evictions, row.peak)
"""


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    """Skip where the fake driver, or what compiles kernels, is missing."""
    needs_kernels()


def ran(code: str, memory: int, **env: str) -> list[str]:
    """What some code prints on a device of so many bytes."""
    quiet = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_WARN_ON_IMPLICIT_COPY": "0"}
    env = {"FAKE_CUDA_GRANULE": "4096", "PYTHONPATH": str(ROOT)} | quiet | env
    done = fake_cuda.run(code, memory=memory, timeout=200, **env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


@cache
def natively(memory: int) -> dict[str, str]:
    """What each program computes on a device of so many bytes, or what it dies of."""
    (printed,) = ran(EACH, memory)
    found: dict[str, str] = json.loads(printed)
    return found


def test_programs_run_out_of_memory_without_a_limit() -> None:
    died = natively(DEVICE)
    assert died and all("CUDA_ERROR_OUT_OF_MEMORY" in why for why in died.values()), died


def test_programs_compute_the_same_within_a_limit() -> None:
    assert [*json.loads(*ran(EACH, DEVICE, GPUMEM_LIMIT=str(DEVICE), **OURS)).items()] == [*natively(2**24).items()]


def test_limits_on_the_fake_driver() -> None:
    (printed,) = ran(
        "from fake_cuda import limit_checks; limit_checks.main()",
        160 * 1024,
        EXPECTED=json.dumps(natively(2**24)),
        **OURS,
    )
    passed(printed, CHECKS)


def test_a_ruined_context_is_left_behind() -> None:
    code, expected = "from fake_cuda import limit_checks; limit_checks.ruined()", json.dumps(natively(2**24))
    assert ran(code, 160 * 1024, EXPECTED=expected, **OURS) == []


def test_an_unmodified_training_is_planned_for() -> None:
    """Its iteration is found and planned for, and from then on no launch finds an array away."""
    size = {"WIDTH": "32", "BATCH": "32", "STEPS": "12"}
    (alone,) = ran(TRAINING, 2**24, **size)
    limit = 12 * 4096
    told = {"GPUMEM_LIMIT": str(limit), "GPUMEM_SWAP": "heuristic", "GPUMEM_WAIT": "1"}
    digest, *rows = ran(TRAINING + TOLD, limit, **told, **OURS, **size)
    assert digest == alone
    states = [row.split() for row in rows]
    planned = [row for row in states if row[0] == "planned"]
    assert len(planned) >= 8, rows
    assert all(int(misses) == int(evictions) == 0 for _, misses, evictions, _ in planned), rows
    assert all(int(peak) <= limit for *_, peak in states), rows


def test_a_program_may_end_while_it_is_planned_for() -> None:
    code = "from tests import numba_programs\nkept = numba_programs.steady(6)\n"
    code += "from numba import cuda\nx = cuda.device_array(5000)\ny = [x, cuda.stream()]\ny.append(y)\n"
    assert ran(code, DEVICE, GPUMEM_LIMIT=str(DEVICE), GPUMEM_SWAP="ilp", **OURS) == []


def test_what_cannot_be_is_told() -> None:
    code = """
from numba import cuda
try:
    cuda.device_array(10_000)
except Exception as error:
    print(type(error).__name__, error)
"""
    for env, told in {
        ("GPUMEM_LIMIT", "much"): "ValueError GPUMEM_LIMIT: ",
        ("GPUMEM_LIMIT", "2KiB"): "ValueError a budget of 2048 bytes: memory is mapped in granules of 4.00 KiB",
        ("GPUMEM_SWAP", "heuristics"): "ValueError GPUMEM_SWAP: 'heuristics' is unknown",
        ("GPUMEM_CAPACITY", "1MiB"): "ValueError GPUMEM_CAPACITY: a limit is set",
        ("GPUMEM_SECONDS", "soon"): "ValueError GPUMEM_SECONDS: 'soon' is not a positive number of seconds",
        ("GPUMEM_WAIT", "yes"): "ValueError GPUMEM_WAIT: 'yes' is neither 0 nor 1",
        ("FAKE_CUDA_NO_MAPPING", "1"): "RuntimeError ",
    }.items():
        found = "\n".join(ran(code, DEVICE, **{"GPUMEM_LIMIT": str(DEVICE)} | dict([env]) | OURS))
        assert found.startswith(told), (env, found)
