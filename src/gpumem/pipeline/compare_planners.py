"""The cheapest plan that any of several planners finds for a limit, and the least pool that one of them can do with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.errors import Infeasible, NotReached, failure
from gpumem.base.units import human, percent
from gpumem.pipeline.pipeline import AnyPlanner, plan
from gpumem.pipeline.planned import Planned
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan
from gpumem.swap.planners import planners_of
from gpumem.trace import Trace

BEST = ("search",)  # begins with the plans of the others, as far as it has time, and is never worse
QUICK = ("tensile", "checkpoint", "capuchin")  # where any plan will do
# While a program runs: those of milliseconds first, whose plan it follows meanwhile; the second reaches what can be
# reached.
IN_A_RUN = ("tensile", "on-demand-nonblocking", *BEST)
# Where there is no end, and hardly a plan: what the search begins with. Not tuned.
HASTY = MappingProxyType({"effort": 0.01})
# Overhead: a plan that costs no more ends the comparison. Not tuned.
ENOUGH = 0.001
# The smallest pool is found to 1/64 of what lies between too little and enough, in six halvings. Not tuned.
STEPS = 64
# Shares of the time that is left: for the footprint without a plan; for each pool. Not tuned.
BEFORE, EACH = 0.2, 0.3
MIB = 2**20  # bytes: pools are reported in whole MiB


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one planner: an overhead, or why there is none; `error` where it raised what no planner should.

    >>> print(Attempt("tensile", 0.125)), print(Attempt("vdnn", why="not reached"))
    tensile 12.50%
    vdnn: not reached
    (None, None)
    """

    planner: str
    overhead: float | None = None
    why: str = ""
    error: Exception | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.planner}: {self.why}" if self.overhead is None else f"{self.planner} {percent(self.overhead)}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlannerComparison(Shown):
    """What several planners made of a trace and a limit.

    Parameters
    ----------
    planned : Planned, optional
        The cheapest plan, if any gets there at that cost.
    tried : tuple of Attempt
    needs : int
        Bytes that some op holds whatever is done, where a planner proved that the limit is less.
    """

    planned: Planned | None
    tried: tuple[Attempt, ...]
    needs: int = 0

    def _facts(self) -> Facts:
        return {"planned": "nothing" if self.planned is None else repr(self.planned), "tried": len(self.tried)}


@strict
def compare_planners(  # noqa: PLR0913  its options are by keyword only
    trace: Trace,
    machine: Machine,
    pool: int | None = None,
    *,
    load: int | None = None,
    planners: Sequence[str | AnyPlanner] = BEST,
    overhead: float | None = None,
    enough: float = ENOUGH,
    seconds: float | None = None,
    check: bool = True,
    offer: Callable[[Planned], object] | None = None,
    progress: work.Progress | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> PlannerComparison:
    """Plan for a limit with several planners; the clock that judges every plan says which one is cheapest.

    Parameters
    ----------
    pool, load : int
        Bytes, of one of them, as in `plan`.
    planners : sequence of str or callable
        As the `planner` of `plan`. The first is asked first; the time that it leaves goes to the others.
    overhead : float, optional
        The most that the plan may cost, as a fraction of the iteration without it.
    enough : float
        A plan that costs as little ends it; infinite: any will do.
    seconds : float, optional
        Of planning. What comes out then depends on the machine. The oracles may take as long again; those that would
        take longer are left out, and `checked` says so.
    check : bool
        Hold the plan that is returned against the oracles.
    offer : callable, optional
        Told of each plan that is cheaper than all before it, as soon as it is there; not checked.
    options : mapping
        Of planners, such as `threshold`: each gets those that it has.

    Returns
    -------
    PlannerComparison
        Without a plan where none gets to the limit at that cost. A planner that fails costs the others nothing: `tried`
        has its error.

    Raises
    ------
    ValueError
        A limit too many or none; a name that is no planner's.
    Exception
        What the first planner raised, or `RuntimeError` for a plan that failed its own check, where all have failed.

    Examples
    --------
    >>> from gpumem import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> chosen = compare_planners(trace, machine, 350 * 2**20, planners=["capuchin", "heuristic"])
    >>> [str(tried) for tried in chosen.tried], chosen.planned.planner
    (['capuchin 3.69%', 'heuristic 0.22%'], 'heuristic')
    """
    if (pool is None) == (load is None):
        raise ValueError(f"pool {pool}, load {load}: plan for one of them")
    limit = pool if load is None else load
    assert limit is not None
    asked = planners_of(planners)
    good, tried, needs = dict[str, Planned](), list[Attempt](), 0
    with work.within(None, progress):
        with work.within(seconds):
            for k, (name, planner) in enumerate(asked.items()):
                work.step(k, len(asked))
                if work.over():
                    tried.append(Attempt(name, why=work.LATE))
                    continue
                own = planner.known(options) | {"planner": name if name in planners else planner}
                call = partial(plan, trace, machine, pool=pool, load=load, check=False, **own)
                with work.part(name, 1 / (len(asked) - k)):
                    one, result, least = _try(name, call)
                tried.append(one)
                if least > limit:  # whatever the planner
                    needs = least
                    break
                if result is not None and (overhead is None or result.overhead <= overhead):
                    if offer is not None and all(result.overhead < one.overhead for one in good.values()):
                        offer(result)
                    good[name] = result
                    if result.overhead <= enough:
                        break
        with work.within(seconds):
            best = _best(good, tried, check)
    if tried and all(one.error for one in tried):
        raise next(one.error for one in tried if one.error)
    return PlannerComparison(best, tuple(tried), needs)


def _try(name: str, call: Callable[..., Planned]) -> tuple[Attempt, Planned | None, int]:
    """Ask one planner; return what came of it, its plan, and the bytes that it proved to be needed."""
    try:
        result = call()
    except (NotReached, Infeasible) as stop:
        return Attempt(name, why=str(stop)), None, stop.needs if isinstance(stop, Infeasible) else 0
    except Exception as error:  # whatever it is, the others have nothing to do with it
        return _failed(name, error), None, 0
    return Attempt(name, result.overhead), result, 0


def _failed(name: str, error: Exception) -> Attempt:
    return Attempt(name, why=f"failed: {failure(error)}", error=error)


def _best(good: Mapping[str, Planned], tried: list[Attempt], check: bool) -> Planned | None:
    """Return the cheapest plan, with `check` the cheapest that passes the oracles; `tried` has the others."""
    for name in sorted(good, key=lambda name: good[name].overhead):
        if not check:
            return good[name]
        work.tell("checking the plan")
        try:
            return good[name].verified()
        except RuntimeError as error:
            tried[[one.planner for one in tried].index(name)] = _failed(name, error)
    return None


@strict
@work.budgeted
def smallest_pool(
    trace: Trace,
    machine: Machine,
    too_little: int,
    *,
    planners: Sequence[str | AnyPlanner] = QUICK,
    overhead: float | None = None,
    seconds: float | None = None,
    progress: work.Progress | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Planned:
    """Return a plan for about the least pool that some planner can do with, at some cost at most.

    Parameters
    ----------
    too_little : int
        Bytes of a pool that none can do with.
    planners, overhead, seconds, options
        As in `compare_planners`; the first plan that costs no more counts.

    Returns
    -------
    Planned
        Not checked. Its `pool` is a whole number of MiB, within 1/64 of what there is between `too_little` and the
        footprint without a plan, as far as the time allows. That a larger pool is never worse is assumed.
    """
    with work.part(share=BEFORE):
        unplanned = plan(trace, machine, pool=2**61, planner=_nothing, check=False)
    low, high = too_little // MIB, -(-unplanned.placement.height // MIB)
    best = replace(unplanned, pool=high * MIB, planner=next(iter(planners_of(planners))))
    step = max((high - low) // STEPS, 1)
    while high - low > step and not work.over():
        pool = (low + high) // 2
        work.tell(f"looking for the least limit: {human(pool * MIB)}")
        how: dict[str, Any] = {"planners": planners, "overhead": overhead, "options": options}
        with work.part(share=EACH):
            result = compare_planners(trace, machine, pool * MIB, enough=inf, check=False, **how)
        if result.planned is None:
            low = max(pool, result.needs // MIB)
        else:
            high, best = pool, result.planned
    return best


def _nothing(trace: Trace, machine: Machine, limit: int) -> Plan:
    """Swap nothing: what there is to place without a plan is no planner's to fail."""
    return Plan.of(trace)


Offer = Callable[[Plan], object]


def asking(
    machine: Machine,
    limit: int,
    planners: Sequence[str | AnyPlanner] = IN_A_RUN,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Trace, float | None, Offer], tuple[bool, list[str]]]:
    """Return what asks several planners about a trace; the byte-counting simulation says which is cheapest.

    Each plan that is the cheapest so far is offered. The answer is whether more time is of no use, and a line for each
    planner that was asked. Without seconds a search looks no further than where it begins.
    """

    def ask(trace: Trace, seconds: float | None, offer: Offer) -> tuple[bool, list[str]]:
        given = options if seconds is not None else {**HASTY, **options}
        how: dict[str, Any] = {"planners": planners, "seconds": seconds, "options": given, "check": False}
        result = compare_planners(trace, machine, load=limit, offer=lambda one: offer(one.plan), **how)
        return result.planned is not None or bool(result.needs), [f"planner {tried}" for tried in result.tried]

    return ask
