"""An op of `kernels.device` beside the same one of `kernels.reference`, at the smallest or the largest sizes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpumem.kernels import reference
from tests.kernel_cases import WINOGRAD


def smallest(low: int, high: int) -> int:
    return low


def largest(low: int, high: int) -> int:
    return high


def compare(device: ModuleType, name: str, arguments: dict[str, Any]) -> None:
    """Run an op in both libraries: all arguments must agree afterwards, inputs included."""
    from gpumem.kernels.numba_cuda import cuda

    theirs = {k: cuda.to_device(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    getattr(device, name)(0, **theirs)
    assert getattr(reference, name)(None, **arguments) is None
    for k, expected in arguments.items():
        if isinstance(expected, np.ndarray) and not (k == "workspace" and name in WINOGRAD):
            got = theirs[k].copy_to_host()
            exact = expected.dtype != np.float32
            np.testing.assert_allclose(got, expected, *(0, 0) if exact else (1e-4, 1e-5), err_msg=f"{name}: {k}")
