"""A race: annealing from several starts, of which the better ones go on, with more work for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from gpumem.base.deadline import Deadline
from gpumem.simulator.simulate import simulate
from gpumem.swap.judge import Judge
from gpumem.swap.plan import Plan
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search.annealing import Annealing
from gpumem.swap.search.multistart import MULTIPLES, relieved

RATE = 30  # of a hundred steps, how many change what is dropped
ROUNDS = ((15, 0.01), (3, 0.04), (1, 0.15))  # how many take part, and the share of the effort that each has
FEW = 50  # steps that make it worth while to start again


def race(
    judge: Judge,
    annealing: Callable[..., Annealing],
    plans: Sequence[Plan],
    small: Sequence[bool],
    until: Deadline,
    progress: Callable[[str], None],
) -> None:
    """Anneal from each of the plans, and from values made again greedily; offer the judge what comes out.

    `small`: whether the latter begin with the smallest workspaces, or each way where there are both.
    """
    runners = list(until.each(_starts(judge, annealing, plans, small, until, progress)))
    for most, share in ROUNDS:
        runners = sorted(runners, key=lambda found: int(found.limits[3]))[:most]
        for found in until.each(runners):
            found.again()
            found.with_stalls(share, RATE)
            if found.limits[3] < FAR:
                judge.offer(found.plan())
            if judge.stall == 0 or until.over():
                return


def _starts(
    judge: Judge,
    annealing: Callable[..., Annealing],
    plans: Sequence[Plan],
    small: Sequence[bool],
    until: Deadline,
    progress: Callable[[str], None],
) -> Iterator[Annealing]:
    """Yield what stands at the start: each of the plans, and greedy drops down to each multiple of the limit."""
    trace, machine, limit = judge.trace, judge.machine, judge.limit
    for plan in plans:
        found = annealing(until, progress, recompute=True, plan=plan)
        if found.from_plan(plan, simulate(plan.apply(trace), machine, capacity=limit)):
            yield found
        if found.steps(ROUNDS[0][1]) < FEW:  # the best start should have what little there is
            return
    for multiple, least in product(MULTIPLES, small):
        found = annealing(until, progress, recompute=True)
        if relieved(found, machine, multiple, small=least):
            yield found
