"""What stands between kernels and Numba: the compiler that is chosen, launches from several threads, sizes of grids."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from gpumem.kernels import launch
from gpumem.kernels.prebound import Script
from tests.kernel_cases import CASES, Pick
from tests.kernels.comparing import compare, largest
from tests.kernels.without_simulator import run

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


def test_two_threads_may_launch(device: ModuleType) -> None:
    """The simulator refuses concurrent launches, so this needs the lock."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                compare(device, "add", CASES["add"](Pick(largest)))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_without_numba_cuda_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['numba_cuda'] = None\ntry: import gpumem.kernels.device\n"
    code += "except ImportError as error: print(error)"
    assert "pip install 'gpumem[cu13]'" in run(code)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("numba-cuda-mlir", "gpumem.kernels.device needs numba-cuda-mlir: pip install numba-cuda-mlir"),
        ("nvcc", "GPUMEM_KERNEL_COMPILER: 'nvcc'"),
    ],
)
def test_another_compiler_must_be_known_and_there(compiler: str, message: str) -> None:
    code = "import os, sys; sys.modules['numba_cuda_mlir'] = None\n"
    code += f"os.environ['GPUMEM_KERNEL_COMPILER'] = {compiler!r}\ntry: import gpumem.kernels.device\n"
    code += "except (ImportError, ValueError) as error: print(error)"
    assert message in run(code)


def test_a_kernel_has_as_many_blocks_as_it_is_launched_with(
    device: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpumem.kernels import numba_cuda as _numba

    grids = []
    monkeypatch.setattr(_numba, "_bound", lambda kernel, grid, *_: grids.append(grid))
    launch(None, 2**20, 1, Script())  # it need not loop
    _numba.spread(None, 2**20, 1, Script())
    assert grids == [2**20, 2**16]
