"""Scores of predictions are those of scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpumem.execute.latency.scores import scores
from tests.execute.latency.rows import table

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


def test_scores_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import r2_score

    rows, rng = table()[1], np.random.default_rng(0)
    ns = np.array([row.ns for row in rows]) * rng.lognormal(0, 0.5, len(rows))
    found = scores(rows, ns)
    assert [s.total for s in found] == sorted((s.total for s in found), reverse=True) and len(found) == 7
    for score in found:
        mine = [row.sample.name == score.name for row in rows]
        took = np.array([row.ns for row in rows])[mine]
        assert score.r2 == pytest.approx(r2_score(took, ns[mine]))
        assert score.log_r2 == pytest.approx(r2_score(np.log(took), np.log(ns[mine])))
        assert (score.shapes, score.total) == (15, took.sum())
    with pytest.raises(ValueError, match="1 predictions for"):
        scores(rows, ns[:1])
    with pytest.raises(ValueError, match=rf"prediction 2 \({rows[2].sample.name}\): nan"):
        scores(rows, np.where(np.arange(len(rows)) == 2, np.nan, ns))
    assert math.isnan(scores(rows[:1], ns[:1])[0].r2)
