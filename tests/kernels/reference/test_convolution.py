"""Convolution and pooling in NumPy against loops, their gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import CASES, Array, Pick
from tests.kernels.formulas import doubles, slope

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


def naive_conv(x: Array, w: Array, padding: int, stride: int, out: Array) -> None:
    for n, k, p, q in np.ndindex(out.shape):
        out[n, k, p, q] = 0
        for c, r, s in np.ndindex(w.shape[1:]):
            h, v = p * stride + r - padding, q * stride + s - padding
            if 0 <= h < x.shape[2] and 0 <= v < x.shape[3]:
                out[n, k, p, q] += x[n, c, h, v] * w[k, c, r, s]


@pytest.mark.parametrize("name", ["conv2d", "conv2d_im2col"])
@given(data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_convolution_is_that_of_loops(name: str, data: st.DataObject, seed: int) -> None:
    case = CASES[name](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    expected = np.zeros(case["out"].shape)
    naive_conv(case["x"], case["w"], case["padding"], case["stride"], expected)
    getattr(reference, name)(None, **case)
    np.testing.assert_allclose(case["out"], expected, 1e-4, 1e-5)


@given(data=st.data(), seed=st.integers(0, 99))
def test_pooling_is_that_of_loops(data: st.DataObject, seed: int) -> None:
    case = CASES["max_pool"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.max_pool(None, **case)
    x, size, stride = case["x"], case["size"], case["stride"]
    dy, dx, expected = (
        np.random.default_rng(seed).random(case["out"].shape, np.float32),
        np.ones_like(x),
        np.zeros(x.shape),
    )
    for n, c, p, q in np.ndindex(case["out"].shape):
        window = x[n, c, p * stride : p * stride + size, q * stride : q * stride + size]
        h, v = divmod(int(window.argmax()), size)  # argmax is the first one
        assert case["out"][n, c, p, q] == window[h, v]
        assert case["index"][n, c, p, q] == (p * stride + h) * x.shape[3] + q * stride + v
        expected[n, c, p * stride + h, q * stride + v] += dy[n, c, p, q]
    reference.max_pool_gradient(None, dy, case["index"], dx, size, stride)
    np.testing.assert_allclose(dx, expected, 1e-5)


@pytest.mark.parametrize("suffix", ["", "_im2col"])
@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (1, 2), (2, 2), (0, 3)])
def test_gradients_of_convolution(padding: int, stride: int, suffix: str) -> None:
    x, w = doubles(2, 2, 5, 4), doubles(3, 2, 3, 2)
    y = np.zeros((2, 3, (5 + 2 * padding - 3) // stride + 1, (4 + 2 * padding - 2) // stride + 1))
    dy, dx, dw = doubles(*y.shape), np.ones_like(x), np.ones_like(w)
    workspace = [np.ones(reference.im2col_floats(x.shape, w.shape, padding, stride))] if suffix else []

    def forward(x: Array, w: Array) -> Array:
        naive_conv(x, w, padding, stride, y)
        return y

    getattr(reference, f"conv2d_input_gradient{suffix}")(None, dy, w, dx, *workspace, padding, stride)
    getattr(reference, f"conv2d_weight_gradient{suffix}")(None, x, dy, dw, *workspace, padding, stride)
    np.testing.assert_allclose(dx, slope(lambda x: forward(x, w), x, dy), 1e-6, 1e-8)
    np.testing.assert_allclose(dw, slope(lambda w: forward(x, w), w, dy), 1e-6, 1e-8)


@given(data=st.data(), seed=st.integers(0, 99))
def test_average_pooling_is_that_of_loops(data: st.DataObject, seed: int) -> None:
    case = CASES["average_pool"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.average_pool(None, **case)
    x, size, stride = case["x"], case["size"], case["stride"]
    dy, dx, expected = Pick(max, seed).floats(*case["out"].shape), np.ones_like(x), np.zeros(x.shape)
    for n, c, p, q in np.ndindex(case["out"].shape):
        window = np.s_[n, c, p * stride : p * stride + size, q * stride : q * stride + size]
        assert case["out"][n, c, p, q] == pytest.approx(x[window].mean(), abs=1e-6)
        expected[window] += dy[n, c, p, q] / size**2
    reference.average_pool_gradient(None, dy, dx, size, stride)
    np.testing.assert_allclose(dx, expected, 1e-5, 1e-6)
