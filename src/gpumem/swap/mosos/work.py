"""What a planner of MO-SOS' family does one after the other: cut, round, solve, judge, and again with more parked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

import numpy as np

from gpumem.base import work
from gpumem.base.errors import NotReached
from gpumem.base.units import human_ns, percent
from gpumem.swap.facts.limits import FAR
from gpumem.swap.facts.operators import Menu, lean, operators, smallest
from gpumem.swap.facts.recompute import backward_start
from gpumem.swap.incumbent import Incumbent
from gpumem.swap.linear_programs import INFEASIBLE
from gpumem.swap.mosos.parking import crowded, parking
from gpumem.swap.mosos.problem import Implementation, Nodes, Proved, Rules
from gpumem.swap.mosos.program import MOVED
from gpumem.swap.mosos.rounding import rounded
from gpumem.swap.mosos.solve import solve
from gpumem.swap.mosos.stages import Stages
from gpumem.swap.mosos.translate import plan_of
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import I64

MOST = 50  # nodes that the program is solved for
FEWER = 24  # nodes where there is no deadline
# Where no schedule fits: a coarse node runs again as a whole or not at all, and most of them cannot. VGG16 within 0.55
# on a P40, by the paper's schedules alone: none of 50 nodes, and 99.4 ms beside parked parameters; 72.1 ms of 100.
# With a deadline only: the program grows with the square, and takes seconds to tens of seconds then. Not tuned.
FINER = (100, 150, 200)
FINER_SHARE = 0.7  # of the time, at most, where parking can help as well. Not tuned
RESTRICTED = 0.25  # of the time, for each of the restrictions that MO-SOS begins with
ROUNDING = 0.3  # of the time, at most, for the linear program and its rounding;
ROUNDING_FINER = 0.8  # of finer nodes, where little comes of what follows
BACKWARD = 0.5  # of what is left then, for reruns in the backward pass alone
WORK = 10_000  # nodes of the search tree, over n^2 for n nodes of the net, where there is no deadline
TRIES = 3  # programs, each for a little less memory, where coarse nodes hide what is held
ROOMS = (0.97, 0.9, 0.8)  # of the limit: what ops may need beside outputs, if there is no schedule else
FREE, FIXED, AUTO = "free", "fixed", "auto"  # who chooses operators: the program; once for all; by free memory


@dataclass(frozen=True, slots=True)
class Family:
    """What a planner of this family may do: copy, and choose operators how."""

    copies: bool
    operators: str


FAMILY = {
    "mosos": Family(True, FREE),
    "checkmate": Family(False, FIXED),
    "checkmate-auto": Family(False, AUTO),
    "str": Family(True, FIXED),
    "str-auto": Family(True, AUTO),
}


@dataclass(slots=True)
class Working(Incumbent):
    """The plans that came of one planner's programs so far, and the nodes that these are about."""

    kind: str  # asked for
    menu: Menu
    waits: bool  # whether stages may wait for copies
    alone: bool  # whether it begins with nothing
    net: Stages = field(init=False)
    proved: float = field(default=0.0, init=False)  # ns: the bound of the program that was solved last, 0 at first
    ended: str = field(default="", init=False)  # what became of the last program without a schedule

    def all(self) -> None:
        """Judge the plans of the programs, and that which swaps all."""
        kind = FAMILY[self.kind]
        if self.menu:  # else what moves nothing is above the limit
            self.offer(kind, Plan.of(self.trace))
        with suppress(work.TimeUp):
            self.net = self.cut(())
            if self.kind == "mosos" and self.given is None and not self.alone:
                for other in work.each(("str-auto", "checkmate-auto")):
                    with work.part(share=RESTRICTED):
                        self.run(other)
            self.proved = self.run(self.kind)
        if self.judge.best is None and kind.copies:
            self.swap_all(kind)

    @property
    def lower_bound(self) -> int:
        """The program's bound, unless the best plan is better than that, by more than the cost of moves; in ns."""
        if not self.proved or self.judge.best is None:
            return self.bound
        moved = 4 * MOVED * float(self.net.nodes.size.sum())  # what the objective has beside time, at most
        return min(int(self.proved), self.makespan) if self.proved <= self.makespan + moved else self.bound

    def missed(self) -> NotReached:
        """Return the lowest load of a plan, or that of the trace as it is, said to be so, and why."""
        otherwise = "a planner that may wait for copies may get lower"
        if self.judge.lowest < self.trace.peak_live_bytes or self.judge.pinned < FAR:
            return self.judge.missed(otherwise)
        why = f"no plan got lower, that is the load of the step as it is: {self.ended}" if self.ended else ""
        hint = "; ".join(filter(None, [why, work.hint(otherwise)]))
        return NotReached(self.trace.peak_live_bytes, self.limit, hint=hint)

    def cut(self, parked: Sequence[Swap], few: int | None = None) -> Stages:
        """Cut the trace into nodes: ops as they are where there are few."""
        few = few or (MOST if work.hurried() else FEWER)
        most = few if self.trace.n > few else None
        return Stages.of(self.trace, self.machine, algorithms=self.menu, most=most, parked=parked)

    def offer(self, kind: Family, plan: Plan) -> int:
        """Judge a plan with its own operators, where it may choose, and with those of free memory."""
        time = self.judge.offer(plan) if kind.operators != AUTO or not self.menu else FAR
        if kind.operators != FIXED and self.menu:
            more = operators(self.trace, self.machine, plan, self.limit, algorithms=self.menu)
            time = min(time, self.judge.offer(more))
        return time

    def run(self, name: str) -> float:
        """Solve the program and judge its plan; return its bound in ns.

        Where no schedule fits, programs of finer nodes are solved. Then more and more of what the program does not
        decide about is swapped beside it; then also outputs that cannot be back in time for an op that takes almost all
        of the limit, so that something waits.
        """
        bound, small = self.solved(name), smallest(self.trace, self.machine, self.menu)
        if bound == inf:
            with work.part(share=FINER_SHARE if FAMILY[name].copies else 1.0):
                bound = self.finer(name)
        crowd = crowded(small, self.limit, room=ROOMS[0])
        for but, room in product((crowd[:0], crowd), ROOMS) if FAMILY[name].copies else ():
            if bound < inf:
                break
            mine = np.setdiff1d(self.net.outputs.idx, but)
            try:
                self.net = self.cut(parking(small, self.machine, mine, self.limit, room=room))
            except work.TimeUp:
                break
            bound = self.solved(name)
        return bound if bound < inf else self.bound

    def finer(self, name: str) -> float:
        """Solve programs of more and more nodes as long as no schedule fits; return the bound of the last."""
        bound = inf
        for few in work.each(FINER if work.hurried() else ()):
            if bound < inf or len(self.net.nodes) >= self.trace.n:
                break
            with suppress(work.TimeUp):
                self.net = self.cut((), few)
                bound = self.solved(name)
        return bound

    def swap_all(self, kind: Family) -> None:
        """Judge plans that swap the largest buffers around whatever op needs too much, and wait for them.

        The first is within the limit wherever that is possible at all, so it is judged however late it is.
        """
        small, lowest = lean(self.trace, self.machine, self.menu), smallest(self.trace, self.machine, self.menu)
        none = np.zeros(0, np.int64)
        for room in (1.0, *ROOMS):
            if room < 1 and work.over():
                return
            swaps = parking(lowest, self.machine, none, self.limit, room=room)
            plan = Plan.of(self.trace, [*swaps, *small.decisions])
            time = self.judge.offer(plan) if kind.operators == AUTO and self.menu else FAR
            if min(time, self.offer(kind, plan)) < FAR:
                return

    def solved(self, name: str) -> float:
        """Solve the program for the nodes as they are and judge its plans; infinite where no schedule fits.

        A rounded solution of the linear program comes first; then, if there is a deadline, a part of the time goes to
        schedules that run nodes again in the backward pass alone, for that program is much smaller.
        """
        if work.over():
            return float(self.bound)
        nodes, rules = self.program(FAMILY[name])
        self.ended = f"there was no time for its program of {len(nodes)} nodes"
        with work.part(share=ROUNDING if len(nodes) <= MOST else ROUNDING_FINER):
            near = rounded(
                nodes, self.limit, rules, lambda schedule: self.offer(FAMILY[name], plan_of(self.net, schedule))
            )
        allowed, bound = self.limit, max(float(self.bound), near.bound)
        self.proved = bound if name == self.kind else 0.0
        if near.schedule is not None:
            self.judged(name, near)
        if work.over():
            return bound
        free = FAMILY[name].operators == FREE
        tree = WORK // len(nodes) ** 2 + 1 if not work.hurried() else None
        if free and work.hurried():
            late = replace(rules, since=self.net.stage(backward_start(self.trace)))
            with work.part(share=BACKWARD):
                near = self.better(name, nodes, late, near)
        for _ in work.each(range(TRIES)):
            best = float(self.makespan if free else FAR)
            found = solve(nodes, allowed, rules, start=near.schedule, best=best, gap=self.gap, tree=tree)
            if allowed == self.limit:
                bound = max(bound, found.bound)
            none = near.schedule is None and found.schedule is None and found.status == INFEASIBLE
            if none and allowed == self.limit:  # not even one that is no better than a known plan, as far as is known
                self.ended = f"no schedule of {len(nodes)} nodes, into which its program cuts the step, fits"
                return inf
            if found.schedule is None or self.judged(name, found) < FAR:
                break
            allowed -= self.limit // 1000
        return bound

    def better(self, name: str, nodes: Nodes, rules: Rules, near: Proved) -> Proved:
        """Return a better schedule than `near`, which stays where none is found, with the same bound."""
        best = float(self.makespan)
        found = solve(nodes, self.limit, rules, start=near.schedule, best=best, gap=self.gap, sure=False)
        if found.schedule is None or found.value >= near.value:
            return near
        self.judged(name, found)
        return replace(found, bound=near.bound)

    def judged(self, name: str, found: Proved) -> int:
        """Judge the plan of a schedule; return its time, `FAR` where it is above the limit."""
        assert found.schedule is not None
        time = self.offer(FAMILY[name], plan_of(self.net, found.schedule))
        told = human_ns(time) if time < FAR else "above the limit"
        least = human_ns(round(max(found.bound, self.bound)))
        work.tell(f"{name}: {told}, at least {least} ({percent(found.gap)}), {found.status}")
        return time

    def program(self, kind: Family) -> tuple[Nodes, Rules]:
        """The nodes and the rules of a kind."""
        nodes, rules = (
            self.net.nodes,
            Rules(copies=kind.copies, plain=True, duplex=self.machine.duplex, waits=self.waits),
        )
        if kind.operators == FREE:
            return nodes, rules
        if kind.operators == FIXED:
            return nodes, replace(rules, by=fastest_that_fit(nodes, self.limit))
        rows = tuple(
            (Implementation("", min(x.time for x in row), min(x.workspace for x in row)),)
            for row in nodes.implementations
        )
        return replace(nodes, implementations=rows), rules


def fastest_that_fit(nodes: Nodes, limit: int) -> I64:
    """Return of each node the fastest implementation with which its stage fits beside what it reads; int64[n].

    >>> from gpumem.trace import Csr
    >>> ways = (Implementation("fast", 1, 9), Implementation("slow", 5))
    >>> none, true = np.zeros(1, np.int64), np.ones(1, np.bool_)
    >>> nodes = Nodes((ways,), Csr.of([[]]), none + 4, none, true, true, none, none)
    >>> fastest_that_fit(nodes, 12), fastest_that_fit(nodes, 13)
    (array([1]), array([0]))
    """
    used = nodes.held + nodes.size + [sum(nodes.size[j] for j in {*row}) for row in nodes.deps.tolist()]
    return np.array([nodes.fitting(t, limit - x) for t, x in enumerate(used.tolist())], np.int64)
