"""Convolutions on the device with more work than a block has threads: direct, by im2col, by Winograd's transforms."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from gpumem.kernels import reference
from tests.kernel_cases import OPERANDS, Pick, images
from tests.kernels.comparing import compare, smallest

pytestmark = pytest.mark.jit  # the simulator runs Python anyway

GEOMETRIES = [(1, 6, 1, 1), (5, 2, 0, 2), (4, 5, 2, 3)]
CONVOLUTIONS = [(name, *numbers) for name in OPERANDS for numbers in GEOMETRIES]
CONVOLUTIONS += [pytest.param(f"{name}_im2col", 1, 1, 0, 1, marks=pytest.mark.thorough) for name in OPERANDS]


@pytest.mark.parametrize(("name", "kernels", "channels", "padding", "stride"), CONVOLUTIONS)
def test_convolutions_of_more_than_a_thread_and_a_block_sum_at_once(
    device: ModuleType,
    name: str,
    kernels: int,
    channels: int,
    padding: int,
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpumem.kernels import numba_cuda as _numba

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    monkeypatch.setattr(_numba, "_WAVES", 3)
    compare(device, name, images(Pick(smallest), name, (3, channels, 5, 7), (kernels, channels, 3, 2), padding, stride))


@pytest.mark.parametrize(("padding", "stride"), [(2, 1), (1, 2), (0, 1)])
def test_im2col_of_more_places_than_a_block_has_threads(
    device: ModuleType, padding: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The matrices alone: the product after them takes the simulator its time."""
    from gpumem.kernels import numba_cuda as _numba
    from gpumem.kernels.device import im2col

    monkeypatch.setattr(_numba, "THREADS", _numba._PARTS)
    case = images(Pick(smallest), "conv2d_im2col", (2, 2, 6, 9), (1, 2, 3, 2), padding, stride)
    got = case["workspace"].copy()
    im2col._unfold(0, case["x"], case["w"], case["out"], got, padding, stride)
    reference.conv2d_im2col(None, **case)
    assert np.array_equal(got, case["workspace"])


def test_the_transforms_of_winograd_make_a_correlation(device: ModuleType) -> None:
    """As matrices: y = A^T (G g * B^T d), in whole numbers but for the halves of G."""
    from gpumem.kernels.device import winograd

    g_matrix, b_matrix, a_matrix = (
        np.array([function(*row) for row in np.eye(n, dtype=np.float32)]).T
        for function, n in ((winograd.weights, 3), (winograd.pixels, 4), (winograd.results, 4))
    )
    assert g_matrix.tolist() == [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    for g, d in np.random.default_rng(0).integers(-9, 9, (5, 2, 4)):
        y = a_matrix @ ((g_matrix @ g[:3]) * (b_matrix @ d))
        assert y.tolist() == np.correlate(d, g[:3], "valid").tolist()
