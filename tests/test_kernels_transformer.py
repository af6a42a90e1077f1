"""Layer norm, softmax, GELU and average pooling in `kernels.reference` against formulas and finite differences.

`test_kernels.py` and `test_gpu.py` compare the kernels with these references.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.kernels import reference

from .kernel_cases import CASES, Array, Pick
from .test_kernels import doubles, slope

pytestmark = pytest.mark.jit


def slopes(function: Callable[..., Array], given: list[Array], dy: Array) -> list[Array]:
    """Return the gradient of sum(dy * function(*given)) by each array."""
    return [
        slope(lambda array, k=k: function(*given[:k], array, *given[k + 1 :]), x, dy)  # type: ignore[misc]
        for k, x in enumerate(given)
    ]


def agree(got: list[Array], expected: list[Array]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-7)


def test_layer_norm_follows_its_formula() -> None:
    x, gamma, beta = doubles(3, 5), doubles(5), doubles(5, 1)[:, 0]
    y, mean, inverse_std = np.ones((3, 5)), np.ones(3), np.ones(3)
    reference.layer_norm(None, x, gamma, beta, y, mean, inverse_std, 0.01)
    for row in range(3):
        middle = sum(x[row]) / 5
        var = sum((value - middle) ** 2 for value in x[row]) / 5
        assert mean[row] == pytest.approx(middle)
        assert inverse_std[row] == pytest.approx((var + 0.01) ** -0.5)
        wanted = [(x[row, c] - middle) / math.sqrt(var + 0.01) * gamma[c] + beta[c] for c in range(5)]
        np.testing.assert_allclose(y[row], wanted, 1e-6)


def test_gradients_of_layer_norm() -> None:
    given, dy = [doubles(4, 5), doubles(5), doubles(5, 1)[:, 0]], doubles(4, 5, 1)[..., 0]
    y, mean, inverse_std = np.zeros((4, 5)), np.zeros(4), np.zeros(4)

    def normed(x: Array, gamma: Array, beta: Array) -> Array:
        reference.layer_norm(None, x, gamma, beta, y, mean, inverse_std, epsilon=0.01)
        return y

    expected = slopes(normed, given, dy)
    normed(*given)
    got = [np.ones_like(array) for array in given]
    reference.layer_norm_gradient(None, dy, *given[:2], mean, inverse_std, *got)
    agree(got, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_that_of_loops(causal: bool) -> None:
    x, y = doubles(2, 3, 4), np.ones((2, 3, 4))
    reference.softmax(None, x, y, 0.5, causal)
    for n, row in np.ndindex(2, 3):
        weights = [math.exp(0.5 * x[n, row, c]) if c <= row or not causal else 0 for c in range(4)]
        np.testing.assert_allclose(y[n, row], np.array(weights) / sum(weights))


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_softmax(causal: bool) -> None:
    x, dy, y, dx = doubles(2, 3, 4), doubles(2, 3, 4, 1)[..., 0], np.zeros((2, 3, 4)), np.ones((2, 3, 4))

    def normed(x: Array) -> Array:
        reference.softmax(None, x, y, 0.5, causal)
        return y

    expected = slopes(normed, [x], dy)
    reference.softmax_gradient(None, normed(x), dy, dx, 0.5)
    agree([dx], expected)


def test_softmax_is_stable() -> None:
    x = np.array([[1e4, -1e4], [-3e38, -3e38]], np.float32)
    reference.softmax(None, x, x)
    assert x.tolist() == [[1, 0], [0.5, 0.5]]


def test_gelu_is_nearly_x_times_the_normal_distribution() -> None:
    x, y = np.linspace(-5, 5, 41), np.ones(41)
    reference.gelu(None, x, y)
    exact = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x]
    np.testing.assert_allclose(y, exact, atol=5e-4)  # what the form with tanh is off by (Hendrycks and Gimpel 2016)
    assert abs(y - exact).max() > 1e-4


def test_gradient_of_gelu() -> None:
    x, dy, y, dx = doubles(20), doubles(20, 1)[..., 0], np.zeros(20), np.ones(20)

    def bent(x: Array) -> Array:
        reference.gelu(None, x, y)
        return y

    reference.gelu_gradient(None, x, dy, dx)
    agree([dx], slopes(bent, [x], dy))


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
