"""The memory behind a pool is what the device can do: it grows where it can be mapped, else it is fixed."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import needs_driver

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


@pytest.mark.parametrize(("mapping", "kind"), [("0", "Grown"), ("1", "Fixed")])
def test_a_backing_is_what_the_device_can_do(mapping: str, kind: str) -> None:
    """The context is left as well, whether that went well or not."""
    needs_driver()
    code = """
from cuda.bindings import driver
from fake_cuda import control
from gpumem.runtime.pooled.backing import VirtualMemory, backing
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
