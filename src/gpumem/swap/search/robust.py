"""Plans for durations that may be off their estimates: of several candidates the one that is cheap in nearly all draws.

Candidates are the plan for the estimates; plans for links that are slower than they are, which copy earlier and swap
less; plans for draws of the durations; and what published planners make of it, of which some copy as soon as they can
and so have slack that nobody asked for. Which is best is told by draws that no table uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Link, Machine
from gpumem.simulator.realised import realised
from gpumem.simulator.simulate import baseline, simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap.plan import Plan
from gpumem.trace import Trace

MARGINS = (1.2, 1.5, 2.0)  # times that copies take; not tuned
DRAWN = 3  # plans for draws; not tuned
PRICE = 0.01  # of an iteration: what a plan may cost more than the one for the estimates where nothing is off
FEW, MANY = 16, 96  # draws by which all candidates are judged, and the best few once more; not tuned
FINAL = 4  # the best few; not tuned
TRAINING = 2**31  # seeds of draws from here on choose between plans; tables draw below

Plain = Callable[[Trace, Machine, int], Plan]
Candidates = dict[Plan, Trace]  # plans, and what they make of the trace


def off_by(sigma: float, seed: int) -> Uncertainty:
    """What a plan for that sigma is chosen by: ops and copies that are off by it, by draws that no table uses."""
    return Uncertainty(spread=sigma, copy_noise=sigma, seed=TRAINING + seed)


def most_robust(
    trace: Trace, machine: Machine, limit: int, uncertainty: Uncertainty, plain: Plain, others: Sequence[Plain]
) -> Plan:
    """Return the plan whose 95th percentile of overheads is least, of those that cost little more as estimated.

    Parameters
    ----------
    trace, machine, limit
        Of a planner.
    uncertainty : Uncertainty
        How far durations may be off, with a seed that no table uses.
    plain : callable
        The search for one set of durations.
    others : sequence of callable
        Planners whose plans are candidates as well.

    Raises
    ------
    NotReached
        As `plain` does; what others miss is no candidate.
    """
    found: Candidates = {}
    for plan in _candidates(trace, machine, limit, uncertainty, plain, others):
        if plan not in found and (swapped := plan.apply(trace)).peak_live_bytes <= limit:
            found[plan] = swapped
    costs = [_estimated(trace, machine, limit, swapped) for swapped in found.values()]
    found = {plan: swapped for (plan, swapped), cost in zip(found.items(), costs) if cost <= costs[0] + PRICE}
    for draws in (FEW, MANY):
        if len(found) > 1 and not work.over():
            found = _best(found, trace, machine, limit, uncertainty, draws)
    return next(iter(found))


def _candidates(
    trace: Trace, machine: Machine, limit: int, uncertainty: Uncertainty, plain: Plain, others: Sequence[Plain]
) -> Iterator[Plan]:
    """Plans of which some may be above the limit: the one for the estimates first, which is not."""
    yield plain(trace, machine, limit)
    asked = [partial(other, trace, machine, limit) for other in others]
    asked += [partial(plain, trace, _slower(machine, by), limit) for by in MARGINS]
    asked += [partial(plain, uncertainty.drawn(trace, machine, draw), machine, limit) for draw in range(DRAWN)]
    for ask in work.each(asked):
        with suppress(NotReached):
            yield ask()


def _slower(machine: Machine, by: float) -> Machine:
    def link(one: Link) -> Link:
        return Link(one.latency_ns * by, one.ns_per_byte * by)

    return machine.with_(out=link(machine.out), into=link(machine.into))


def _estimated(trace: Trace, machine: Machine, limit: int, swapped: Trace) -> float:
    """The overhead where nothing is off."""
    return simulate(swapped, machine, capacity=limit).overhead(baseline(trace, machine, swapped))


def _best(
    found: Candidates, trace: Trace, machine: Machine, limit: int, uncertainty: Uncertainty, draws: int
) -> Candidates:
    """The best few by the 95th percentile, best first; of equals, as of many that cost nothing, by the mean."""

    def cost(plan: Plan) -> tuple[float, float]:
        drawn = realised(trace, found[plan], machine, uncertainty, capacity=limit, draws=draws)
        return drawn.p95, float(drawn.overheads.mean())

    return {plan: found[plan] for plan in sorted(found, key=cost)[:FINAL]}
