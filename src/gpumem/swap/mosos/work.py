"""The steps of a planner of MO-SOS' family: cut, round, solve, judge; where nothing fits, with more buffers parked.

::

    cut -> round -> solve -> judge        the nodes of the paper
             | no schedule fits
             v
    finer nodes (with a deadline), then parked buffers: three shares of the limit, without and with crowded outputs
             | none of these fits
             v
    swap the largest buffers around every tight op, whatever waits for them
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

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

# How many nodes the program is solved for: 50 is what `StageProgram` is solvable for with a deadline. Not tuned.
MOST_NODES = 50
# Without a deadline: the program grows with the square of the nodes, and nothing but the tree's size ends it. Not
# tuned.
MOST_NODES_UNHURRIED = 24
# Where no schedule fits: a coarse node is recomputed as a whole or not at all, and most cannot be (of 50 of
# ResNet50 eight). VGG16 at 0.55 on a P40: 99.4 ms before finer nodes and polished roundings, 72.1 ms since
# (docs/papers/mosos.md). With a deadline only: the program grows with the square of the nodes. Not tuned.
FINER = (100, 150, 200)
# Share of the time for finer nodes, at most, where parking can help as well. Not tuned.
FINER_SHARE = 0.7
# Share of the time then left for each of the two restrictions that MO-SOS begins with: if both use it up, 56 % of all
# is left for its own program. Not tuned.
RESTRICTED = 0.25
# Share of the time, at most, for the linear program and its rounding. Not tuned.
ROUNDING = 0.3
# The same for finer nodes: their integer program rarely finds more than its rounding does. Not tuned.
ROUNDING_FINER = 0.8
# Share of the time left after the rounding for recomputation in the backward pass alone. Not tuned.
BACKWARD = 0.5
# Nodes of the solver's search tree, divided by n^2 for n nodes of the net, where there is no deadline: an amount of
# work that is the same on every machine. Not tuned.
TREE_WORK = 10_000
# Programs, each for a thousandth of the limit less: coarse nodes hide bytes that the rewritten trace holds. Not tuned.
ATTEMPTS = 3
# Shares of the limit that ops may need beside outputs they do not use, where no schedule fits otherwise: the first that
# leads to a schedule is taken, as each parks more buffers than the one before. Not tuned.
PARKING_SHARES = (0.97, 0.9, 0.8)
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


class ProgramOutcome(NamedTuple):
    """What is known once a program was solved: `bound`, ns that no schedule of its nodes is below; whether one `fits`.

    `fits` is False only where the solver proved that no schedule keeps to the limit; where it was late, one may.
    """

    bound: float
    fits: bool = True


@dataclass(slots=True)
class FamilyRun(Incumbent):
    """One run of a planner of this family: its best plan and bound so far, and the nodes of its programs."""

    kind: str  # the planner's name in `FAMILY`
    menu: Menu
    waits: bool  # whether stages may wait for copies
    alone: bool  # whether it begins with nothing
    net: Stages = field(init=False)
    proved: float = field(default=0.0, init=False)  # ns: the bound of the program that was solved last, 0 at first
    ended: str = field(default="", init=False)  # what became of the last program without a schedule

    def all(self) -> None:
        """Judge the plans of the programs; where none is found, those that swap the largest buffers."""
        kind = FAMILY[self.kind]
        if self.menu:  # else what moves nothing is above the limit
            self.offer(kind, Plan.of(self.trace))
        with suppress(work.TimeUp):
            self.net = self.cut(())
            if self.kind == "mosos" and self.given is None and not self.alone:
                for other in work.each(("str-auto", "checkmate-auto")):
                    with work.part(share=RESTRICTED):
                        self.run(other)
            self.proved = self.run(self.kind).bound
        if self.judge.best is None and kind.copies:
            self.swap_all(kind)

    @property
    def lower_bound(self) -> int:
        """The program's bound, ns; the given one where the best plan is faster by more than the cost of moves.

        Copies of a plan may overlap more than the program's do: then the program's bound does not hold for plans.
        """
        if not self.proved or self.judge.best is None:
            return self.bound
        # What the objective has beside time, taken to be at most four copies of each output. Not tuned.
        moved = 4 * MOVED * float(self.net.nodes.size.sum())
        return min(int(self.proved), self.makespan) if self.proved <= self.makespan + moved else self.bound

    def missed(self) -> NotReached:
        """Return the error with the lowest peak of a plan, or that of the trace as it is, and the reason."""
        otherwise = "a planner that may wait for copies may get lower"
        if self.judge.lowest < self.trace.peak_live_bytes or self.judge.pinned < FAR:
            return self.judge.missed(otherwise)
        why = f"no plan got lower, that is the peak of the step as it is: {self.ended}" if self.ended else ""
        hint = "; ".join(filter(None, [why, work.hint(otherwise)]))
        return NotReached(self.trace.peak_live_bytes, self.limit, hint=hint)

    def cut(self, parked: Sequence[Swap], target: int | None = None) -> Stages:
        """Cut the trace into `target` nodes at most; ops stay nodes of their own where there are no more of them."""
        target = target or (MOST_NODES if work.hurried() else MOST_NODES_UNHURRIED)
        most = target if self.trace.n > target else None
        return Stages.of(self.trace, self.machine, algorithms=self.menu, most=most, parked=parked)

    def offer(self, kind: Family, plan: Plan) -> int:
        """Judge a plan with its own operators, where it may choose, and with those of free memory."""
        time = self.judge.offer(plan) if kind.operators != AUTO or not self.menu else FAR
        if kind.operators != FIXED and self.menu:
            faster = operators(self.trace, self.machine, plan, self.limit, algorithms=self.menu)
            time = min(time, self.judge.offer(faster))
        return time

    def run(self, name: str) -> ProgramOutcome:
        """Solve the program of planner `name` and judge its plan; the given bound where no schedule fits.

        Where no schedule fits, programs of finer nodes are solved. Then more and more of what the program does not
        decide about is swapped beside it; then also outputs that cannot be back in time for an op that takes almost all
        of the limit, so that something waits.
        """
        outcome, small = self.solved(name), smallest(self.trace, self.machine, self.menu)
        if not outcome.fits:
            with work.part(share=FINER_SHARE if FAMILY[name].copies else 1.0):
                outcome = self.finer(name, outcome)
        crowd = crowded(small, self.limit, share=PARKING_SHARES[0])
        none = crowd[:0]
        for undecided, share in product((none, crowd), PARKING_SHARES) if FAMILY[name].copies else ():
            if outcome.fits:
                break
            decided = np.setdiff1d(self.net.outputs.idx, undecided)
            try:
                self.net = self.cut(parking(small, self.machine, decided, self.limit, share=share))
            except work.TimeUp:
                break
            outcome = self.solved(name)
        return outcome if outcome.fits else ProgramOutcome(self.bound, fits=False)

    def finer(self, name: str, coarse: ProgramOutcome) -> ProgramOutcome:
        """Solve programs of more and more nodes until a schedule fits; return the outcome of the last one."""
        outcome = coarse
        for target in work.each(FINER if work.hurried() else ()):
            if outcome.fits or len(self.net.nodes) >= self.trace.n:
                break
            with suppress(work.TimeUp):
                self.net = self.cut((), target)
                outcome = self.solved(name)
        return outcome

    def swap_all(self, kind: Family) -> None:
        """Judge plans that swap the largest buffers around whatever op needs too much, and wait for them.

        The first is within the limit wherever that is possible at all, so it is judged however late it is.
        """
        small, lowest = lean(self.trace, self.machine, self.menu), smallest(self.trace, self.machine, self.menu)
        none = np.zeros(0, np.int64)
        for share in (1.0, *PARKING_SHARES):
            if share < 1 and work.over():
                return
            swaps = parking(lowest, self.machine, none, self.limit, share=share)
            plan = Plan.of(self.trace, [*swaps, *small.decisions])
            time = self.judge.offer(plan) if kind.operators == AUTO and self.menu else FAR
            if min(time, self.offer(kind, plan)) < FAR:
                return

    def solved(self, name: str) -> ProgramOutcome:
        """Solve the program for the nodes as they are, and judge its plans.

        A rounded solution of the linear program comes first; then, if there is a deadline, a part of the time goes to
        schedules that recompute nodes in the backward pass alone, for that program is much smaller.
        """
        if work.over():
            return ProgramOutcome(float(self.bound))
        nodes, rules = self.program(FAMILY[name])
        self.ended = f"there was no time for its program of {len(nodes)} nodes"
        with work.part(share=ROUNDING if len(nodes) <= MOST_NODES else ROUNDING_FINER):
            near = rounded(
                nodes, self.limit, rules, lambda schedule: self.offer(FAMILY[name], plan_of(self.net, schedule))
            )
        allowed, bound = self.limit, max(float(self.bound), near.bound)
        self.proved = bound if name == self.kind else 0.0
        if near.schedule is not None:
            self.judged(name, near)
        if work.over():
            return ProgramOutcome(bound)
        free = FAMILY[name].operators == FREE
        tree = TREE_WORK // len(nodes) ** 2 + 1 if not work.hurried() else None
        if free and work.hurried():
            backward_only = replace(rules, since=self.net.stage(backward_start(self.trace)))
            with work.part(share=BACKWARD):
                near = self.better(name, nodes, backward_only, near)
        for _ in work.each(range(ATTEMPTS)):
            # A plan's time cuts the search off only where the program chooses the operators: else its objective may be
            # far from the times of its plans.
            best = float(self.makespan if free else FAR)
            solution = solve(nodes, allowed, rules, start=near.schedule, best=best, gap=self.gap, tree=tree)
            if allowed == self.limit:  # what is proved within less memory is no bound for the limit
                bound = max(bound, solution.bound)
            none_fits = near.schedule is None and solution.schedule is None and solution.status == INFEASIBLE
            if none_fits and allowed == self.limit:
                self.ended = f"no schedule of {len(nodes)} nodes, into which its program cuts the step, fits"
                return ProgramOutcome(bound, fits=False)
            if solution.schedule is None or self.judged(name, solution) < FAR:
                break
            allowed -= self.limit // 1000
        return ProgramOutcome(bound)

    def better(self, name: str, nodes: Nodes, rules: Rules, near: Proved) -> Proved:
        """Return a better schedule than `near`, which stays where none is found, with the same bound."""
        best = float(self.makespan)
        solution = solve(nodes, self.limit, rules, start=near.schedule, best=best, gap=self.gap, sure=False)
        if solution.schedule is None or solution.value >= near.value:
            return near
        self.judged(name, solution)
        return replace(solution, bound=near.bound)

    def judged(self, name: str, solution: Proved) -> int:
        """Judge the plan of a schedule; return its time, `FAR` where it is above the limit."""
        assert solution.schedule is not None
        time = self.offer(FAMILY[name], plan_of(self.net, solution.schedule))
        outcome = human_ns(time) if time < FAR else "above the limit"
        least = human_ns(round(max(solution.bound, self.bound)))
        work.tell(f"{name}: {outcome}, at least {least} ({percent(solution.gap)}), {solution.status}")
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
            (
                Implementation(
                    "", min(variant.time for variant in variants), min(variant.workspace for variant in variants)
                ),
            )
            for variants in nodes.implementations
        )
        return replace(nodes, implementations=rows), rules


def fastest_that_fit(nodes: Nodes, limit: int) -> I64:
    """Return of each node the fastest implementation with which its stage fits beside what it reads; int64[n].

    >>> from gpumem.trace import Csr
    >>> variants = (Implementation("fast", 1, 9), Implementation("slow", 5))
    >>> none, true = np.zeros(1, np.int64), np.ones(1, np.bool_)
    >>> nodes = Nodes((variants,), Csr.of([[]]), none + 4, none, true, true, none, none)
    >>> fastest_that_fit(nodes, 12), fastest_that_fit(nodes, 13)
    (array([1]), array([0]))
    """
    used_by_node = nodes.held + nodes.size + [sum(nodes.size[dep] for dep in {*deps}) for deps in nodes.deps.tolist()]
    return np.array(
        [nodes.fitting(node, limit - used_bytes) for node, used_bytes in enumerate(used_by_node.tolist())], np.int64
    )
