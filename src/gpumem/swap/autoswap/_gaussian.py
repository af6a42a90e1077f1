"""A Gaussian process with a Matern 5/2 kernel, and expected improvement: the algebra of Bayesian optimization.

SciPy takes a while to load, so it is imported where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.trace import F64

# Length scales tried: the points lie on the unit sphere, so none is further than 2 from another. Not tuned.
SCALES = (0.1, 0.2, 0.4, 0.8, 1.6)
# Plans are deterministic; the variance only keeps the matrix invertible where two points nearly coincide. Not tuned.
NOISE = 1e-6
LEAST_VARIANCE = 1e-12  # rounding may leave a variance below 0


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """A process fitted to values `y` (standardised inside) at points `x`, float64[k, d]."""

    x: F64
    scale: float
    factor: F64
    weight: F64
    mean: float
    spread: float

    @classmethod
    def fit(cls, x: F64, y: F64) -> Gaussian:
        """Take the length scale of the largest marginal likelihood."""
        from scipy.linalg import cho_factor, cho_solve

        mean, spread = float(y.mean()), float(y.std()) or 1.0
        standard = (y - mean) / spread

        def at(scale: float) -> tuple[float, Gaussian]:
            factor = cho_factor(matern(x, x, scale) + NOISE * np.eye(len(x)), lower=True)[0]
            weight = cho_solve((factor, True), standard)
            likelihood = float(-standard @ weight / 2 - np.log(np.diag(factor)).sum())
            return likelihood, cls(x=x, scale=scale, factor=factor, weight=weight, mean=mean, spread=spread)

        return max(map(at, SCALES), key=lambda fit: fit[0])[1]

    def predict(self, x: F64) -> tuple[F64, F64]:
        """Return the mean and the standard deviation at points `x`."""
        from scipy.linalg import cho_solve

        cross = matern(x, self.x, self.scale)
        variance = 1 - np.einsum("ij,ji->i", cross, cho_solve((self.factor, True), cross.T))
        return self.mean + self.spread * (cross @ self.weight), self.spread * np.sqrt(
            np.maximum(variance, LEAST_VARIANCE)
        )

    def improvement(self, x: F64, least: float) -> F64:
        """Return by how much points `x` are expected to get below `least`."""
        from scipy.special import ndtr

        mean, sigma = self.predict(x)
        margin = (least - mean) / sigma
        expected: F64 = (least - mean) * ndtr(margin) + sigma * np.exp(-margin * margin / 2) / np.sqrt(2 * np.pi)
        return expected


def matern(left: F64, right: F64, scale: float) -> F64:
    """Matern 5/2 between the rows of `left` and of `right`."""
    distance = np.sqrt(5.0 * ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)) / scale
    kernel: F64 = (1 + distance + distance * distance / 3) * np.exp(-distance)
    return kernel
