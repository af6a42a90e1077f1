"""Annealing: a search's state on its way from nothing swapped, and the plan that a state stands for."""

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
from gpumem.swap.search._chosen import chosen_of, decisions_of
from gpumem.swap.search._copy_orders import MODULUS, toggle
from gpumem.swap.search._evaluate import FAR, USELESS, Evaluation, SwapProblem, SwapState, evaluate, retime
from gpumem.swap.search._greedy_recompute import quicken, relieve
from gpumem.swap.search._moves import anneal, assign, greedy
from gpumem.swap.search._pace import WORK, Pace
from gpumem.swap.search._recompute_changes import fill, prune, settle
from gpumem.swap.search._recompute_state import Decided, Drops
from gpumem.swap.search.instance import Instance
from gpumem.trace import I64, RECOMPUTE, Trace

HOT, COLD = 3e-3, 1e-4  # temperatures, in units of the evaluator's cost, where no op waits
WARM, FROZEN = 3e-4, 1e-5  # and where ops do: such a search starts from a plan that is good already
FACTOR = 0.995  # by which the greedy start lowers the limit
# Steps for each gap or choice, at most: a few gaps are tried in all ways long before. Random steps of 8 to 63 ops, an
# effort of 1: with a tenth of it, and with no end, plans were now better and now worse; no end took 8 to 100 times as
# long.
SWEEPS = 10_000
WEIGHTS = ((0.5, 0.1), (2.0, 0.9))  # of a stall of a whole iteration, in units of cost; first find, then improve
CHUNKS = 32  # of a phase, between which progress is told and the deadline looked at
LITTLE = 100  # tries of greedy drops, up to a tenth of a second on 6,000 ops, between which it does so as well
LOOK = 1e7  # looks, in a tenth of a second, between which the greedy start looks at the deadline


def start(p: SwapProblem) -> SwapState:
    """Return the state in which nothing is swapped."""
    m, n = len(p.size), len(p.begin)
    orders = np.zeros(m + 1, np.int64), np.zeros(m + 1, np.int64)
    return SwapState(np.zeros(m, np.bool_), np.full(m, -1), *orders, np.zeros(2, np.int64), np.zeros(n, np.int64))


def swaps(p: SwapProblem, w: Windows, d: Drops, s: SwapState, x: Evaluation) -> list[Swap]:
    """Return the decisions that make the engines run as the evaluator says.

    A buffer is released at the first op that starts when its copy-out has ended, and a copy-in is issued
    before the first op that starts after it. A copy-out is issued after the last op that ends before it
    starts, since engines work in issue order. The list is in the order of the copies in.
    """
    retime(p, d, s, x)
    evaluate(p, d, s, x, 1)
    n, after, turn = len(p.begin), w.after, int(x.turn[0])
    places, times = Times.unroll(x.begin, x.begin, turn), Times.unroll(x.begin[1::2], x.end, turn)
    due = d.due_turn * n + d.due // 2
    release = np.clip(places.begins(x.gone) // 2, after + 1, due)
    prefetch = np.clip(places.begins(x.back) // 2, release, due)
    out = np.clip(times.ended(x.gone - p.out_ns), after, release - 1)
    _keep_apart(s, out, release, n)
    out = np.where(s.payer == np.arange(len(w)), out, after)
    mine = s.ins[: s.used[1]]
    mine = mine[x.kind[mine] != USELESS]
    return [swap.within(n) for swap in Swap.each(w.where(mine), release[mine], prefetch[mine], out[mine])]


def _keep_apart(s: SwapState, out: I64, release: I64, n: int) -> None:
    """Issue copies out one op later where the order of the copies in, which breaks ties, would swap them."""
    rank = np.zeros(len(out), np.int64)
    rank[s.ins[: s.used[1]]] = np.arange(s.used[1])
    order = s.outs[: s.used[0]].tolist()
    for g, h in pairwise(order):
        ahead = (out[g] - out[h]) % n  # g goes first
        if ahead < n // 2:
            out[h] = min(out[h] + ahead + (rank[h] < rank[g]), release[h] - 1)


class Annealing:
    """A search on its way; `best` is the best state so far, `limits[2]` the limit that it keeps to.

    `effort` and `seed` as in `search`. It begins with nothing swapped, dropped or held.
    """

    def __init__(self, instance: Instance, effort: float, seed: int, pace: Pace | None = None) -> None:
        check_numbers(effort=effort)
        i = self.instance = instance
        self.trace, self.choices, self.recorded = i.trace, i.choices, i.recorded
        self.p, self.r, self.w = i.p, i.r, i.w
        self.effort, self.seed, self.pace = effort, seed, pace or Pace()
        self.x, self.now, peak = Evaluation.of(self.p), start(self.p), self.trace.peak_live_bytes
        self.d, self.best = Drops.of(self.r), self.now.copy()
        settle(self.r, self.d)
        self.best_c = self.d.c.copy()
        self.points = int(self.d.used[0])
        retime(self.p, self.d, self.now, self.x)
        # the limit now, the goal, the lowest one kept to, the stall that it took
        self.limits = np.array([peak, i.goal, peak, FAR])

    @property
    def cost(self) -> int:
        """Looks at a point or a gap in one evaluation of a state."""
        return max(self.points + 5 * len(self.w), 1)

    def steps(self, share: float) -> int:
        """Return how many evaluations a share of the effort pays for."""
        most = SWEEPS * max(self.effort, 1) * (len(self.w) + len(self.choices))
        return int(share * min(self.effort * WORK / self.cost, most))

    def without_stalls(self, share: float, most: float = inf) -> bool:
        """Lower the limit, greedily and then by annealing, with no op waiting; return whether the goal is reached.

        The greedy part takes at most the work of `most` of the effort.
        """
        limits, left = np.array([self.limits[0], self.limits[0]]), True
        rounds = max(int(LOOK / self.cost / max(len(self.w), 1)), 1)
        most *= self.effort * WORK / self.cost / max(len(self.w), 1) / rounds
        while left and most > 0 and not work.over():
            most -= 1
            left = greedy(self.p, self.d, self.now, self.x, limits, int(self.limits[1]), FACTOR, rounds)
        self.limits[0] = limits[1]
        return self.anneal(share, 0, 0.0, HOT, COLD)

    def from_plan(self, plan: Plan, line: Timeline) -> bool:
        """Start from a plan for the goal, with the stalls that it has in `line`; False where it cannot be said here."""
        ways = self.recorded | {d.op: d for d in plan.decisions if isinstance(d, Variant) and d.at == -1}
        chosen = chosen_of(self.r, self.w.rows(self.trace.n), plan)
        chosen.by[:] = self.by(lambda row: row.index(ways[row[0].op]))
        fine = fill(self.r, self.d, chosen)
        fine = fine and self.prune()
        self.select((d.buffer, d.after) for d in plan.swaps)
        self.order(plan.swaps)
        self.stall(plan.apply(self.trace), line)
        return fine

    def order(self, chosen: Iterable[Swap]) -> None:
        """Let both engines copy in the order in which these are issued, not in that of the accesses.

        A plan that lets copies overtake one another would be above the limit here, with the stalls that it has.
        """
        place, n = self.w.rows(self.trace.n), self.trace.n
        out, back = np.zeros((2, len(self.w)), np.int64)
        for d in chosen:
            k = place.get((d.buffer, d.after), -1)
            if k >= 0:
                out[k], back[k] = d.out, d.prefetch - d.before // n * n
        for order, used, at in zip((self.now.outs, self.now.ins), self.now.used.tolist(), (out, back)):
            order[:used] = order[:used][np.argsort(at[order[:used]], kind="stable")]

    def by(self, which: Callable[[list[Variant]], int]) -> I64:
        """Return the way that `which` chooses for each op with a choice, as `Drops.by`."""
        return self.r.ways.first[:-1] + np.array([which([*row]) for row in self.choices], np.int64)

    def lean(self) -> None:
        """Run each op by its way of the smallest workspace."""
        small = self.by(lambda row: min(range(len(row)), key=lambda k: (row[k].workspace, row[k].duration)))
        fill(self.r, self.d, self.d.c.copy()._replace(by=small))

    def keep_tails(self) -> None:
        """Hold all that the trace holds after its last access."""
        fill(self.r, self.d, self.d.c.copy()._replace(until=self.instance.tails))

    def prune(self) -> bool:
        """Hold nothing for longer than reruns read it; False where that cannot be noted."""
        fine = prune(self.r, self.d)
        settle(self.r, self.d)
        return fine

    def quicken(self) -> None:
        """Run ops by faster ways where the memory that is free allows it."""
        quicken(self.p, self.r, self.d, self.now, self.x, int(self.limits[1]))

    def relieve(self, goal: int, most: int) -> None:
        """Drop values greedily until the load is at most `goal`, in at most so many tries."""
        was, worth = self.d.copy(), self.r.worth.copy()
        for _ in work.each(range(ceil(most / LITTLE))):
            if relieve(self.r, self.d, was, worth, goal, LITTLE):
                break
        settle(self.r, self.d)

    def select(self, chosen: Iterable[tuple[int, int]]) -> None:
        """Swap gaps, by buffer and first access, as far as they can be and are not dropped."""
        self.now, place = start(self.p), self.w.rows(self.trace.n)
        for gap in chosen:
            k = place.get(gap, -1)
            if k >= 0 and not self.d.c.at[k] and not self.now.selected[k]:
                toggle(self.p, self.d, self.now, k)

    def stall(self, planned: Trace, line: Timeline) -> None:
        """Let ops wait as they do in `line`, of a trace that some plan made; reruns as the op that they are for."""
        mine = (planned.ops.role != RECOMPUTE)[~planned.ops.copies]
        waits = np.where(line.cause == HOST, 0, line.wait)[~planned.ops.copies]  # the host is in `p.begin`
        np.add.at(self.now.stall, np.minimum(np.cumsum(mine) - mine, self.trace.n - 1), waits)

    def again(self) -> None:
        """Go back to the best state, if there is one."""
        if self.limits[3] < FAR:
            assign(self.now, self.best, True)
            fill(self.r, self.d, self.best_c)

    def with_stalls(self, share: float, rate: int = 0) -> None:
        """Keep to the goal with ops that wait, and look for less of that; `rate` as in `anneal`."""
        self.limits[0], self.limits[2:] = self.limits[1], FAR
        for weight, part in WEIGHTS:
            self.anneal(share * part, FAR, weight, WARM, FROZEN, rate)

    def a_little_stall(self, share: float, budget: int) -> None:
        """Go on from the best state, lowering the limit, with ops that wait for `budget` ns in all."""
        assign(self.now, self.best, True)
        self.limits[0], self.limits[3] = self.limits[2], FAR
        self.anneal(share, budget, 0.0, HOT, COLD)

    def anneal(self, share: float, budget: int, weight: float, hot: float, cold: float, rate: int = 0) -> bool:
        """Anneal with a share of the effort; return whether the work was done before its end."""
        random, spare = np.array([self.seed * 7919 % (MODULUS - 1) + 1]), self.now.copy()
        chunks = ceil(CHUNKS * max(self.effort, 1)) if work.hurried() else CHUNKS
        steps = max(self.steps(share) // chunks, 1)
        was, rate = self.d.copy(), rate if len(self.r.can) + len(self.choices) else 0
        for k in work.each(range(chunks)):
            heat, less = (hot * (cold / hot) ** (part / chunks) for part in (k, k + 1))
            state = (self.p, self.r, self.d, was, self.best_c, self.now, self.best, spare, self.x)
            with self.pace.timed(self.cost) as taken:
                done = taken[0] = anneal(*state, random, self.limits, steps, heat, less, budget, weight, rate)
            if self.limits[3] < FAR:
                work.tell(
                    f"{self.limits[2] / self.trace.peak_live_bytes:.1%} of the peak, stalls of {self.limits[3]} ns"
                )
            if done < steps:
                return True
        return False

    def changes(self, c: Decided) -> list[Decision]:
        """Return the decisions that what is chosen stands for."""
        taken = [ways[k] for ways, k in zip(self.choices, (c.by - self.r.ways.first[:-1]).tolist())]
        return [*decisions_of(self.r, c), *(way for way in taken if way != self.recorded[way.op])]

    def plan(self) -> Plan:
        """Return the plan that the best state stands for."""
        fill(self.r, self.d, self.best_c)
        copies = swaps(self.p, self.w, self.d, self.best, self.x)
        return Plan.of(self.trace, [*copies, *self.changes(self.best_c)])
