"""The swapping program: which gaps to swap, and from which op to which, by integer programming.

::

    refine (linear)      breakpoints where they matter, and a bound
    the program          whole buffers, the least stall at the limit: a better bound, and a solution
    realise, the clock   the solution as plans; the best one by the clock is the incumbent
    again                with breakpoints where a plan was above the limit; small: told what the solution took
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import FAR, fits
from gpumem.swap.facts.options import check_start, option
from gpumem.swap.fluid import Fluid, PlacedProgram, WholeProgram, in_a_row, refine, relax
from gpumem.swap.fluid.whole import FEWER
from gpumem.swap.incumbent import Incumbent, as_it_is
from gpumem.swap.linear_programs import INFEASIBLE
from gpumem.swap.plan import Plan
from gpumem.swap.plan.gaps import windows
from gpumem.swap.planner import SWAPS, PlannerRecord, Proposal, plan_only, plans
from gpumem.swap.snu.heuristic import heuristic
from gpumem.swap.snu.realise import Away, all_orders, overlapped, ways
from gpumem.trace import F64, I64, Trace

ROUNDS, SIZE = 6, 10_000  # linear programs, and their variables, to find breakpoints
COARSE, COARSEST = 16, 0.01  # breakpoints, and the least size of a gap by the peak load, of the first program
NODES = 50  # of the search tree of a program, where there is no deadline
SMALL = 24  # ops: every instant is a breakpoint up to here
TURNS, FEW = 3_000, 20  # solutions of the exact program that the clock is asked about; without a deadline
SHARE, MOST = 0.3, 0.7  # of the time that is left, at most, for the linear programs; for an integer program
SAFETY = 1e-7  # of an iteration: what the solver's tolerances may hide


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Ilp(PlannerRecord):
    """The planner `solve_ilp`, which says what its options are."""

    start: Plan | None = None
    bound: int = option(0)
    gap: float = option(0.0)
    proves: ClassVar[bool] = True
    reports: ClassVar[bool] = True

    @property
    def starts_from(self) -> str:
        """Plans of swaps, which the program is about."""
        return SWAPS


@plans(Ilp)
def solve_ilp(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    start: Plan | None = None,
    bound: int = 0,
    gap: float = 0.0,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Proposal:
    """Plan swaps by the integer program of swapping, and say how far from the best the plan may be.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    start : Plan, optional
        A plan of swaps to begin with. Default: the thesis' heuristic.
    bound : int
        Nanoseconds: a certified least time of an iteration (by `gpumem.swap.least_stall`, say).
    gap : float
        How far from the best possible a plan may be, as a fraction of its time.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    progress : callable, optional
        Told the incumbent, the bound and the gap.

    Returns
    -------
    Proposal
        The best plan by the capacity clock, and what no plan of `Swap` decisions can beat.

    Raises
    ------
    ValueError
        A gap outside of [0, 1); a bound below 0; a start that is above the limit, or has decisions that are no swaps.

    Notes
    -----
    The program is that of the certified bound (`swap/fluid`) in whole numbers. For each gap and each breakpoint O is
    the part copied out, I the part still to be copied in, A whether the buffer is away; A <= O, A <= I, a link copies
    for no longer than time passes, and at each breakpoint what is held without swapping, less what is away, is at most
    the limit. Time passes while ops run, and where an op waits, which is what the objective counts. A value is copied
    out once for all its gaps. So the program relaxes the clock: what it proves holds for all plans of swaps whose
    iterations are alike (a plan may take turns between several, see `Timeline.cycle`). `SAFETY` of an iteration is
    taken off for the solver's tolerances.

    The statement in slots, where a copy-in needs its memory from the start of an op on, is stricter than the clock,
    which hands out memory in the middle of an op.

    A solution becomes plans (`realise`), and the clock says how long these take. Breakpoints are added where a plan is
    above the limit. Up to `SMALL` ops every instant is a breakpoint and all orders of copies are looked at, so that the
    solution's time by the clock is known, and the program is told not to propose it for less: it ends with the optimum,
    given the `seconds`; without, after `FEW` solutions. Longer traces have some breakpoints, and end at a gap.

    Gaps that together are below 1/2000 of the peak are taken to leave for nothing; in plans they pay. Nothing is proved
    for several compute streams, and where the host needs time.

    The first program has few breakpoints and no small gaps, since one with all of them rarely ends in time. Its plans
    count, not its bound. Without `seconds` it is the only one, and stops after `NODES` nodes of its tree.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("mlp3"), Machine.named("gtx1080ti")
    >>> limit = trace.peak_live_bytes * 9 // 10
    >>> ilp(trace, machine, limit, gap=0.05) == solve_ilp(trace, machine, limit, gap=0.05).plan
    True

    References
    ----------
    J. Lee's thesis, Seoul National University: the ILP schedule. Its text is lost; the statement is ours.
    """
    check_start(start, trace, machine, limit)
    if start is not None and len(start.swaps) < len(start.decisions):
        raise ValueError("start: the program is about swaps alone, and so is what it proves")
    if fits(trace, limit):
        return as_it_is(trace, machine, limit)
    found = _Search(trace, machine, limit, gap, max(bound, simulate(trace, machine).makespan))
    found.begin(start)
    with found.noted():
        found.run()
    return found.proposal()


ilp = plan_only(solve_ilp)


@dataclass(slots=True, eq=False)
class _Search(Incumbent):
    """The program, the plans that came of it, and what is proved so far."""

    base: int = field(init=False)  # ns of an iteration without stalls
    left: bool = field(default=True, init=False)  # whether anything is left to try

    def __post_init__(self) -> None:
        Incumbent.__post_init__(self)
        self.base = simulate(self.trace, self.machine).makespan

    def begin(self, start: Plan | None) -> None:
        """Begin with a plan that there is, that of the heuristic if nobody has one."""
        if start is None:
            with suppress(NotReached), work.part(share=SHARE):
                start = heuristic(self.trace, self.machine, self.limit)
        Incumbent.begin(self, start)

    @property
    def stall(self) -> int:
        """Nanoseconds that the incumbent adds to an iteration; `FAR` without one."""
        return FAR if self.judge.line is None else self.makespan - self.base

    def run(self) -> None:
        """Find breakpoints, then solve the program until nothing is left to gain, or no time."""
        if self.done:
            return
        sure = in_a_row(self.trace, self.machine) and not self.trace.ops.blocking.any()
        if self.trace.n <= SMALL:
            self.exactly(relax(self.trace, self.machine, stalls=True, tiny=0.0), sure)
            return
        f = relax(self.trace, self.machine, stalls=True)
        with work.part(share=SHARE):
            found = refine(f, self.trace.peak_live_bytes, self.limit, ROUNDS, SIZE)
        self.raise_bound(found.dual, sure)
        breaks = found.breaks
        few = np.unique(breaks // 2 * 2)
        few = few[np.linspace(0, len(few) - 1, min(COARSE, len(few))).round().astype(np.int64)]
        with work.part(share=SHARE):
            self.round(f.where(f.w.size >= COARSEST * self.trace.peak_live_bytes), few, sure=False)
        for _ in range(ROUNDS if work.hurried() else 0):
            if self.done or work.over() or not self.left:
                break
            with work.part(share=MOST):
                more = self.round(f, breaks, sure=sure)
            breaks = np.union1d(breaks, more)

    def raise_bound(self, stall: float, sure: bool) -> None:
        """Note that no plan stalls for less, but for the solver's tolerances."""
        if sure and stall > -np.inf:
            sure_of = ceil(min(stall, self.stall) - SAFETY * self.base - 2 * FEWER)
            self.bound = max(self.bound, self.base + sure_of)
        work.tell(self.told)

    def round(self, f: Fluid, breaks: I64, *, sure: bool) -> I64:
        """Solve the program once; return instants to look at the next time."""
        program = WholeProgram(f, breaks, self.trace.peak_live_bytes, self.limit, self.host)
        x = self.solve(program, sure)
        self.left = x is not None
        return breaks[:0] if x is None else self.large(Away.of(f, breaks, *program.gone_at(x)))

    @property
    def host(self) -> I64 | None:
        """Bytes that the host has room for at each op; None where it has room for all that can be swapped."""
        room = self.machine.pinned - self.trace.live_bytes(host=True)
        return room if room.min() < self.trace.buffers.size.sum() else None

    def most(self, program: WholeProgram) -> float:
        """No solution need stall for longer, in ns: all copies one after the other."""
        w = program.f.w
        return float(w.out_ns.sum() + w.in_ns.sum()) + self.base

    def solve(self, program: WholeProgram, sure: bool) -> F64 | None:
        """Solve the program for what is better than the incumbent, if there is such a solution; note what is proved."""
        best = min(self.stall - max(self.gap * (self.base + self.stall), 0.5), self.most(program))
        nodes = None if work.hurried() else NODES
        found = program.rows.solve(best=best, gap=self.gap, nodes=nodes, sure=sure)
        self.raise_bound(best if found.status == INFEASIBLE else found.bound, sure)
        return found.x

    def exactly(self, f: Fluid, sure: bool) -> None:
        """Solve the program that says what a plan says; look at every order of copies, and tell it what that takes."""
        program = PlacedProgram(f, self.trace.peak_live_bytes, self.limit, self.trace.live_bytes(), self.host)
        for _ in range((TURNS if work.hurried() else FEW) if sure else COARSE):
            if self.done or work.over() or not self.left:
                break
            x = self.solve(program, sure)
            if x is None:
                break
            said = program.said(x)
            plans, self.left = all_orders(f.w.where(said[0]), said[1], said[2], f.n, self.machine.duplex)
            times = [self.judge.offer(Plan.of(self.trace, swaps)) for swaps in work.each(plans)]
            if work.over():  # some orders may be left, so nothing is known of what this takes
                break
            program.forbid(*said, min(min(times) - self.base, 2 * self.most(program)))

    def large(self, away: Away) -> I64:
        """Look at some ways to carry the solution out; return the instants where these are above the limit."""
        load, before = away.live_bytes(self.trace, self.limit).load, self.stall
        over, others = np.flatnonzero(load > self.limit), windows(self.trace, self.machine)
        away = away.also(self.trace, self.limit, others).needed(self.trace, self.limit)
        for swaps in (overlapped(self.trace, self.machine, self.limit, away), *ways(self.trace, self.limit, away)):
            self.judge.offer(Plan.of(self.trace, swaps))
        work.tell(self.told)
        worst = over[np.argsort(-load[over], kind="stable")][:8]
        self.left = len(worst) > 0 or self.stall < before
        return np.unique(np.concatenate([2 * worst, 2 * worst + 1]))
