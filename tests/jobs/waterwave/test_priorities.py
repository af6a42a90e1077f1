"""Turns are spread evenly, and each job gets as many in a round as it was told."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from gpumem.jobs.waterwave import by_weight


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_turns_are_spread_by_weight(weights: list[int]):
    turns = by_weight(weights)
    for job, weight in enumerate(weights):
        assert turns.count(job) == weight
        for k, ran in enumerate(accumulate(turn == job for turn in turns), 1):
            assert abs(ran - k * weight / sum(weights)) < 1.5


def test_a_weight_below_1_is_refused():
    for weights, told in (([1, 0], "weight of job 1: 0 is below 1"), ([], "weights: no jobs")):
        with pytest.raises(ValueError, match=told):
            by_weight(weights)
