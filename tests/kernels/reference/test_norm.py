"""Batch norm, layer norm and dropout in NumPy against their formulas, their gradients against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.kernels import reference
from tests.kernel_cases import Array, zeros
from tests.kernels.formulas import MASK, agree, doubles, naive_mix, slope, slopes

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@pytest.mark.parametrize("shape", [(5, 2), (2, 3, 4, 2)])
def test_gradients_of_batch_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta, dy = doubles(*shape), doubles(shape[1]), doubles(shape[1], 1)[:, 0], doubles(*shape, 1)[..., 0]
    y, mean, inverse_std = np.zeros(shape), np.zeros(shape[1]), np.zeros(shape[1])

    def normed(x: Array, gamma: Array, beta: Array) -> Array:
        reference.batch_norm(None, x, gamma, beta, y, mean, inverse_std, epsilon=0.01)
        return y

    got = [np.ones_like(array) for array in (x, gamma, beta)]
    normed(x, gamma, beta)
    reference.batch_norm_gradient(None, dy, x, gamma, mean, inverse_std, *got)
    for k, gradient in enumerate(got):
        given = [x, gamma, beta]

        def moved(array: Array, k: int = k, given: list[Array] = given) -> Array:
            return normed(*given[:k], array, *given[k + 1 :])

        np.testing.assert_allclose(gradient, slope(moved, given[k], dy), 1e-5, 1e-7)


@pytest.mark.parametrize("shape", [(6, 2), (2, 2, 3, 1)])
def test_batch_norm_follows_its_formula_and_without_statistics_does_the_same(shape: tuple[int, ...]) -> None:
    x, gamma, beta = doubles(*shape), doubles(2), doubles(2, 1)[:, 0]
    rows = np.moveaxis(x, 1, 0).reshape(2, 6)
    outs = [[np.ones(shape), np.ones(2), np.ones(2)] for _ in range(2)]
    running = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    reference.batch_norm(None, x, gamma, beta, *outs[0], *running, 0.25, 0.01)
    reference.batch_norm(None, x, gamma, beta, *outs[1], momentum=0.25, epsilon=0.01)
    assert all(np.array_equal(a, b) for a, b in zip(*outs))
    y, mean, inverse_std = outs[0]
    np.testing.assert_allclose(mean, rows.mean(1))
    np.testing.assert_allclose(inverse_std, (rows.var(1) + 0.01) ** -0.5)
    wanted = ((rows.T - mean) * inverse_std * gamma + beta).T
    np.testing.assert_allclose(np.moveaxis(y, 1, 0).reshape(2, 6), wanted, 1e-6)
    np.testing.assert_allclose(running[0], 0.75 * np.array([1, 2]) + 0.25 * rows.mean(1), 1e-6)
    np.testing.assert_allclose(running[1], 0.75 * np.array([3, 4]) + 0.25 * rows.var(1, ddof=1), 1e-6)


def test_one_sample_has_no_spread() -> None:
    running, out = [np.zeros(1, np.float32), np.ones(1, np.float32)], [zeros(1, 1), zeros(1), zeros(1)]
    reference.batch_norm(None, zeros(1, 1) + 3, zeros(1) + 1, zeros(1) + 5, *out, *running, momentum=0.5)
    assert (out[0][0, 0], *running) == (5, 1.5, 0.5)


@given(size=st.integers(0, 40), seed=st.integers(-(2**65), 2**65), before=st.integers(0, MASK), p=st.floats(0, 0.99))
def test_dropout_goes_by_splitmix64(size: int, seed: int, before: int, p: float) -> None:
    x, counter, mask = np.arange(size, dtype=float) + 1, np.array([before], np.uint64), np.zeros(size, np.uint8)
    y, dx = np.zeros(size), np.zeros(size)
    reference.dropout(None, x, y, mask, counter, seed, p)
    start = naive_mix(before ^ naive_mix(seed & MASK))
    draws = [naive_mix((start + (i + 1) * 0x9E3779B97F4A7C15) & MASK) >> 32 for i in range(size)]
    assert mask.tolist() == [draw >= round(p * 2**32) for draw in draws] and counter[0] == before
    np.testing.assert_allclose(y, x * mask / (1 - p), 1e-6)
    reference.dropout_gradient(None, x, mask, dx, p)
    assert np.array_equal(dx, y)  # it is linear


def test_dropout_drops_its_share_and_draws_anew_after_an_advance() -> None:
    x, counter, masks = np.ones(2**16, np.float32), np.zeros(1, np.uint64), []
    for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0)):
        for _ in range(step):
            reference.advance(None, counter)
        masks.append(np.zeros(len(x), np.uint8))
        reference.dropout(None, x, x.copy(), masks[-1], counter, seed, 0.25)
        assert masks[-1].mean() == pytest.approx(0.75, abs=0.01)
    assert np.array_equal(masks[0], masks[1])
    for a, b in ((1, 2), (2, 3)):  # independent: they agree where both keep, or both drop
        assert (masks[a] == masks[b]).mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.01)
    counter[0] = MASK
    reference.advance(None, counter)
    assert counter[0] == 0


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
