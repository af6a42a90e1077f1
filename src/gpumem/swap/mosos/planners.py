"""The planners of MO-SOS: the program itself, and the two that it restricts, Checkmate and STR.

::

    trace -> Stages -> program -> schedule -> plan -> simulation
                    MO-SOS: copies, recomputation, operators    Checkmate: recomputation    STR: copies, recomputation
                    "-Auto": planned without workspaces, then operators by free memory
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from gpumem.base import work
from gpumem.base.arguments import strict_fields
from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.operators import Menu, menu_of, smallest
from gpumem.swap.facts.options import check_ops, check_start, option
from gpumem.swap.incumbent import as_it_is
from gpumem.swap.mosos.work import FAMILY, FamilyRun
from gpumem.swap.plan import Plan
from gpumem.swap.planner import PLANS, PlannerRecord, Proposal, plan_only, plans
from gpumem.trace import Trace

# How far above the best possible time a schedule may be, as a fraction of it. Not tuned.
GAP = 0.002


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Mosos(PlannerRecord):
    """The planner `solve_mosos`, which says what its options are."""

    kind: str = option("mosos", FAMILY)
    start: Plan | None = None
    bound: int = option(0)
    gap: float = option(GAP)
    algorithms: Menu | None = None
    waits: bool = False
    alone: bool = False
    proves: ClassVar[bool] = True
    reports: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.kind

    @property
    def starts_from(self) -> str:
        """Any plan; the restrictions stand for what their papers allow, and begin alone."""
        return PLANS if self.kind == "mosos" else ""


@plans(Mosos)
def solve_mosos(  # noqa: PLR0913  public: a planner's options are its keywords
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    kind: str = "mosos",
    start: Plan | None = None,
    bound: int = 0,
    gap: float = GAP,
    algorithms: Menu | None = None,
    waits: bool = False,
    alone: bool = False,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Proposal:
    """Plan by the program of MO-SOS, or by a restriction of it, and say how far from the best the plan may be.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    kind : str
        `mosos`: the program decides about copies, recomputation and operators. `checkmate`, `str`: recomputation only,
        or copies as well; each op runs by the fastest operator that fits beside what it must hold. `checkmate-auto`,
        `str-auto`: planned without workspaces, then each op, and each recomputation, takes the fastest operator that
        fits into the memory left free.
    start : Plan, optional
        A plan to begin with. Left out, MO-SOS begins with those of STR-Auto and Checkmate-Auto, unless `alone`.
    bound : int
        Nanoseconds: a certified least time of an iteration.
    gap : float
        How far from the best possible a schedule may be, as a fraction of its time.
    algorithms : mapping, optional
        Of an op's position, its variants; left out, those of `gpumem.simulator.workspaces`.
    waits : bool
        Whether stages may wait for copies; the paper's schedules have no copy that would keep a stage waiting.
    alone : bool
        Whether MO-SOS begins with nothing, so that its plan is its own program's.
    seconds : float, optional
        The whole time; see `gpumem.swap`.
    progress : callable, optional
        Told the best time, the bound and the gap.

    Returns
    -------
    Proposal
        The best plan by the byte-counting simulation. `lower_bound` is the program's: of all schedules for these nodes,
        whose copies never keep an op waiting. Where a simulated plan is faster than that, as copies may overlap more
        than the program assumes, it is the time of all ops by their fastest variants, or the `bound` that was given.

    Notes
    -----
    A trace is cut into 50 nodes at most, without `seconds` into 24; see `Stages`. The program's schedules are `plain`,
    those that a plan can say.
    Without `seconds` the solver's search tree is small as well (`WORK`), so the work is the same on every machine.
    The last step is not the paper's: whatever the program chose, operators are chosen once more by free memory,
    and the better of the two is kept. It begins with a choice of operators that moves nothing. Where no schedule fits,
    buffers that the program does not decide about are swapped as well (`parking`), which the paper does not do, then
    outputs around ops that need almost all of the limit (`crowded`); the bound is that beside those swaps. And
    where that does not help either, or there is no time, the plan swaps the largest buffers, whatever it waits. So a
    planner that copies ends with a plan wherever the pinned budget holds what is swapped so. An interrupt carries what
    is known by then as a note.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], [1], [0, 2]], [[0], [1], [2], []], duration=[9, 5, 5, 9], name=["zeros"] * 4)
    >>> trace = Trace(Buffers.make([40, 30, 30], range(3), [4, 3, 4]), ops)
    >>> mosos(trace, Machine.named("p40"), 80).decisions
    (Recompute(buffer=0, after=1, before=3, at=3),)

    References
    ----------
    Wei et al. 2024, MO-SOS. Jain et al. 2020, Checkmate.
    """
    check_start(start, trace, machine, limit)
    check_ops(algorithms or (), trace)
    menu = menu_of(trace, machine) if algorithms is None else algorithms
    if trace.peak_live_bytes <= limit:
        return as_it_is(trace, machine, limit)
    fits(smallest(trace, machine, menu), limit)
    if start is None and work.over():
        raise NotReached(trace.peak_live_bytes, limit, hint=work.LATE)
    run = FamilyRun(
        trace,
        machine,
        limit,
        gap=gap,
        bound=max(bound, _compute_ns(trace, machine, menu)),
        kind=kind,
        menu=menu,
        waits=waits,
        alone=alone,
    )
    run.begin(start)
    with run.noted():
        run.all()
    return run.proposal()


mosos = plan_only(solve_mosos)
checkmate, checkmate_auto = partial(mosos, kind="checkmate"), partial(mosos, kind="checkmate-auto")
str_, str_auto = partial(mosos, kind="str"), partial(mosos, kind="str-auto")


def _compute_ns(trace: Trace, machine: Machine, menu: Menu) -> int:
    """The time of all ops by their fastest variants, where they run one after the other; else 0."""
    if len(set(trace.ops.stream[~trace.ops.copies].tolist())) > 1:
        return 0
    duration = machine.durations(trace)
    for op, variants in menu.items():
        duration[op] = min(duration[op], *(variant.duration for variant in variants))
    return int(duration[~trace.ops.copies].sum())
