"""The pipeline of node groups: each runs once and in order, rounds never meet, and its bound holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import bundled
from gpumem.base.errors import Infeasible
from gpumem.jobs.waterwave import Pipeline, Turn, algorithm1, partition, pipeline
from gpumem.jobs.waterwave.pipeline import folded
from gpumem.trace import Trace
from tests.jobs.waterwave.jobs_together import MACHINE, Shape, made, sets, wrong

shapes = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda x: (x[0] + x[1], x[0])), min_size=1, max_size=5
)


def mended(jobs: list[Shape], p: int | None):
    """Assert that each group runs once and in order, in a pipeline and where its rounds follow each other."""
    parts = made(jobs)
    assert wrong(*pipeline(parts, overlap=p, wrap=False).rows(), jobs) == ""
    round_ = pipeline(parts, overlap=p)
    flat = [None] * round_.period, [None] * round_.period  # two rounds, one behind the other
    rounds = [flat[0] * 3, flat[1] * 3]
    for turn in round_.turns:
        for k, (slot, stream) in enumerate(zip(turn.slot, turn.stream)):
            assert rounds[stream][slot] is None
            rounds[stream][slot] = turn.job, k
            assert rounds[stream][slot + round_.period] is None or slot >= round_.period
        assert turn.slot[-1] - turn.slot[0] < round_.period
    assert wrong(*rounds, jobs) == ""
    assert sum(found is not None for row in round_.rows() for found in row) == sum(g for g, _ in jobs)


@given(shapes, st.none() | st.integers(0, 4))
def test_mended_it_never_does(jobs: list[Shape], p: int | None):
    mended(jobs, p)


@pytest.mark.slow
def test_mended_it_never_does_in_many_cases():
    random = np.random.default_rng(0)
    broken = 0
    for _ in range(20_000):
        ups, downs = random.integers(1, 12, (2, random.integers(1, 7))).tolist()
        jobs = [(u + d, u) for u, d in zip(ups, downs)]
        p = int(random.integers(0, 5))
        mended(jobs, p)
        broken += wrong(*algorithm1([g for g, _ in jobs], [a for _, a in jobs], 0), jobs) != ""
    assert broken > 1000


def test_iterations_of_a_job_do_not_run_into_one_another():
    """Not even where a whole one would fit into slots that the one before leaves free."""
    part = made([(2, 1)])[0]
    flat = Pipeline((part,), (Turn(0, (1, 2), (0, 1)), Turn(0, (4, 7), (0, 1))), 8)  # by 4 slots: 0 to 3 around 1 to 2
    assert folded(flat, None).period == 7


@given(sets(), st.randoms(use_true_random=False))
def test_the_bound_holds_in_any_order(given_: tuple[list[Trace], Pipeline, int | None], random):
    """However the ops of a pair are launched, and whatever one stream does before the other has begun."""
    _, found, _ = given_
    bound, now = found.bound(), sum(part.rest for part in found.parts)
    for at in range(3 * found.period):
        rises = []  # of each group of this slot: what it holds op by op, beyond what was held at its start
        for turn in found.turns:
            part = found.parts[turn.job]
            for k in [k for k, slot in enumerate(turn.slot) if slot <= at and slot % found.period == at % found.period]:
                load = part.trace.live_bytes()[part.cuts[k] : part.cuts[k + 1]]
                rises.append([0, *(load - part.held[k]).tolist(), int(part.held[k + 1] - part.held[k])])
        while rises:
            row = random.choice(rises)
            now += row[1] - row[0]
            del row[0]
            rises = [row for row in rises if len(row) > 1]
            assert now <= bound[at % found.period]


def test_jobs_that_cannot_run_together_are_named():
    part = partition(bundled("vgg16"), MACHINE, 50 * 2**20)
    with pytest.raises(Infeasible) as caught:
        pipeline([part, part], part.peak + part.rest - 1)
    assert caught.value.needs == part.peak + part.rest
    assert caught.value.__notes__ == [
        "job 0 (vgg16_cifar_b100) needs 462.03 MiB by itself, beside 114.42 MiB that the others keep"
    ]
    assert pipeline([part, part], part.peak + part.rest).bound().max() == part.peak + part.rest
