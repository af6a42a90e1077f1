"""What `kernels.reference` has in no module of its own, against formulas and finite differences; what it imports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import CASES, Array, Pick, zeros
from tests.kernels.formulas import doubles, slope
from tests.kernels.without_simulator import run

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@given(data=st.data(), seed=st.integers(0, 99))
def test_matmul_is_that_of_numpy(data: st.DataObject, seed: int) -> None:
    case = CASES["matmul"](Pick(lambda low, high: data.draw(st.integers(low, high)), seed))
    reference.matmul(None, **case)
    a, b = (case[k].T if case[f"transpose_{k}"] else case[k] for k in "ab")
    np.testing.assert_allclose(case["out"], np.matmul(a.astype(float), b.astype(float)), 1e-4, 1e-5)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 2)])
def test_gradients_of_bias_and_relu(shape: tuple[int, ...]) -> None:
    x, b, y, dy = doubles(*shape), doubles(shape[1]), np.zeros(shape), doubles(*shape, 1)[..., 0]

    def biased(b: Array) -> Array:
        reference.bias(None, x, b, y)
        return y

    def rectified(x: Array) -> Array:
        reference.relu(None, x, y)
        return y

    db, dx = np.ones_like(b), np.ones_like(x)
    reference.bias_gradient(None, dy, db)
    np.testing.assert_allclose(db, slope(biased, b, dy), 1e-6)
    reference.relu_gradient(None, rectified(x), dy, dx)
    np.testing.assert_allclose(dx, slope(rectified, x, dy), 1e-6, 1e-9)


def test_gradient_of_cross_entropy() -> None:
    logits, labels, probs, loss = doubles(4, 5), np.array([0, 4, 2, 2], np.int32), np.zeros((4, 5)), np.zeros(4)

    def mean_loss(logits: Array) -> Array:
        mean = np.zeros(1)
        reference.softmax_cross_entropy(None, logits, labels, probs, loss)
        reference.mean(None, loss, mean)
        return mean

    expected, gradient = slope(mean_loss, logits, np.ones(1)), np.ones_like(logits)
    mean_loss(logits)
    np.testing.assert_allclose(loss, [-math.log(probs[i, label]) for i, label in enumerate(labels)])
    np.testing.assert_allclose(probs, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    reference.softmax_cross_entropy_gradient(None, probs, labels, gradient)
    np.testing.assert_allclose(gradient, expected, 1e-6, 1e-9)


def test_cross_entropy_is_stable_and_refuses_strange_labels() -> None:
    logits, probs, loss = np.array([[1e4, -1e4]] * 3, np.float32), zeros(3, 2), zeros(3)
    reference.softmax_cross_entropy(None, logits, np.array([0, 1, 2], np.int32), probs, loss)
    assert probs.tolist() == [[1, 0]] * 3
    assert loss.tolist()[:2] == [0, 2e4] and math.isnan(loss[2])


def test_optimizers_follow_their_formulas() -> None:
    w, g = 0.5, 0.25
    one = [np.array([value], np.float32) for value in (w, g, 0, 0, 0)]
    m = v = 0.0
    for t in (1, 2, 3):
        reference.tick(None, one[4])
        reference.adam(None, *one, 0.1, 0.9, 0.999, 1e-8)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        assert one[4][0] == t and one[0][0] == pytest.approx(w, rel=1e-5)
    velocity, one[2][:] = 0.0, 0
    for _ in range(3):
        reference.sgd(None, one[0], one[1], one[2], 0.1, 0.9, 0.01)
        velocity = 0.9 * velocity + (g + 0.01 * w)
        w -= 0.1 * velocity
        assert one[0][0] == pytest.approx(w, rel=1e-5)


def test_the_reference_needs_numpy_only() -> None:
    assert run("import sys, gpumem.kernels; print('numpy' in sys.modules)").split() == ["False"]
    assert run("import sys; sys.modules['numba'] = None; import gpumem.kernels.reference; print('ok')").split() == [
        "ok"
    ]
