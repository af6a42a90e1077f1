"""Priorities between jobs: some run more iterations in a round than others."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.base.arguments import strict


@strict
def by_weight(weights: Sequence[int]) -> list[int]:
    """Return in which order jobs take turns in a round, each as often as its weight says, evenly spread.

    Parameters
    ----------
    weights : sequence of int
        Iterations of each job in a round, 1 and more.

    Returns
    -------
    list of int
        Jobs, for `pipeline(turns=...)`: `sum(weights)` of them. After any number of turns each job has run less than
        one and a half iterations more or less than its share.

    Raises
    ------
    ValueError
        No jobs, a weight below 1.

    Notes
    -----
    Smooth weighted round robin: each turn all jobs earn their weight, the one that has most runs and pays for all.
    O(sum(weights) * jobs).

    Examples
    --------
    >>> by_weight([3, 1]), by_weight([1, 2, 4])
    ([0, 0, 1, 0], [2, 1, 2, 0, 2, 1, 2])
    """
    for job, weight in enumerate(weights):
        if weight < 1:
            raise ValueError(f"weight of job {job}: {weight} is below 1")
    if not weights:
        raise ValueError("weights: no jobs")
    earned, order = [0] * len(weights), list[int]()
    for _ in range(sum(weights)):
        earned = [account + weight for account, weight in zip(earned, weights)]
        order.append(max(range(len(weights)), key=lambda job: earned[job]))
        earned[order[-1]] -= sum(weights)
    return order
