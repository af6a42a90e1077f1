"""Search: which gaps to swap, in which order the engines copy, and when, by annealing towards the bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, ClassVar

from gpumem.base import work
from gpumem.base.arguments import strict, strict_fields
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import baseline, simulate
from gpumem.swap.facts.limits import Judge, fits, floor, keep_tails, trimmed
from gpumem.swap.facts.operators import Menu, menu_of, smallest
from gpumem.swap.facts.options import check_numbers, check_ops, check_start, option
from gpumem.swap.plan import Plan
from gpumem.swap.plan.tails import Tails, without_tails
from gpumem.swap.planner import Planner, PlannerRecord, plans
from gpumem.swap.search._operator_choices import choices_of
from gpumem.swap.search._pace import Pace
from gpumem.swap.search.annealing import BEST_LIMIT
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.multistart import CHEAP, SWAPPING, WalkRace, ask_all, planners, share
from gpumem.swap.search.robust import Question, most_robust, off_by
from gpumem.swap.search.walk import SearchWalk
from gpumem.trace import Trace

GREEDY = 0.5  # of the work of an effort, at most, for the greedy start without stalls; not tuned
PLANNING = 0.97  # of the time; in the rest tails are kept that are not in the way: a few simulations, not tuned
COSTLY = 0.5  # of the time that is left, for each of the planners that take long; not tuned
WITHOUT_STALLS = 0.3  # of the time that is left, for the walk without stalls; not tuned
# Of an effort, for annealing without stalls: before a race with recomputation, and before one of swaps; not tuned.
MIXED, SWAPS_ALONE = 0.1, 0.4
# Of an effort, what `lowest` takes without stalls, and then with a little; not tuned.
LOWER, STALLING = 0.6, 0.4
# Of the efforts, so many begin with values dropped greedily as well; then these are among the plans that are known.
# ResNet-34 (256) at 30 %, 10 s: each time, they took half of it.
GREEDILY = 2


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Search(PlannerRecord):
    """The planner `search`, which says what its options are."""

    recompute: bool = True
    algorithms: Menu | None = None
    start: Plan | None = None
    placed: bool = False
    robust: float = option(0.0)
    seed: int = option(0)
    effort: float = option(1.0)
    finds_lowest: ClassVar[bool] = True
    reports: ClassVar[bool] = True

    @property
    def begins_with(self) -> tuple[Planner, ...]:
        """Those that take little time, and AutoSwap by each of its scores."""
        return (*CHEAP, *SWAPPING)

    @strict
    def lowest(self, trace: Trace, machine: Machine, **options: Any) -> tuple[Plan, int]:
        """Look for the lowest limit, as the function `lowest` does."""
        return lowest(trace, machine, seed=self.seed, effort=self.effort, **options)


@plans(Search)
def search(  # noqa: PLR0913  the options of a planner, by keyword
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    recompute: bool = True,
    algorithms: Menu | None = None,
    start: Plan | None = None,
    placed: bool = False,
    robust: float = 0.0,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Plan:
    """Plan swaps, recomputations and operators for a limit by annealing: no time more, or as little as possible.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    recompute : bool
        Whether values may be recomputed, and ops run other variants. Without, the plan is of swaps only.
    algorithms : mapping, optional
        Of an op's position, its variants beside the recorded one; left out, those of
        `gpumem.simulator.workspaces`.
    start : Plan, optional
        A plan that is known, of an integer program for instance: what comes out is never slower.
    placed : bool
        Count a buffer from the start of the op in which its copy-in starts: for plans that will be placed.
    robust : float
        Plan for durations that may be off, by log-normal factors of this sigma: of several plans the one whose
        overhead is least in nearly all draws, at most a point of an iteration dearer where nothing is off. Takes
        seven times as long, and some simulations more.
    seed : int
        Of the random steps. The same seed and effort give the same plan.
    effort : float
        Work, not time: 1 takes up to half a minute.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    progress : callable, optional
        Called with a line of text on how far it got.

    Returns
    -------
    Plan
        By the byte-counting simulation never slower than what it started from: with an effort of 1/4 and more, the
        plans of all published planners but the integer programs, as far as they get in the time; below that of all that
        take milliseconds. Those of checkpointing and of DTR's further heuristics count on up to 100 ops, and where no
        better plan swaps. On up to 100 ops with an effort of 1/10 STR's as well, and with `seconds` that of `ilp`.
        Without `recompute`, those that swap. A plan without overhead ends the search.

    Raises
    ------
    NotReached
        The pinned-host budget leaves more than `limit` live bytes.
    ValueError
        An effort that is not positive and finite, a seed below 0; a start of another trace, or above a limit.

    Notes
    -----
    A state says which gaps are swapped, in which order each engine copies, how long each op waits, which values are
    recomputed before which op, and which variant each op runs. Its cost is found without a simulation (see
    `_evaluate`): O(ops + gaps), 5 to 40 us; what is recomputed is found exactly (`_recompute_state`). First the limit
    sinks from the peak by swaps alone, greedily and by annealing, no op waiting. If it does not get to the limit, ten
    starts race (`multistart`): the best three plans of others and the slowest one, and values dropped greedily, by
    bytes for the time that they really take, until 1 to 2.1 times the limit is live, with AutoSwap's swaps for the
    rest. Where ops have a choice, published planners plan with the smallest workspaces too, and ops take what is left
    free; so do as many more greedy starts. Each is annealed a little, the better ones go on. The byte-counting
    simulation judges what comes out. With `seconds`, all of that with an effort of 1/100, and then, as long as there is
    time, with what fits into it by the pace so far, up to 10 times `effort`.
    Gaps of less than 1/5000 of the peak are left alone. With several compute streams, times are those of the unswapped
    iteration, and the simulation may find stalls that the state does not have.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 61 // 100
    >>> plan = search(trace, machine, limit, effort=0.01)
    >>> simulate(plan.apply(trace), machine, capacity=limit).overhead(simulate(trace, machine))
    0.0
    """
    check_start(start, trace, machine, limit)
    if robust:
        how: dict[str, Any] = {"recompute": recompute, "algorithms": algorithms, "start": start, "placed": placed}
        plain = partial(search, **how, seed=seed, effort=effort)
        others = planners(trace, effort, recompute=recompute)
        return most_robust(Question(trace, machine, limit, off_by(robust, seed)), plain, others)
    tails = Tails(trace, trimmed(trace, limit, always=recompute))
    trace = tails.less
    check_ops(algorithms or (), trace)
    menu = (menu_of(trace, machine) if algorithms is None else algorithms) if recompute else {}
    menu = {variants[0].op: variants for variants in choices_of(trace, machine, menu)}
    if fits(smallest(trace, machine, menu), limit) and trace.peak_live_bytes <= limit:
        return keep_tails(tails.trace, tails.dropped(Plan.of(trace)), machine, limit)
    judge = Judge(trace, machine, limit)
    known, pace = dict[int, Plan](), Pace()
    asked = partial(planners, trace, effort, recompute=recompute)
    ask = partial(ask_all, judge=judge, menu=menu, tails=tails, known=known)

    def anneal(index: int, part: float) -> None:
        instance = partial(Instance.of, trace, machine, limit, placed=placed, algorithms=menu, tails=tails.ends)
        begin = partial(SearchWalk, effort=part, seed=seed + index, pace=pace)
        _anneal(WalkRace(judge, instance, begin, known=known, recompute=recompute), greedy=index < GREEDILY)

    if start is not None:
        start = tails.kept(start)
        known[judge.offer(start)] = start
    with work.part(share=PLANNING):
        efforts = enumerate(pace.efforts(effort))
        work.tell("published planners")
        ask(asked()[: len(CHEAP)])
        # A little annealing finds more than those that take long, in less time.
        if work.hurried() and judge.stall and not work.over():
            anneal(*next(efforts))
        with work.part(share=share(judge)):
            ask(asked(copies=judge.best is not None)[len(CHEAP) :], each=COSTLY)
        for index, part in work.each(efforts):
            if not judge.stall:
                break  # the best plan adds no time: nothing is left to gain
            anneal(index, part)
    return keep_tails(tails.trace, tails.dropped(judge.plan()), machine, limit)


def _anneal(race: WalkRace, *, greedy: bool) -> None:
    """No stall, or else a race between plans that are known and, where values may be recomputed, greedy drops."""
    judge = race.judge
    with work.part(share=WITHOUT_STALLS):
        walk = race.begin(race.instance())
        shares = (MIXED, GREEDY) if race.recompute else (SWAPS_ALONE, inf)
        if len(walk.windows) and walk.without_stalls(*shares):
            judge.offer(walk.plan())
    if judge.stall > 0 and not work.over():
        if judge.best is not None:
            race.known.setdefault(judge.makespan, judge.best)
        race.run(greedy)


@strict
def lowest(
    trace: Trace,
    machine: Machine,
    *,
    stall: float = 0.005,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> tuple[Plan, int]:
    """Plan for the lowest limit of live bytes that costs at most a fraction `stall` of an iteration.

    Parameters, errors and notes are those of `search`; there is always a plan, at worst the empty one.

    Returns
    -------
    plan : Plan
    limit : int
        Bytes.
    """
    check_numbers(effort=effort, seed=seed, stall=stall)
    tails = Tails(trace, without_tails(trace))
    if tails.less is not trace:
        plan, limit = lowest(tails.less, machine, stall=stall, seed=seed, effort=effort)
        return tails.dropped(plan), limit
    least = floor(trace)[1]
    walk = SearchWalk(Instance.of(trace, machine, least), effort, seed)
    if trace.peak_live_bytes <= least or not len(walk.windows):
        return Plan.of(trace), trace.peak_live_bytes
    walk.without_stalls(LOWER)
    reached = [(walk.plan(), int(walk.limits[BEST_LIMIT]))]
    if stall > 0:
        walk.a_little_stall(STALLING, int(stall * walk.state.problem.period))
        reached.append((walk.plan(), int(walk.limits[BEST_LIMIT])))
    candidates = [(Plan.of(trace), trace.peak_live_bytes)]
    for plan, limit in reached:
        swapped = plan.apply(trace)
        # The evaluator's times are exact for one compute stream only: the simulation has the last word.
        limit = max(limit, swapped.peak_live_bytes)
        if simulate(swapped, machine, capacity=limit).overhead(baseline(trace, machine, swapped)) <= stall:
            candidates.append((plan, limit))
    return min(candidates, key=lambda candidate: candidate[1])
