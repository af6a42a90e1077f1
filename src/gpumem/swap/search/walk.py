"""A walk of the search: where it stands, its phases, and the plan that its best state stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import ceil, inf

import numpy as np

from gpumem.base import work
from gpumem.simulator.timeline import HOST, Timeline
from gpumem.swap.facts.options import check_numbers
from gpumem.swap.facts.times import Times
from gpumem.swap.plan import Decision, Plan, Swap, Variant
from gpumem.swap.plan.gaps import Windows
from gpumem.swap.search._chosen import choice_of, decisions_of
from gpumem.swap.search._copy_orders import MODULUS, toggle
from gpumem.swap.search._evaluate import FAR, IN, OUT, USELESS, Evaluation, State, SwapState, evaluate, retime
from gpumem.swap.search._greedy_recompute import drop_greedily, speed_up_ops
from gpumem.swap.search._greedy_swaps import CURRENT, KEPT, lower_greedily
from gpumem.swap.search._pace import WORK, Pace
from gpumem.swap.search._recompute_changes import adopt, propagate, trim_holds
from gpumem.swap.search._recompute_state import POINTS, RecomputeChoice, RecomputeState
from gpumem.swap.search.annealing import (
    BEST_DELAY,
    BEST_LIMIT,
    GOAL,
    LIMIT,
    Best,
    CoolingSchedule,
    Saved,
    anneal,
    copy_swaps,
)
from gpumem.swap.search.instance import Instance
from gpumem.trace import I64, RECOMPUTE, Trace

# Temperatures, in units of the evaluator's cost, where no op waits; not tuned.
HOT, COLD = 3e-3, 1e-4
# And where ops do: such a walk starts from a plan that is good already, which hot steps would lose. Not tuned further.
WARM, FROZEN = 3e-4, 1e-5
# Steps for each gap or choice, at most: a few gaps are tried in all variants long before. Random steps of 8 to 63 ops,
# an effort of 1: with a tenth of it, and with no end, plans were now better and now worse; no end took 8 to 100 times
# as long.
SWEEPS = 10_000
# Of a delay of a whole iteration, in units of cost, and the part of the steps that it has: little weight first, to find
# a state that keeps to the limit, then more, to improve it. Not tuned.
WEIGHTS = ((0.5, 0.1), (2.0, 0.9))
GAP_LOOKS = 5  # what a gap costs an evaluation, in looks at a point: it is looked at in each of the passes
CHUNKS = 32  # of a phase, between which progress is reported and the deadline looked at; not tuned
# Greedy drops, up to a tenth of a second on 6,000 ops, between which the deadline is looked at as well.
DROP_TRIES = 100
GREEDY_LOOKS = 1e7  # a tenth of a second, between which the greedy start looks at the deadline


def swap_decisions(state: State, windows: Windows) -> list[Swap]:
    """Return the decisions that make the engines run as the evaluator says.

    A buffer is released at the first op that starts when its copy-out has ended, and a copy-in is issued
    before the first op that starts after it. A copy-out is issued after the last op that ends before it
    starts, since engines work in issue order. The list is in the order of the copies in.
    """
    retime(state)
    evaluate(state, 1)
    problem, drops, swaps, times = state.problem, state.drops, state.swaps, state.times
    ops, after, period = len(problem.begin), windows.after, int(times.period[0])
    places = Times.unroll(times.begin, times.begin, period)
    op_times = Times.unroll(times.begin[1::2], times.end, period)
    due = drops.due_iteration * ops + drops.due // 2
    release = np.clip(places.begins(times.out_end) // 2, after + 1, due)
    prefetch = np.clip(places.begins(times.in_start) // 2, release, due)
    out = np.clip(op_times.ended(times.out_end - problem.out_ns), after, release - 1)
    _keep_apart(swaps, out, release, ops)
    out = np.where(swaps.copied_by == np.arange(len(windows)), out, after)
    swapped = swaps.ins[: swaps.lengths[IN]]
    swapped = swapped[times.kind[swapped] != USELESS]
    decisions = Swap.each(windows.where(swapped), release[swapped], prefetch[swapped], out[swapped])
    return [swap.within(ops) for swap in decisions]


def _keep_apart(swaps: SwapState, out: I64, release: I64, ops: int) -> None:
    """Issue copies out one op later where the order of the copies in, which breaks ties, would swap them."""
    rank = np.zeros(len(out), np.int64)
    rank[swaps.ins[: swaps.lengths[IN]]] = np.arange(swaps.lengths[IN])
    order = swaps.outs[: swaps.lengths[OUT]].tolist()
    for earlier, later in pairwise(order):
        ahead = (out[earlier] - out[later]) % ops
        # Half a circle or more is behind, not ahead.
        if ahead < ops // 2:
            out[later] = min(out[later] + ahead + (rank[later] < rank[earlier]), release[later] - 1)


class SearchWalk:
    """A search on its way; `best` is the best state so far, `limits[BEST_LIMIT]` the limit that it keeps to.

    `effort` and `seed` as in `search`. It begins with nothing swapped, dropped or held.
    """

    def __init__(self, instance: Instance, effort: float, seed: int, pace: Pace | None = None) -> None:
        check_numbers(effort=effort)
        self.instance, self.trace, self.windows = instance, instance.trace, instance.windows
        self.choices, self.recorded, self.recompute = instance.choices, instance.recorded, instance.recompute
        self.effort, self.seed, self.pace = effort, seed, pace or Pace()
        problem, drops = instance.problem, RecomputeState.of(self.recompute)
        self.state = State(problem, drops, SwapState.of(problem), Evaluation.of(problem))
        propagate(self.recompute, drops)
        self.best = Best(drops.choice.copy(), self.state.swaps.copy())
        self.points = int(drops.used[POINTS])
        retime(self.state)
        self.limits = np.zeros(4, np.int64)
        peak = self.trace.peak_live_bytes
        self.limits[[LIMIT, GOAL, BEST_LIMIT, BEST_DELAY]] = peak, instance.goal, peak, FAR

    @property
    def drops(self) -> RecomputeState:
        """What is dropped, recomputed and held now."""
        return self.state.drops

    @property
    def goal(self) -> int:
        """The limit to reach, in bytes."""
        return int(self.limits[GOAL])

    @property
    def has_best(self) -> bool:
        """Whether some state has kept to the limit."""
        return bool(self.limits[BEST_DELAY] < FAR)

    @property
    def cost(self) -> int:
        """Looks at a point or a gap in one evaluation of a state."""
        return max(self.points + GAP_LOOKS * len(self.windows), 1)

    def steps(self, share: float) -> int:
        """Return how many evaluations a share of the effort pays for."""
        most = SWEEPS * max(self.effort, 1) * (len(self.windows) + len(self.choices))
        return int(share * min(self.effort * WORK / self.cost, most))

    def without_stalls(self, share: float, greedy_share: float = inf) -> bool:
        """Lower the limit, greedily and then by annealing, with no op waiting; return whether the goal is reached.

        The greedy part takes at most the work of `greedy_share` of the effort.
        """
        limits, unfinished = np.zeros(2, np.int64), True
        limits[[CURRENT, KEPT]] = self.limits[LIMIT]
        gaps = max(len(self.windows), 1)
        rounds = max(int(GREEDY_LOOKS / self.cost / gaps), 1)
        calls = greedy_share * self.effort * WORK / self.cost / gaps / rounds
        while unfinished and calls > 0 and not work.over():
            calls -= 1
            unfinished = lower_greedily(self.state, limits, self.goal, rounds)
        self.limits[LIMIT] = limits[KEPT]
        return self.anneal(share, stall_budget=0, hot=HOT, cold=COLD)

    def from_plan(self, plan: Plan, line: Timeline) -> bool:
        """Start from a plan for the goal, with the stalls that it has in `line`; False where no state stands for it."""
        variants = self.recorded | {d.op: d for d in plan.decisions if isinstance(d, Variant) and d.at == -1}
        choice = choice_of(self.recompute, self.windows.rows(self.trace.n), plan)
        choice.variant[:] = self.choose_variants(lambda row: row.index(variants[row[0].op]))
        possible = adopt(self.recompute, self.drops, choice)
        possible = possible and self.trim_holds()
        self.select((swap.buffer, swap.after) for swap in plan.swaps)
        self.order(plan.swaps)
        self.stall(plan.apply(self.trace), line)
        return possible

    def order(self, planned: Iterable[Swap]) -> None:
        """Let both engines copy in the order in which these are issued, not in that of the accesses.

        A plan that lets copies overtake one another would exceed the limit here, with the stalls that it has.
        """
        rows, ops, swaps = self.windows.rows(self.trace.n), self.trace.n, self.state.swaps
        out, back = np.zeros((2, len(self.windows)), np.int64)
        for swap in planned:
            gap = rows.get((swap.buffer, swap.after), -1)
            if gap >= 0:
                out[gap], back[gap] = swap.out, swap.prefetch - swap.before // ops * ops
        for order, count, issued in zip((swaps.outs, swaps.ins), swaps.lengths[[OUT, IN]].tolist(), (out, back)):
            order[:count] = order[:count][np.argsort(issued[order[:count]], kind="stable")]

    def choose_variants(self, index: Callable[[list[Variant]], int]) -> I64:
        """Return the variant that `index` chooses for each op with a choice, as `RecomputeChoice.variant`."""
        chosen = np.array([index([*row]) for row in self.choices], np.int64)
        return self.recompute.variants.first[:-1] + chosen

    def shrink_workspaces(self) -> None:
        """Run each op by its variant of the smallest workspace."""
        small = self.choose_variants(
            lambda row: min(range(len(row)), key=lambda k: (row[k].workspace, row[k].duration))
        )
        adopt(self.recompute, self.drops, self.drops.choice.copy()._replace(variant=small))

    def hold_tails(self) -> None:
        """Hold all that the trace holds after its last access."""
        adopt(self.recompute, self.drops, self.drops.choice.copy()._replace(held_until=self.instance.tails))

    def trim_holds(self) -> bool:
        """Hold nothing for longer than replays read it; False where that cannot be noted."""
        possible = trim_holds(self.recompute, self.drops)
        propagate(self.recompute, self.drops)
        return possible

    def speed_up_ops(self) -> None:
        """Run ops by faster variants where the memory that is free allows it."""
        speed_up_ops(self.state, self.recompute, self.goal)

    def drop_greedily(self, goal: int, most: int) -> None:
        """Drop values greedily until at most `goal` bytes are live, in at most so many tries."""
        before, worth = self.drops.copy(), self.recompute.worth.copy()
        for _ in work.each(range(ceil(most / DROP_TRIES))):
            if drop_greedily(self.recompute, self.drops, before, worth, goal=goal, most=DROP_TRIES):
                break
        propagate(self.recompute, self.drops)

    def select(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Swap gaps, by buffer and first access, as far as they can be and are not dropped."""
        problem, rows = self.state.problem, self.windows.rows(self.trace.n)
        swaps = SwapState.of(problem)
        self.state = self.state._replace(swaps=swaps)
        for key in gaps:
            gap = rows.get(key, -1)
            if gap >= 0 and not self.drops.choice.recompute_at[gap] and not swaps.selected[gap]:
                toggle(problem, self.drops, swaps, gap)

    def stall(self, planned: Trace, line: Timeline) -> None:
        """Let ops wait as they do in `line`, of a trace that some plan made; recomputations as the op they are for."""
        is_recorded = (planned.ops.role != RECOMPUTE)[~planned.ops.copies]
        # The time that the host takes to launch is in `problem.begin`.
        waits = np.where(line.cause == HOST, 0, line.wait)[~planned.ops.copies]
        op = np.minimum(np.cumsum(is_recorded) - is_recorded, self.trace.n - 1)
        np.add.at(self.state.swaps.stall, op, waits)

    def back_to_best(self) -> None:
        """Go back to the best state, if there is one."""
        if self.has_best:
            copy_swaps(self.state.swaps, self.best.swaps, True)
            adopt(self.recompute, self.drops, self.best.choice)

    def with_stalls(self, share: float, recompute_rate: int = 0) -> None:
        """Keep to the goal with ops that wait, and look for less of that; `recompute_rate` as in `CoolingSchedule`."""
        self.limits[LIMIT] = self.limits[GOAL]
        self.limits[[BEST_LIMIT, BEST_DELAY]] = FAR
        for weight, part in WEIGHTS:
            self.anneal(
                share * part,
                stall_budget=FAR,
                delay_weight=weight,
                hot=WARM,
                cold=FROZEN,
                recompute_rate=recompute_rate,
            )

    def a_little_stall(self, share: float, budget: int) -> None:
        """Go on from the best state, lowering the limit, with ops that wait for `budget` ns in all."""
        copy_swaps(self.state.swaps, self.best.swaps, True)
        self.limits[LIMIT], self.limits[BEST_DELAY] = self.limits[BEST_LIMIT], FAR
        self.anneal(share, stall_budget=budget, hot=HOT, cold=COLD)

    def anneal(
        self,
        share: float,
        *,
        stall_budget: int,
        delay_weight: float = 0.0,
        hot: float,
        cold: float,
        recompute_rate: int = 0,
    ) -> bool:
        """Anneal with a share of the effort; return whether the goal is reached without delay before its end."""
        random = np.array([self.seed * 7919 % (MODULUS - 1) + 1])  # a prime, so that neighbouring seeds are far apart
        saved = Saved(self.drops.copy(), self.state.swaps.copy())
        chunks = ceil(CHUNKS * max(self.effort, 1)) if work.hurried() else CHUNKS
        steps = max(self.steps(share) // chunks, 1)
        rate = recompute_rate if len(self.recompute.droppable) + len(self.choices) else 0
        for chunk in work.each(range(chunks)):
            hotter, colder = (hot * (cold / hot) ** (part / chunks) for part in (chunk, chunk + 1))
            schedule = CoolingSchedule(
                steps, hotter, colder, stall_budget=stall_budget, delay_weight=delay_weight, recompute_rate=rate
            )
            where = (self.state, self.recompute, saved, self.best, self.limits)
            with self.pace.timed(self.cost) as taken:
                done = taken[0] = anneal(*where, schedule, random)
            if self.has_best:
                part = self.limits[BEST_LIMIT] / self.trace.peak_live_bytes
                work.tell(f"{part:.1%} of the peak, stalls of {self.limits[BEST_DELAY]} ns")
            if done < steps:
                return True
        return False

    def changes(self, choice: RecomputeChoice) -> list[Decision]:
        """Return the decisions that a choice stands for."""
        indexes = (choice.variant - self.recompute.variants.first[:-1]).tolist()
        variants = [row[index] for row, index in zip(self.choices, indexes)]
        switched = (variant for variant in variants if variant != self.recorded[variant.op])
        return [*decisions_of(self.recompute, choice), *switched]

    def plan(self) -> Plan:
        """Return the plan that the best state stands for."""
        adopt(self.recompute, self.drops, self.best.choice)
        copies = swap_decisions(self.state._replace(swaps=self.best.swaps), self.windows)
        return Plan.of(self.trace, [*copies, *self.changes(self.best.choice)])
