"""What a transformer needs of `kernels.reference`, against formulas and finite differences.

`kernels/test_device.py` and `test_gpu.py` compare the kernels with these references.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import CASES, Array, Pick
from tests.kernels.formulas import agree, doubles, slopes

pytestmark = pytest.mark.jit


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


@given(data=st.data(), seed=st.integers(0, 99))
def test_products_of_batches_are_repeated_and_summed(data: st.DataObject, seed: int) -> None:
    case = CASES["batched_matmul"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.batched_matmul(None, **case)
    expected = np.zeros(case["out"].shape)
    for g in range(max(case[name].shape[0] for name in ("a", "b") if case[name].ndim == 3)):
        a, b = (case[name][g] if case[name].ndim == 3 else case[name] for name in "ab")
        product = np.matmul(a.T if case["transpose_a"] else a, (b.T if case["transpose_b"] else b).astype(float))
        expected[g if expected.ndim == 3 else ...] += product
    np.testing.assert_allclose(case["out"], expected, 1e-4, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_loops(causal: bool) -> None:
    q, k, v = doubles(2, 3, 4), doubles(2, 5, 4), doubles(2, 5, 4) + 1
    out, probs = np.ones((2, 3, 4)), np.ones((2, 3, 5))
    reference.attention(None, q, k, v, out, probs, causal)
    for g, t in np.ndindex(2, 3):
        seen = range(t + 1 if causal else 5)
        weights = [math.exp(sum(q[g, t] * k[g, s]) / 2) for s in seen]
        np.testing.assert_allclose(probs[g, t, : len(seen)], np.array(weights) / sum(weights), 1e-6)
        assert not probs[g, t, len(seen) :].any()
        np.testing.assert_allclose(out[g, t], sum(w * v[g, s] for w, s in zip(weights, seen)) / sum(weights), 1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention(causal: bool) -> None:
    given, dy = [doubles(2, 3, 4), doubles(2, 5, 4), doubles(2, 5, 4) + 1], doubles(2, 3, 4, 1)[..., 0]
    out, probs = np.ones((2, 3, 4)), np.ones((2, 3, 5))

    def attend(q: Array, k: Array, v: Array) -> Array:
        reference.attention(None, q, k, v, out, probs, causal)
        return out

    expected = slopes(attend, given, dy)
    attend(*given)
    got = [np.ones_like(array) for array in given]
    reference.attention_gradient(None, dy, *given, probs, *got, np.ones(31))
    agree(got, expected)


def test_rows_of_a_table_and_what_comes_back() -> None:
    table, ids = doubles(4, 2), np.array([2, 0, 2, -1, 4, 2], np.int32)
    out, dtable, dy = np.ones((6, 2)), np.ones((4, 2)), doubles(6, 2)
    reference.embedding(None, table, ids, out)
    assert np.array_equal(out[[0, 1, 2, 5]], table[[2, 0, 2, 2]]) and np.isnan(out[[3, 4]]).all()
    reference.embedding_gradient(None, dy, ids, dtable)
    np.testing.assert_allclose(dtable, [dy[1], [0, 0], dy[0] + dy[2] + dy[5], [0, 0]])


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
