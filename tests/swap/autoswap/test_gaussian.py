"""The Gaussian process: it goes through its points, and expects what drawing from it gives."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.swap.autoswap._gaussian import Gaussian, matern


def test_the_process_goes_through_its_points_and_doubts_between_them() -> None:
    x = np.array([[0.0], [0.5], [1.0]])
    y = np.array([3.0, 1.0, 2.0])
    model = Gaussian.fit(x, y)
    mean, sigma = model.predict(np.array([[0.0], [0.5], [1.0], [0.25]]))
    assert mean[:3] == pytest.approx(y, abs=1e-3)
    assert (sigma[:3] < 0.01).all() and sigma[3] > 0.05
    gain = model.improvement(np.array([[0.5], [0.6], [0.0]]), 1.0)
    assert gain[1] > gain[0] and gain[1] > gain[2] >= 0
    assert matern(x, x, 1.0).diagonal().tolist() == [1, 1, 1]


def test_expected_improvement_is_what_drawing_from_the_process_gives() -> None:
    model = Gaussian.fit(np.array([[0.0], [1.0]]), np.array([1.0, 0.0]))
    at = np.array([[0.4]])
    mean, sigma = model.predict(at)
    drawn = np.random.default_rng(0).normal(mean, sigma, 400_000)
    assert model.improvement(at, 0.0)[0] == pytest.approx(np.maximum(0 - drawn, 0).mean(), rel=0.02)
