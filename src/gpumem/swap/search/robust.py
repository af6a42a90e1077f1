"""Plans for durations that may be off their estimates: of several candidates the one that is cheap in nearly all draws.

Candidates are the plan for the estimates; plans for links that are slower than they are, which copy earlier and swap
less; plans for draws of the durations; and those of published planners, of which some copy as soon as they can and so
have slack that no other planner leaves. Draws that no table uses decide between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.realised import realised
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

MARGINS = (1.2, 1.5, 2.0)  # times as long as estimated that copies take; not tuned
DRAWN = 3  # plans for draws; not tuned
# Of an iteration: what a plan may cost more than the one for the estimates where nothing is off; not tuned.
PRICE = 0.01
FEW, MANY = 16, 96  # draws by which all candidates are judged, and the best few once more; not tuned
FINAL = 4  # the best few; not tuned
# Added to the seeds of draws that choose between plans, so that `benchmarks/suites/uncertain.py`, with seeds far below,
# judges plans by other draws.
TRAINING = 2**31

PlanFor = Callable[[Trace, Machine, int], Plan]
Candidates = dict[Plan, Trace]  # plans, and what they make of the trace


class Question(NamedTuple):
    """What a plan is for: a trace, a machine and a limit, and how far durations may be off."""

    trace: Trace
    machine: Machine
    limit: int
    uncertainty: Uncertainty  # with a seed that no table uses

    def overhead(self, swapped: Trace) -> float:
        """What a plan costs where nothing is off, by the trace that it makes."""
        line = simulate(swapped, self.machine, capacity=self.limit)
        return line.overhead(baseline(self.trace, self.machine, swapped))


def off_by(sigma: float, seed: int) -> Uncertainty:
    """Return how far durations are off for a plan of that sigma, ops and copies, in draws that no table uses."""
    return Uncertainty(spread=sigma, copy_noise=sigma, seed=TRAINING + seed)


def most_robust(question: Question, plain: PlanFor, others: Sequence[PlanFor]) -> Plan:
    """Return the plan whose 95th percentile of overheads is least, of those that cost little more as estimated.

    Parameters
    ----------
    question : Question
        Trace, machine and limit of a planner, and how far durations may be off.
    plain : callable
        The search for one set of durations.
    others : sequence of callable
        Planners whose plans are candidates as well.

    Raises
    ------
    NotReached
        As `plain` does; what others miss is no candidate.
    """
    candidates: Candidates = {}
    for plan in _propose(question, plain, others):
        if plan not in candidates and (swapped := plan.apply(question.trace)).peak_live_bytes <= question.limit:
            candidates[plan] = swapped
    costs = [question.overhead(swapped) for swapped in candidates.values()]
    # The first is the plan for the estimates: who plans for what may be off pays at most `PRICE` where nothing is.
    affordable = (pair for pair, cost in zip(candidates.items(), costs) if cost <= costs[0] + PRICE)
    candidates = dict(affordable)
    for draws in (FEW, MANY):
        if len(candidates) > 1 and not work.over():
            candidates = _best(question, candidates, draws)
    return next(iter(candidates))


def _propose(question: Question, plain: PlanFor, others: Sequence[PlanFor]) -> Iterator[Plan]:
    """Plans of which some may exceed the limit: the one for the estimates first, which does not."""
    trace, machine, limit, uncertainty = question
    yield plain(trace, machine, limit)
    planners = [partial(other, trace, machine, limit) for other in others]
    planners += [partial(plain, trace, _slower(machine, by), limit) for by in MARGINS]
    planners += [partial(plain, uncertainty.drawn(trace, machine, draw), machine, limit) for draw in range(DRAWN)]
    for planner in work.each(planners):
        with suppress(NotReached):
            yield planner()


def _slower(machine: Machine, by: float) -> Machine:
    def slow(link: Link) -> Link:
        return Link(link.latency_ns * by, link.ns_per_byte * by)

    return machine.with_(out=slow(machine.out), into=slow(machine.into))


def _best(question: Question, candidates: Candidates, draws: int) -> Candidates:
    """The best few by the 95th percentile, best first; of equals, as of many that cost nothing, by the mean."""
    trace, machine, limit, uncertainty = question

    def cost(plan: Plan) -> tuple[float, float]:
        drawn = realised(trace, candidates[plan], machine, uncertainty, capacity=limit, draws=draws)
        return drawn.p95, float(drawn.overheads.mean())

    return {plan: candidates[plan] for plan in sorted(candidates, key=cost)[:FINAL]}
