"""How good predictions are: R^2 by type of operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpumem.execute.latency.samples import Measurement
from gpumem.trace import F64


@dataclass(frozen=True, slots=True)
class Score:
    """How well the times of one type of operator were predicted.

    `shapes`: distinct ops; `r2`: R^2 of the times; `log_r2`: of their logarithms; `total`: ns of all measurements.
    """

    name: str
    shapes: int
    r2: float
    log_r2: float
    total: int


def scores(rows: Sequence[Measurement], ns: F64) -> list[Score]:
    """Return the scores of predictions, the most expensive type first.

    Parameters
    ----------
    rows : sequence of Measurement
        Of shapes that were not learned from, to be of any use: see `split`.
    ns : float64[n]
        What was predicted for each.

    Raises
    ------
    ValueError
        Predictions that are not positive and finite, or not one for each row.

    Notes
    -----
    R^2 = 1 - sum of squared errors / sum of squared deviations from the mean: 1 is exact, 0 as good as the mean of the
    type, below 0 worse. A few large ops decide it; on the logarithm all count alike. NaN where all times are equal.

    Examples
    --------
    >>> from gpumem.execute.latency.samples import Sample
    >>> rows = [Measurement(Sample("relu", (n,), (n,)), 0, n) for n in (1, 2, 3)]
    >>> [(score.shapes, score.r2) for score in scores(rows, np.array([1.0, 2.0, 2.0]))]
    [(3, 0.5)]
    """
    if len(ns) != len(rows):
        raise ValueError(f"scores: {len(ns)} predictions for {len(rows)} measurements")
    if not ((ns > 0) & (ns < np.inf)).all():
        index = int(np.argmin((ns > 0) & (ns < np.inf)))
        raise ValueError(
            f"scores: prediction {index} ({rows[index].sample.name}): {ns[index]} ns are not positive and finite"
        )
    took = np.array([row.ns for row in rows], np.float64)
    scored = []
    for name in dict.fromkeys(row.sample.name for row in rows):
        chosen = np.array([row.sample.name == name for row in rows])
        true, guess = took[chosen], ns[chosen]
        shapes = len({row.sample.work for row in rows if row.sample.name == name})
        scored.append(Score(name, shapes, _r2(true, guess), _r2(np.log(true), np.log(guess)), int(true.sum())))
    return sorted(scored, key=lambda score: (-score.total, score.name))


def _r2(true: F64, guess: F64) -> float:
    spread = float(((true - true.mean()) ** 2).sum())
    return 1 - float(((true - guess) ** 2).sum()) / spread if spread else float("nan")
