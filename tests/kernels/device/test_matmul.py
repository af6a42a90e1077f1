"""Matrix products by large tiles and by small ones, and which of them are chosen."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest

from tests.kernel_cases import Array

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


def sums_of_products(
    device: ModuleType, turn_a: bool, turn_b: bool, inner: int = 18, enough: int = 2
) -> tuple[Array, Array]:
    """Two sums of two products each, by `matmul.product` and by NumPy; large tiles from `enough` of them on."""
    matmul = import_module("gpumem.kernels.device.matmul")  # the package has a function of that name

    rows, columns, rng = 19, 33, np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 2, rows, inner), (2, 2, inner, columns)))
    out = np.full(2 * rows * columns, np.nan, np.float32)
    left = np.swapaxes(a, 2, 3).flatten() if turn_a else a.reshape(-1)
    right = np.swapaxes(b, 2, 3).flatten() if turn_b else b.reshape(-1)
    left = left, rows * inner, *((1, rows) if turn_a else (inner, 1))
    right = right, inner * columns, *((1, inner) if turn_b else (columns, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "_ENOUGH", enough)
        matmul.product(0, left, right, out, 2, 2, (rows, columns, inner))
    return out, (a @ b).sum(axis=1).reshape(-1)


def test_products_by_large_tiles(device: ModuleType) -> None:
    np.testing.assert_allclose(*sums_of_products(device, False, False, inner=5), 1e-4, 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
def test_products_by_large_tiles_whatever_lies_side_by_side(device: ModuleType, turn_a: bool, turn_b: bool) -> None:
    np.testing.assert_allclose(*sums_of_products(device, turn_a, turn_b), 1e-4, 1e-5)


@pytest.mark.thorough
def test_the_size_of_tiles_changes_no_bit(device: ModuleType) -> None:
    large, small = (sums_of_products(device, False, True, 18, enough)[0] for enough in (2, 3))
    assert np.array_equal(large, small)


@pytest.mark.parametrize(
    ("batches", "rows", "columns", "share"),
    [(1, 512, 512, 4), (1, 448, 512, 1), (64, 17, 17, 4), (64, 16, 32, 1), (9999, 8, 64, 4), (9999, 8, 48, 1)],
)
def test_tiles_are_large_where_they_keep_a_gpu_busy(
    device: ModuleType, batches: int, rows: int, columns: int, share: int
) -> None:
    from gpumem.kernels.device.matmul import share_of

    assert share_of(batches, rows, columns) == share


def test_a_side_beyond_32_bits_is_refused(device: ModuleType) -> None:
    from gpumem.kernels.device.matmul import product

    with pytest.raises(ValueError, match=r"inner\) = \(1, 2147483648, 1\): no side may be longer than 2147483520"):
        product(0, (None, 0, 0, 0), (None, 0, 0, 0), None, 1, 1, (1, 2**31, 1))
