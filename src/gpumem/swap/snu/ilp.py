"""The swapping program: which gaps to swap, and from which op to which, by integer programming.

::

    refine (linear)      breakpoints where they matter, and a bound
    the program          whole buffers, the least stall at the limit: a better bound, and a solution
    realise, simulate    the solution as plans; the one with the shortest simulated iteration is the incumbent
    repeat               with breakpoints where a plan was above the limit; small traces: the solution is cut off
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
from gpumem.swap.snu.realise import SwappedGaps, all_orders, overlapped, variants
from gpumem.trace import F64, I64, Trace

# None of these is tuned; docs/papers/snu.md has what they reach.

# Linear programs to find breakpoints, and their variables at most.
ROUNDS, SIZE = 6, 10_000
# The first integer program: its breakpoints, and the least size of a gap as a share of the peak.
COARSE, COARSEST = 16, 0.01
# Nodes of the search tree of a program, where there is no deadline.
NODES = 50
# Ops up to which every instant is a breakpoint, and every order of copies is simulated.
SMALL = 24
# Solutions of the exact program that are simulated: with a deadline, and without one.
SOLUTIONS, FEW_SOLUTIONS = 3_000, 20
# Shares of the time that is left, at most: of the linear programs, of an integer program.
SHARE, MOST = 0.3, 0.7
# Ops that a plan exceeds the limit by most, whose instants become breakpoints.
WORST = 8
# Of an iteration: what the solver's tolerances may hide.
SAFETY = 1e-7
# Simulated times are whole ns, so that a solution that is better by less than this is none.
HALF_NS = 0.5


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Ilp(PlannerRecord):
    """The planner `solve_ilp` and its options."""

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
        Called with the incumbent, the bound and the gap.

    Returns
    -------
    Proposal
        The best plan in the byte-counting simulation, and what no plan of `Swap` decisions can beat.

    Raises
    ------
    ValueError
        A gap outside of [0, 1); a bound below 0; a start that is above the limit, or has decisions that are no swaps.

    Notes
    -----
    The program is that of the certified bound (`swap/fluid`) in whole numbers. For each gap and each breakpoint O
    is the part copied out, I the part still to be copied in, A whether the buffer is off the device; A <= O, A <=
    I, a link copies for no longer than time passes, and at each breakpoint the live bytes without swapping, less
    those off the device, are at most the limit. Time passes while ops run, and where an op waits, which is what the
    objective counts. A value is copied out once for all its gaps. So the program relaxes the simulation: what it
    proves holds for all plans of swaps whose iterations are alike (a plan may alternate between several, see
    `Timeline.cycle`). `SAFETY` of an iteration is taken off for the solver's tolerances.

    The statement in slots, where a copy-in needs its memory from the start of an op on, is stricter than the
    simulation, which allocates memory in the middle of an op.

    A solution becomes plans (`realise`), which are simulated. Breakpoints are added where a plan is above the limit. Up
    to `SMALL` ops every instant is a breakpoint and all orders of copies are simulated, so that the solution's time is
    known, and a constraint forbids it for less: the search ends with the optimum, given the `seconds`; without, after
    `FEW_SOLUTIONS` solutions. Longer traces have some breakpoints, and end at a gap.

    Gaps that together are below 1/2000 of the peak are assumed to be swapped at no cost; in plans they pay. Nothing is
    proved for several compute streams, and where the host needs time.

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
    search = _Search(trace, machine, limit, gap, bound=max(bound, simulate(trace, machine).makespan))
    search.begin(start)
    with search.noted():
        search.run()
    return search.proposal()


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
        """Begin with a plan, that of the heuristic if none is given."""
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
        # With several streams or blocking ops the program is no relaxation, so that it proves nothing.
        proves = in_a_row(self.trace, self.machine) and not self.trace.ops.blocking.any()
        if self.trace.n <= SMALL:
            self.solve_exactly(relax(self.trace, self.machine, stalls=True, tiny=0.0), proves)
            return
        fluid = relax(self.trace, self.machine, stalls=True)
        with work.part(share=SHARE):
            refined = refine(fluid, self.trace.peak_live_bytes, self.limit, ROUNDS, SIZE)
        self.raise_bound(refined.dual, proves)
        breaks = refined.breaks
        few = np.unique(breaks // 2 * 2)
        few = few[np.linspace(0, len(few) - 1, min(COARSE, len(few))).round().astype(np.int64)]
        with work.part(share=SHARE):
            self.solve_once(fluid.where(fluid.w.size >= COARSEST * self.trace.peak_live_bytes), few, proves=False)
        for _ in range(ROUNDS if work.hurried() else 0):
            if self.done or work.over() or not self.left:
                break
            with work.part(share=MOST):
                more = self.solve_once(fluid, breaks, proves=proves)
            breaks = np.union1d(breaks, more)

    def raise_bound(self, stall: float, proves: bool) -> None:
        """Note that no plan stalls for less, but for the solver's tolerances."""
        if proves and stall > -np.inf:
            proved = ceil(min(stall, self.stall) - SAFETY * self.base - 2 * FEWER)
            self.bound = max(self.bound, self.base + proved)
        work.tell(self.summary)

    def solve_once(self, fluid: Fluid, breaks: I64, *, proves: bool) -> I64:
        """Solve the program once; return instants to add to its breakpoints."""
        program = WholeProgram(fluid, breaks, self.trace.peak_live_bytes, self.limit, self.host)
        solution = self.solve(program, proves)
        self.left = solution is not None
        if solution is None:
            return breaks[:0]
        return self.realise(SwappedGaps.of(fluid, breaks, *program.swapped_gaps(solution)))

    @property
    def host(self) -> I64 | None:
        """Free bytes of the pinned budget at each op; None where they suffice for all that can be swapped."""
        free = self.machine.pinned - self.trace.live_bytes(host=True)
        return free if free.min() < self.trace.buffers.size.sum() else None

    def longest(self, program: WholeProgram) -> float:
        """No solution need stall for longer, in ns: all copies one after the other."""
        gaps = program.f.w
        return float(gaps.out_ns.sum() + gaps.in_ns.sum()) + self.base

    def solve(self, program: WholeProgram, proves: bool) -> F64 | None:
        """Solve the program for what is better than the incumbent, if there is such a solution; note what is proved."""
        best = min(self.stall - max(self.gap * (self.base + self.stall), HALF_NS), self.longest(program))
        nodes = None if work.hurried() else NODES
        result = program.rows.solve(best=best, gap=self.gap, nodes=nodes, sure=proves)
        self.raise_bound(best if result.status == INFEASIBLE else result.bound, proves)
        return result.x

    def solve_exactly(self, fluid: Fluid, proves: bool) -> None:
        """Solve the program of whole plans; simulate every order of a solution's copies, then cut it off.

        The cut says what the solution takes at least, its best simulated time: nothing is lost, since the plan that
        takes it is known.
        """
        program = PlacedProgram(fluid, self.trace.peak_live_bytes, self.limit, self.trace.live_bytes(), self.host)
        for _ in range((SOLUTIONS if work.hurried() else FEW_SOLUTIONS) if proves else COARSE):
            if self.done or work.over() or not self.left:
                break
            solution = self.solve(program, proves)
            if solution is None:
                break
            gap, release, fetch = decisions = program.decisions_of(solution)
            spans, duplex = fluid.w.where(gap), self.machine.duplex
            plans, self.left = all_orders(spans, release, fetch, n=fluid.n, duplex=duplex)
            times = [self.judge.offer(Plan.of(self.trace, swaps)) for swaps in work.each(plans)]
            if work.over():  # some orders may be left, so that the solution's time is not known
                break
            program.forbid(*decisions, min(min(times) - self.base, 2 * self.longest(program)))

    def realise(self, swapped: SwappedGaps) -> I64:
        """Simulate variants of a solution; return the instants where the solution exceeds the limit most."""
        load, before = swapped.live_bytes(self.trace, self.limit).load, self.stall
        over, others = np.flatnonzero(load > self.limit), windows(self.trace, self.machine)
        swapped = swapped.add_needed(self.trace, self.limit, others).drop_needless(self.trace, self.limit)
        by_heuristic = overlapped(self.trace, self.machine, self.limit, swapped)
        for swaps in (by_heuristic, *variants(self.trace, self.limit, swapped)):
            self.judge.offer(Plan.of(self.trace, swaps))
        work.tell(self.summary)
        worst = over[np.argsort(-load[over], kind="stable")][:WORST]
        self.left = len(worst) > 0 or self.stall < before
        return np.unique(np.concatenate([2 * worst, 2 * worst + 1]))
