"""Where the search begins: the plans of published planners, and values dropped greedily; and the race between them.

The second kind drops values greedily until the live bytes are at most a multiple of the limit, and lets AutoSwap swap
the rest on the trace that this makes. Neither knows of the other, so the multiples differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product

import numpy as np

from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import AutoSwap, autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.swap.baselines.capuchin import Capuchin
from gpumem.swap.baselines.checkpoint import Checkpoint
from gpumem.swap.baselines.vdnn import VDnn
from gpumem.swap.baselines.vdnn_dyn import VDnnDyn
from gpumem.swap.dtr.planner import Dtr
from gpumem.swap.facts.limits import Judge, floor
from gpumem.swap.facts.operators import Menu, operators, smallest
from gpumem.swap.mosos.planners import Mosos
from gpumem.swap.plan import Hold, Plan, Swap
from gpumem.swap.plan.tails import Tails
from gpumem.swap.planner import Planner
from gpumem.swap.search._evaluate import FAR
from gpumem.swap.search.annealing import BEST_DELAY
from gpumem.swap.search.instance import Instance
from gpumem.swap.search.walk import SearchWalk
from gpumem.swap.snu.heuristic import Heuristic
from gpumem.swap.snu.ilp import Ilp
from gpumem.swap.snu.on_demand import OnDemand
from gpumem.swap.tensile.planner import Tensile
from gpumem.trace import RECOMPUTE, Trace

# Of the limit, to which values are dropped before the rest is swapped; not tuned.
MULTIPLES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.1)
TRIES = 2e8  # ops looked at by greedy drops, with an effort of 1; not tuned
# Of the time that is left, at most, for plans of others that take long: on few ops, where annealing is soon done; where
# there is no plan so far; where the best one has stalls of a part of its makespan; and where it has less. ResNet-152 at
# 40 of 273 GiB, 10 s: 0.42 % with 0.6, 0.33 with 0.2. GPT-2 at 30 %, 10 s: 13.6 % with 0.6, 12.3 with 0.3. Random steps
# of 36 ops, 2 s: with 0.6 the program left too little for `checkpoint`.
FEW_OPS, NONE, START, LITTLE, BRIEF = 0.8, 0.6, 0.3, 0.05, 0.2
FAIR, THOROUGH = 0.1, 0.25  # efforts from which planners that take longer are asked as well; not tuned
LONG = 20_000  # ops; on longer traces only a thorough search asks AutoSwap for each score, and that last; not tuned
# Of a planner's time, for its plan as recorded, where it plans with the smallest workspaces as well; not tuned.
AS_RECORDED = 0.5
SWAPPING: tuple[Planner, ...] = tuple(AutoSwap(score=s, peaks="all", threshold=1) for s in SCORES)
# By what they take, on 2,500 ops: some 20 ms each; 0.2 s each; seconds.
CHEAP: tuple[Planner, ...] = (
    Tensile(),  # first those that cost nothing most often: the search ends there, and the others are not compiled
    AutoSwap(),
    OnDemand(blocking=False),
    OnDemand(),
    Heuristic(),
    VDnn(),
    VDnn(layers="conv"),
    VDnnDyn(),
)
MORE: tuple[Planner, ...] = (Capuchin(queue=True), Capuchin())
RECOMPUTING: tuple[Planner, ...] = (Dtr(),)
# On more than `SMALL` ops asked only while the best plan swaps nothing: where copies pay they take time for nothing.
# DenseNet at 40 %, 10 s: the first took 8 of them, for a plan at 49 % where Capuchin has 9 and the search 8.
SLOW: tuple[Planner, ...] = (Checkpoint(), Dtr(heuristic="dtr"), Dtr(heuristic="msps"))
# Of random steps with 20 to 90 ops these beat annealing in a third, at 5 % above the lowest possible limit. The first
# takes a second, the other 1 to 20: it is asked only where a time is given, since what it has by then is not the same
# each time.
PROGRAM, EXACT = Mosos(kind="str"), Ilp()
SMALL = 100  # ops; on longer traces they take longer than annealing does; not tuned further


def planners(trace: Trace, effort: float, *, recompute: bool = True, copies: bool = True) -> tuple[Planner, ...]:
    """Return whose plans a search with that effort begins with, the `CHEAP` ones first; or only those that swap.

    `copies`: whether plans of swaps get to the limit. Where they do not, Capuchin, which takes seconds on 6,000 ops,
    comes after those that only recompute; where they do, it has the best start.
    """
    long = trace.n > LONG
    fair, thorough, small = effort >= FAIR, effort >= THOROUGH, trace.n <= SMALL and effort >= FAIR
    recomputing = [*(RECOMPUTING if fair else ()), *(SLOW if thorough else ())] if recompute else []
    mixed = [*MORE] if fair else []
    costly = [*(() if long else SWAPPING), *(mixed + recomputing if copies else recomputing + mixed)]
    if recompute and small:
        costly.append(PROGRAM)
    last = SWAPPING if long and thorough else (EXACT,) if small and work.hurried() else ()
    asked = (*CHEAP, *costly, *last)
    return asked if recompute else tuple(planner.with_known({"recompute": False}) for planner in asked)


def share(judge: Judge) -> float:
    """The share of the time that is left for planners that take long."""
    if judge.trace.n <= SMALL:
        return FEW_OPS
    if judge.best is None:
        return NONE
    return BRIEF if judge.stall <= LITTLE * judge.makespan else START


def ask_all(
    asked: Sequence[Planner], judge: Judge, menu: Menu, tails: Tails, *, known: dict[int, Plan], each: float = 1.0
) -> None:
    """Offer the plans of these planners, until the best has no overhead; note in `known` how long they take.

    Those for the smallest workspaces too, with operators by what is left free. Each has a share of the time that is
    left, so that none takes that of those behind it; the last has all. Who does not get there in time has no plan.
    """
    trace, machine, limit = tails.trace, judge.machine, judge.limit
    smallest_trace = smallest(trace, machine, menu)
    # With recorded workspaces an op alone may exceed the limit: only plans for the smallest ones are asked for then.
    fits_as_recorded = floor(trace)[1] <= limit

    def offer(plan: Plan) -> None:
        plan = tails.kept(plan)
        known.setdefault(judge.offer(plan), plan)

    for index, planner in enumerate(work.each(asked)):
        if not judge.stall:
            return
        if planner in SLOW and trace.n > SMALL and judge.best is not None and judge.best.swaps:
            continue  # see SLOW: where copies pay they take time for nothing
        with work.part(share=each if index < len(asked) - 1 else 1.0):
            with work.part(share=AS_RECORDED if menu else 1.0), suppress(NotReached):
                if fits_as_recorded:
                    offer(planner(trace, machine, limit))
            if menu and judge.stall:
                with suppress(NotReached):
                    plan = planner(smallest_trace, machine, limit)
                    offer(operators(trace, machine, plan, limit, algorithms=menu))


def start_from_drops(
    walk: SearchWalk, machine: Machine, multiple: float, *, small: bool = False, tails: bool = False
) -> bool:
    """Start from values dropped greedily, and AutoSwap's swaps for the rest; return whether that gets to the limit.

    `small`: with the smallest workspaces, and then with faster variants where memory is left free. `tails`: with dead
    tails as sources of replays; those that none reads go.
    """
    if small:
        walk.shrink_workspaces()
    if tails:
        walk.hold_tails()
    walk.drop_greedily(int(multiple * walk.goal), int(TRIES * walk.effort / max(walk.trace.n, 1)))
    if work.over() or not walk.trim_holds():  # half of the drops are no start
        return False
    # Each op and buffer is its own origin, which those of the plan's trace refer to.
    bare = replace(
        walk.trace,
        buffers=replace(walk.trace.buffers, of=np.arange(len(walk.trace.buffers))),
        ops=replace(walk.trace.ops, of=np.arange(walk.trace.n)),
    )
    recomputed = Plan.of(bare, walk.changes(walk.drops.choice)).apply(bare)
    try:
        plan = autoswap(recomputed, machine, walk.goal, peaks="all", threshold=1)
    except (NotReached, Infeasible):
        return False
    swapped = plan.apply(recomputed)
    # A gap between an op and a recomputation is none of the trace.
    is_recorded = recomputed.ops.role != RECOMPUTE
    swaps = [swap for swap in plan.swaps if is_recorded[swap.after]]
    walk.select((int(recomputed.buffers.of[swap.buffer]), int(recomputed.ops.of[swap.after])) for swap in swaps)
    walk.stall(swapped, simulate(swapped, machine, capacity=walk.goal))
    if small:
        walk.speed_up_ops()
    return True


RATE = 30  # of a hundred steps, how many change what is dropped; not tuned
# How many walks take part in each round, and the share of the effort that each has; not tuned.
ROUNDS = ((15, 0.01), (3, 0.04), (1, 0.15))
BEST = 3  # of the plans that are known, as many take part in the race; not tuned
# Of the time that is left, at most: the greedy starts take longer than a little annealing. Not tuned.
SETTING_OUT = 0.3
FEW = 50  # steps that make it worth while to start another walk; not tuned


@dataclass(frozen=True, slots=True, eq=False)
class WalkRace:
    """Walks from several starts, of which the better ones go on; the judge is offered what comes out.

    Parameters
    ----------
    instance : callable
        What to search, by whether values may be recomputed, and with which plan known.
    begin : callable
        A walk through an instance.
    known : dict
        Plans by how long they take, `FAR` for those that do not get to the limit; what comes out is added.
    """

    judge: Judge
    instance: Callable[..., Instance]
    begin: Callable[[Instance], SearchWalk]
    known: dict[int, Plan]
    recompute: bool

    def run(self, greedy: bool) -> None:
        """Anneal from the best plans, and, if `greedy`, from values dropped greedily."""
        ranked = [self.known[makespan] for makespan in sorted(self.known) if makespan < FAR]
        # The slowest too: where nothing overlaps, a state stands for the plan, and annealing can go down from it.
        plans = ranked[:BEST] + ranked[BEST:][-1:]
        with work.part(share=SETTING_OUT):
            walks = list(work.each(self._starts(plans, greedy)))
        for most, part in ROUNDS:
            walks = sorted(walks, key=lambda walk: int(walk.limits[BEST_DELAY]))[:most]
            for walk in work.each(walks):
                walk.back_to_best()
                walk.with_stalls(part, RATE)
                if walk.has_best:
                    plan = walk.plan()
                    self.known[self.judge.offer(plan)] = plan
                if self.judge.stall == 0 or work.over():
                    return

    def _starts(self, plans: Sequence[Plan], greedy: bool) -> Iterator[SearchWalk]:
        """Yield what stands at the start: each of the plans, and greedy drops down to each multiple of the limit."""
        judge = self.judge
        starts = [(plan, self.recompute) for plan in plans]
        if self.recompute:
            # A good plan of swaps starts a second time, to change swaps alone: on long traces there is time for few
            # steps, and a third of them change what is recomputed.
            swaps_only = (plan for plan in plans[:2] if all(isinstance(d, Swap | Hold) for d in plan.decisions))
            starts[1:1] = [(plan, False) for plan in islice(swaps_only, 1)]
        for plan, recompute in starts:
            # Each with the gaps of its own plan: with those of all there is more to draw from that this one does not
            # need. VGG16 at 40 %, an effort of 0.02, eight seeds: 8.0 % in the mean, 12.7 with all.
            walk = self.begin(self.instance(recompute=recompute, plan=plan, least=judge.makespan))
            planned = plan.apply(judge.trace)
            if walk.from_plan(plan, simulate(planned, judge.machine, capacity=judge.limit)):
                yield walk
            # The best start should have what little there is.
            if walk.steps(ROUNDS[0][1]) < FEW:
                return
        if self.recompute and greedy:
            yield from self._greedy_starts()

    def _greedy_starts(self) -> Iterator[SearchWalk]:
        whole = self.instance(recompute=True, least=self.judge.makespan)
        small = (False, True) if whole.choices else (False,)
        has_tails = bool((whole.tails >= 0).any())
        for index, (multiple, smallest_too) in enumerate(product(MULTIPLES, small)):
            walk = self.begin(whole)
            # Every second multiple with dead tails held: they help some replays, and take memory from all.
            tails = has_tails and index // len(small) % 2 == 0
            if start_from_drops(walk, self.judge.machine, multiple, small=smallest_too, tails=tails):
                yield walk
