"""Annealing: a search's state on its way from nothing swapped, and the plan that a state stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import ceil, inf
from types import MappingProxyType

import numpy as np

from gpumem.base import work
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import HOST, Timeline
from gpumem.swap.facts.load import at_places
from gpumem.swap.facts.operators import Menu
from gpumem.swap.facts.options import check_numbers
from gpumem.swap.facts.recompute import barred, recomputable
from gpumem.swap.facts.recompute_cost import MadeAgain
from gpumem.swap.facts.times import Times
from gpumem.swap.plan import Decision, Plan, Recompute, Swap, Variant
from gpumem.swap.plan.gaps import Spans, Windows, around, gaps, windows
from gpumem.swap.search._chosen import chosen_of, decisions_of
from gpumem.swap.search._copy_orders import MODULUS, toggle
from gpumem.swap.search._evaluate import FAR, USELESS, Evaluation, SwapProblem, SwapState, evaluate, retime
from gpumem.swap.search._greedy_recompute import quicken, relieve
from gpumem.swap.search._moves import anneal, assign, greedy
from gpumem.swap.search._operator_choices import Choices, Ways, choices_of, fastest, recorded_ways
from gpumem.swap.search._recompute_changes import fill, settle
from gpumem.swap.search._recompute_state import Chosen, Drops, Replays
from gpumem.trace import F64, I64, RECOMPUTE, Bool, Trace

HOT, COLD = 3e-3, 1e-4  # temperatures, in units of the evaluator's cost, where no op waits
WARM, FROZEN = 3e-4, 1e-5  # and where ops do: such a search starts from a plan that is good already
FACTOR = 0.995  # by which the greedy start lowers the limit
WORK = 3e9  # the default effort, in looks at a point or a gap
# Steps for each gap or choice, at most: a few gaps are tried in all ways long before. Random steps of 8 to 63 ops, an
# effort of 1: with a tenth of it, and with no end, plans were now better and now worse; no end took 8 to 100 times as
# long.
SWEEPS = 10_000
SHARED = 8  # how many times the best plan's reruns those of one gap may take, if others share them; not tuned
SMALLEST = 2e-4  # of the peak load: smaller gaps are not looked at
WEIGHTS = ((0.5, 0.1), (2.0, 0.9))  # of a stall of a whole iteration, in units of cost; first find, then improve
CHUNKS = 32  # of a phase, between which progress is told and the deadline looked at
LOOK = 1e7  # looks, in a tenth of a second, between which the greedy start looks at the deadline


def problem(
    trace: Trace,
    machine: Machine,
    goal: int,
    *,
    placed: bool = False,
    recompute: bool = False,
    plan: Plan | None = None,
    choices: Choices = (),
    least: int = FAR,
) -> tuple[SwapProblem, Replays, Windows]:
    """Return what a search for limits from `goal` on works on: all gaps but the smallest.

    `least`: the ns of an iteration by the best plan that is known.
    """
    trace = fastest(trace, choices)
    line, n = simulate(trace, machine), trace.n
    begin = np.maximum.accumulate(line.start)
    end, turn = np.maximum(line.end, begin), max(line.makespan, 1)  # costs are parts of a turn: one of no time is 1 ns
    w = windows(trace, machine)
    named = {(d.buffer, d.after) for d in (() if plan is None else plan.decisions) if isinstance(d, Swap | Recompute)}
    rows = w.rows(n)
    large = w.size >= SMALLEST * trace.peak_load
    large[[rows[gap] for gap in named if gap in rows]] = True
    w = w.where(large)
    useful = _useful(w, begin, end, turn, trace, goal)
    place = w.rows(n)
    useful[[place[gap] for gap in named if gap in place]] = True
    most = _longest(trace, machine, w, plan, least)
    most[[k for gap, k in place.items() if gap in named]] = FAR  # or the plan could not be said here
    lasts, worth = _again(trace, machine, w, most) if recompute else (np.zeros(len(w), np.int64), np.zeros(len(w)))
    some = useful | (lasts > 0)
    w, lasts, worth = w.where(some), lasts[some], worth[some]
    _, first, value, count = np.unique(w.value, return_index=True, return_inverse=True, return_counts=True)
    hosted = at_places(trace, host=True)
    p = SwapProblem(
        begin,
        end,
        w.after % n,
        w.after // n,
        w.before % n,
        w.before // n,
        w.size,
        w.out_ns,
        w.in_ns,
        value,
        first,
        first + count,
        turn,
        machine.duplex,
        w.constant,
        hosted,
        machine.pinned if w.size[first].sum() + hosted.max() > machine.pinned else -1,
        placed,
    )
    made = MadeAgain.of(trace, machine.durations(trace), _within(w, n), barred(trace, machine))
    return p, Replays.of(made, Ways.of(trace, choices), w, lasts, worth, goal), w


def _useful(w: Windows, begin: I64, end: I64, turn: int, trace: Trace, goal: int) -> Bool:
    """Which gaps are worth a look: those in which the copy back has time; all, where these do not get to the goal.

    A gap that is shorter makes an op wait each time. With all of them in it annealing has twice the gaps to draw from:
    VGG16 at 40 %, an effort of 0.05: 8.1 % instead of 7.1.
    """
    opens = end[w.after % len(begin)] + w.after // len(begin) * turn
    closes = begin[w.before % len(begin)] + w.before // len(begin) * turn
    long: Bool = closes - opens > w.in_ns
    absent = around(w.after[long] + 1, w.before[long], w.size[long], trace.n)
    return long if (trace.load() - absent).max() <= goal else np.ones(len(w), np.bool_)


def _within(w: Windows, n: int) -> Spans:
    """The gaps, as the iteration counts."""
    turn = w.after // n * n
    return Spans(w.buffer, w.after - turn, w.before - turn)


def _longest(trace: Trace, machine: Machine, w: Windows, plan: Plan | None, least: int) -> I64:
    """The ns that each gap's reruns may take alone, or the walk along long chains would take most of the time.

    A stream computes for the time of its ops at least, and of what runs again beside: with longer reruns a plan takes
    longer than `least`. What others have made and stays is not counted in, so some times as much is allowed. None of
    that holds where the ops share several streams.
    """
    mine = ~trace.ops.copies
    one = len(np.unique(trace.ops.stream[mine])) == 1 and least < FAR
    most = SHARED * max(least - int(machine.durations(trace)[mine].sum()), 0) if one else FAR
    return np.full(len(w), most)


def _again(trace: Trace, machine: Machine, w: Windows, most: I64) -> tuple[I64, F64]:
    """The last place at which each gap's value can be made again, 0 where it cannot, and the bytes for a ns of that."""
    g, n = gaps(trace), trace.n
    place = g.rows(n)
    rows = np.array([place[b, a] for b, a in zip(w.buffer.tolist(), (w.after % n).tolist())], np.int64)
    found = recomputable(trace, machine, g.where(rows), most=most)
    fine = (found.ops.sums(barred(trace, machine)) == 0) & (found.until > w.after % n + 1)
    return np.where(fine, found.until, 0), w.size / np.maximum(found.cost_ns, 1)


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

    Parameters as in `search`, with the limit as the `goal`; `least` as in `problem`. It begins with nothing swapped.
    """

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        goal: int,
        effort: float,
        seed: int,
        *,
        placed: bool = False,
        recompute: bool = False,
        plan: Plan | None = None,
        algorithms: Menu = MappingProxyType({}),
        least: int = FAR,
    ) -> None:
        check_numbers(effort=effort)
        self.trace, self.effort, self.seed = trace, effort, seed
        self.choices = choices_of(trace, machine, algorithms, plan) if recompute else ()
        self.recorded = recorded_ways(trace, machine, [ways[0].op for ways in self.choices])
        self.p, self.r, self.w = problem(
            trace, machine, goal, placed=placed, recompute=recompute, plan=plan, choices=self.choices, least=least
        )
        self.x, self.now, peak = Evaluation.of(self.p), start(self.p), trace.peak_load
        self.d, self.best = Drops.of(self.r), self.now.copy()
        settle(self.r, self.d)
        self.best_c = self.d.c.copy()
        self.points = int(self.d.used[0])
        retime(self.p, self.d, self.now, self.x)
        # the limit now, the goal, the lowest one kept to, the stall that it took
        self.limits = np.array([peak, goal, peak, FAR])

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

    def quicken(self) -> None:
        """Run ops by faster ways where the memory that is free allows it."""
        quicken(self.p, self.r, self.d, self.now, self.x, int(self.limits[1]))

    def relieve(self, goal: int, most: int) -> None:
        """Drop values greedily until the load is at most `goal`, in at most so many tries."""
        relieve(self.r, self.d, self.d.copy(), self.r.worth.copy(), goal, most)
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
            done = anneal(*state, random, self.limits, steps, heat, less, budget, weight, rate)
            if self.limits[3] < FAR:
                work.tell(f"{self.limits[2] / self.trace.peak_load:.1%} of the peak, stalls of {self.limits[3]} ns")
            if done < steps:
                return True
        return False

    def changes(self, c: Chosen) -> list[Decision]:
        """Return the decisions that what is chosen stands for."""
        taken = [ways[k] for ways, k in zip(self.choices, (c.by - self.r.ways.first[:-1]).tolist())]
        return [*decisions_of(self.r, c), *(way for way in taken if way != self.recorded[way.op])]

    def plan(self) -> Plan:
        """Return the plan that the best state stands for."""
        fill(self.r, self.d, self.best_c)
        copies = swaps(self.p, self.w, self.d, self.best, self.x)
        return Plan.of(self.trace, [*copies, *self.changes(self.best_c)])
