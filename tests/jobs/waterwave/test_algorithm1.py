"""Algorithm 1 as the paper prints it: its example, and where it breaks the order of groups."""

from __future__ import annotations

import pytest

from gpumem.jobs.waterwave import algorithm1, pipeline
from gpumem.jobs.waterwave.algorithm1 import overlap
from tests.jobs.waterwave.jobs_together import Shape, made, wrong


def test_figure_5():
    """The paper's three jobs of six, four and four groups, half of them of allocation."""
    jobs = [(6, 3), (4, 2), (4, 2)]
    av, dv = pipeline(made(jobs), overlap=0, wrap=False).rows()
    assert av == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), None]
    assert dv == [None, None, None, (0, 3), (0, 4), (0, 5), (1, 2), (1, 3), (2, 3)]
    assert (av[3], dv[3]) == ((1, 0), (0, 3)) and (av[6], dv[6]) == ((2, 1), (1, 2))  # the pairs that its text names
    assert algorithm1([g for g, _ in jobs], [a for _, a in jobs]) == (av, dv)


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([(4, 2), (4, 3)], "job 1 runs [0, 1, 2, 3] in slots [2, 3, 4, 4]"),  # in one slot
        ([(4, 3), (4, 3), (4, 3)], "job 1 runs [0, 1, 3, 2] in slots [3, 4, 4, 5]"),  # and in an earlier one
    ],
)
def test_as_printed_it_breaks_the_order_of_groups(jobs: list[Shape], told: str):
    assert wrong(*algorithm1([g for g, _ in jobs], [a for _, a in jobs]), jobs) == told
    assert wrong(*pipeline(made(jobs), overlap=0, wrap=False).rows(), jobs) == ""


def test_overlap_is_clamped():
    assert [overlap(limit, 60, 10, [4, 3]) for limit in (50, 60, 79, 80, 99, 200)] == [0, 0, 0, 1, 2, 3]
