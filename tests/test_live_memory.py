"""Memory of the room `live` over the fake driver: see `fake_cuda/live_checks`."""

from __future__ import annotations

import json
import re

import pytest

from tests import fake_cuda

from .conftest import absent, needs

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

SOURCES = sorted((fake_cuda.HERE / "live_checks").glob("*.py"))
CHECKS = re.findall(r"^def (check_\w+)", "".join(path.read_text() for path in SOURCES), re.M)


def test_on_the_fake_driver() -> None:
    """All checks run in one process, and in one test, so that no two workers run them."""
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = "from fake_cuda import live_checks; live_checks.main()"
    done = fake_cuda.run(code, memory=12 << 16, timeout=300, FAKE_CUDA_GRANULE="65536")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == set(CHECKS)
    assert not any(results.values()), "\n".join(f"{name}: {why}" for name, why in results.items() if why)


@pytest.mark.parametrize(("mapping", "kind"), [("0", "Grown"), ("1", "Fixed")])
def test_a_backing_is_what_the_device_can_do(mapping: str, kind: str) -> None:
    """The context is left as well, whether that went well or not."""
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
from cuda.bindings import driver
from fake_cuda import control
from gpumem.live.backing import VirtualMemory, backing
made = backing(0, 1 << 20)
made.grow(1 << 20)
made.close()
control.fail("allocation", 1)
try:
    backing(0, 8).close()
except MemoryError as error:
    print(error)
try:
    print(type(made).__name__, VirtualMemory(0).granule)
except RuntimeError as error:
    print(type(made).__name__, error)
print("held" if driver.cuDevicePrimaryCtxGetState(0)[2] else "left")
"""
    told = {
        "Grown": "Grown 2097152\nleft\n",
        "Fixed": "8 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY\n"
        "Fixed how memory is mapped: CUDA_ERROR_NOT_SUPPORTED\nleft\n",
    }
    done = fake_cuda.run(code, FAKE_CUDA_NO_MAPPING=mapping)
    assert done.stdout == told[kind], done.stderr
