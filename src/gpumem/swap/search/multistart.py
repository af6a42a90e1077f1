"""Where the search begins: what the published planners make of it, and values made again down to some load.

The second kind drops values greedily until the load is at most a multiple of the limit, and lets AutoSwap swap the
rest on the trace that this makes. Neither knows of the other, so the multiples differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product

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
from gpumem.swap.search.annealing import Annealing
from gpumem.swap.search.instance import Instance
from gpumem.swap.snu.heuristic import Heuristic
from gpumem.swap.snu.ilp import Ilp
from gpumem.swap.snu.on_demand import OnDemand
from gpumem.swap.tensile.planner import Tensile
from gpumem.trace import RECOMPUTE, Trace

MULTIPLES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.1)  # of the limit, to which values are dropped before the rest is swapped
TRIES = 2e8  # ops looked at by greedy drops, with an effort of 1
# Of the time that is left, at most, for plans of others that take long: on few ops, where annealing is soon done; where
# there is no plan so far; where the best one has stalls of a part of its makespan; and where it has less. ResNet-152 at
# 40 of 273 GiB, 10 s: 0.42 % with 0.6, 0.33 with 0.2. GPT-2 at 30 %, 10 s: 13.6 % with 0.6, 12.3 with 0.3. Random steps
# of 36 ops, 2 s: with 0.6 the program left too little for `checkpoint`.
FEW_OPS, NONE, START, LITTLE, BRIEF = 0.8, 0.6, 0.3, 0.05, 0.2
FAIR, THOROUGH = 0.1, 0.25  # efforts from which planners that take longer are asked as well
LONG = 20_000  # ops; on longer traces only a thorough search asks AutoSwap for each score, and that last
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
AGAIN: tuple[Planner, ...] = (Dtr(),)
# On more than `SMALL` ops asked only while the best plan swaps nothing: where copies pay they take time for nothing.
# DenseNet at 40 %, 10 s: the first took 8 of them, for a plan at 49 % where Capuchin has 9 and the search 8.
SLOW: tuple[Planner, ...] = (Checkpoint(), Dtr(heuristic="dtr"), Dtr(heuristic="msps"))
# Of random steps with 20 to 90 ops these beat annealing in a third, at 5 % above the floor. The first takes a second,
# the other 1 to 20: it is asked only where a time is given, since what it has by then is not the same each time.
PROGRAM, EXACT = Mosos(kind="str"), Ilp()
SMALL = 100  # ops; on longer traces they take longer than annealing does


def planners(trace: Trace, effort: float, *, recompute: bool = True, copies: bool = True) -> tuple[Planner, ...]:
    """Return whose plans a search with that effort begins with, the `CHEAP` ones first; or only those that swap.

    `copies`: whether plans of swaps get to the limit. Where they do not, Capuchin, which takes seconds on 6,000 ops,
    comes after those that only make values again; where they do, it has the best start.
    """
    long = trace.n > LONG
    fair, thorough, small = effort >= FAIR, effort >= THOROUGH, trace.n <= SMALL and effort >= FAIR
    again = [*(AGAIN if fair else ()), *(SLOW if thorough else ())] if recompute else []
    mixed = [*MORE] if fair else []
    costly = [*(() if long else SWAPPING), *(mixed + again if copies else again + mixed)]
    if recompute and small:
        costly.append(PROGRAM)
    last = SWAPPING if long and thorough else (EXACT,) if small and work.hurried() else ()
    return tuple(p if recompute else p.with_known({"recompute": False}) for p in (*CHEAP, *costly, *last))


def share(judge: Judge) -> float:
    """The share of the time that is left for planners that take long."""
    if judge.trace.n <= SMALL:
        return FEW_OPS
    if judge.best is None:
        return NONE
    return BRIEF if judge.stall <= LITTLE * judge.makespan else START


def ask_all(
    asked: Sequence[Planner], judge: Judge, menu: Menu, tails: Tails, known: dict[int, Plan], *, each: float = 1.0
) -> None:
    """Offer the plans of these planners, until the best has no overhead; note in `known` how long they take.

    Those for the smallest workspaces too, with operators by what is left free. Each has a share of the time that is
    left, so that none takes that of those behind it; the last has all. Who does not get there in time has no plan.
    """
    trace, machine, limit = tails.trace, judge.machine, judge.limit
    small = smallest(trace, machine, menu)
    fine = floor(trace)[1] <= limit

    def offer(plan: Plan) -> None:
        plan = tails.kept(plan)
        known.setdefault(judge.offer(plan), plan)

    for k, planner in enumerate(work.each(asked)):
        if not judge.stall:
            return
        if planner in SLOW and trace.n > SMALL and judge.best is not None and judge.best.swaps:
            continue
        with work.part(share=each if k < len(asked) - 1 else 1.0):
            with work.part(share=0.5 if menu else 1.0), suppress(NotReached):
                if fine:
                    offer(planner(trace, machine, limit))
            if menu and judge.stall:
                with suppress(NotReached):
                    offer(operators(trace, machine, planner(small, machine, limit), limit, algorithms=menu))


def relieved(found: Annealing, machine: Machine, multiple: float, *, small: bool = False, tails: bool = False) -> bool:
    """Set out from values made again, greedily, and AutoSwap's swaps for the rest; return whether there is a way.

    `small`: with the smallest workspaces, and then with faster ways where memory is left free. `tails`: with dead tails
    as sources of reruns; those that none reads go.
    """
    if small:
        found.lean()
    if tails:
        found.keep_tails()
    most = int(TRIES * found.effort / max(found.trace.n, 1))
    found.relieve(int(multiple * found.limits[1]), most)
    if work.over() or not found.prune():  # half of the drops are no start
        return False
    bare = replace(
        found.trace,
        buffers=replace(found.trace.buffers, of=np.arange(len(found.trace.buffers))),
        ops=replace(found.trace.ops, of=np.arange(found.trace.n)),
    )
    again = Plan.of(bare, found.changes(found.d.c)).apply(bare)
    try:
        plan = autoswap(again, machine, int(found.limits[1]), peaks="all", threshold=1)
    except (NotReached, Infeasible):
        return False
    swapped = plan.apply(again)
    recorded = again.ops.role != RECOMPUTE
    chosen = [d for d in plan.swaps if recorded[d.after]]
    found.select((int(again.buffers.of[d.buffer]), int(again.ops.of[d.after])) for d in chosen)
    found.stall(swapped, simulate(swapped, machine, capacity=int(found.limits[1])))
    if small:
        found.quicken()
    return True


Begin = Callable[[Instance], Annealing]

RATE = 30  # of a hundred steps, how many change what is dropped
ROUNDS = ((15, 0.01), (3, 0.04), (1, 0.15))  # how many take part, and the share of the effort that each has
BEST = 3  # of the plans that are known, as many take part in the race
SETTING_OUT = 0.3  # of the time that is left, at most: the greedy starts take longer than a little annealing
FEW = 50  # steps that make it worth while to start again


def race(
    judge: Judge, instance: Callable[..., Instance], begin: Begin, known: dict[int, Plan], recompute: bool, greedy: bool
) -> None:
    """Anneal from the best plans, and, if `greedy`, from values made again greedily; offer the judge what comes out.

    `instance`: what to search, by whether values may be made again, and with which plan known. What comes out is known
    from then on, by how long it takes.
    """
    first = [known[value] for value in sorted(known) if value < FAR]
    # The slowest too: where nothing overlaps, a state can say what the plan does, and annealing has a way down.
    best = first[:BEST] + first[BEST:][-1:]
    with work.part(share=SETTING_OUT):
        runners = list(work.each(_starts(judge, instance, begin, best, recompute, greedy)))
    for most, share in ROUNDS:
        runners = sorted(runners, key=lambda found: int(found.limits[3]))[:most]
        for found in work.each(runners):
            found.again()
            found.with_stalls(share, RATE)
            if found.limits[3] < FAR:
                plan = found.plan()
                known[judge.offer(plan)] = plan
            if judge.stall == 0 or work.over():
                return


def _starts(
    judge: Judge,
    instance: Callable[..., Instance],
    begin: Begin,
    plans: Sequence[Plan],
    recompute: bool,
    greedy: bool,
) -> Iterator[Annealing]:
    """Yield what stands at the start: each of the plans, and greedy drops down to each multiple of the limit."""
    trace, machine, limit = judge.trace, judge.machine, judge.limit
    # Where values may be made again, a good plan of swaps starts a second time, to change swaps alone: on long traces
    # there is time for few steps, and a third of them change what is made again.
    alone = (
        [plan for plan in plans[:2] if all(isinstance(d, Swap | Hold) for d in plan.decisions)][:1] if recompute else []
    )
    # Each with the gaps of its own plan: with those of all there is more to draw from that this one does not need.
    # VGG16 at 40 %, an effort of 0.02, eight seeds: 8.0 % in the mean, 12.7 with all.
    starts = [(plan, recompute) for plan in plans]
    starts[1:1] = [(plan, False) for plan in alone]
    for plan, again in starts:
        found = begin(instance(recompute=again, plan=plan, least=judge.makespan))
        if found.from_plan(plan, simulate(plan.apply(trace), machine, capacity=limit)):
            yield found
        if found.steps(ROUNDS[0][1]) < FEW:  # the best start should have what little there is
            return
    if not (recompute and greedy):
        return
    whole = instance(recompute=True, least=judge.makespan)
    small = (False, True) if whole.choices else (False,)
    some = bool((whole.tails >= 0).any())
    for k, (multiple, least) in enumerate(product(MULTIPLES, small)):
        found = begin(whole)
        if relieved(found, machine, multiple, small=least, tails=some and k // len(small) % 2 == 0):
            yield found
