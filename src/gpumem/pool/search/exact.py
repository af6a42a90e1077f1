"""The lowest placement with a proof, or how far from it the proof got."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.pool.search._depth_first import IN_ORDER, SOLVED
from gpumem.pool.search._descents import Descents
from gpumem.pool.search._parts import FULL_AREA_LENGTH
from gpumem.pool.search._problem import PlacementProblem
from gpumem.pool.search.planner import run
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

# Each search of a proof may take a tenth of the effort: where one does not end, a lower height is refuted instead. Not
# tuned.
PROOFS = 10
# Parts of the buffers, the largest of them: if these do not fit none of the placements of all does, and fewer are
# searched through sooner. Not tuned.
SUBSETS = (1 / 8, 1 / 4, 1 / 2, 1)


@strict
@work.budgeted
def exact(
    trace: Trace,
    *,
    alignment: int = 256,
    effort: float = 1.0,
    seconds: float | None = None,
    seed: int = 0,
    fixed: Mapping[int, int] | None = None,
    progress: work.Progress | None = None,
) -> Placement:
    """Place buffers as low as can be, and prove it as far as the effort goes.

    Options and errors are those of `search`. No placement is below `bound`; it is `optimal` where both meet.

    Notes
    -----
    It begins with `search`, so without `seconds` it is never worse than that, and spends as much effort again on the
    proof. The proof is an exhausted search for a lower placement, of
    the largest buffers first: if these cannot be placed, all cannot. Where that takes too much, lower heights are
    refuted instead, which is easier. Exponential at worst; up to 20 buffers or so are always placed optimally, and most
    real traces are since their peak live bytes are reached.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([2, 1, 2, 1, 2], [0, 0, 2, 3, 4], [3, 2, 5, 4, 6], n=6)
    >>> placed = exact(trace, alignment=1)
    >>> trace.peak_live_bytes, placed.height, placed.bound, placed.optimal
    (4, 4, 4, True)
    """
    state = Descents.of(PlacementProblem.of(trace, alignment, fixed), 0, effort, seed)
    run(state, state.goal(0), seed)
    state.work = share = effort * state.unit
    goal = state.best.height - 1
    while state.best.height > state.lower_bound and state.work > 0 and not work.over():
        before = state.best.height, state.lower_bound
        _refute(state, goal, share / PROOFS)
        work.tell(f"between {state.lower_bound} and {state.best.height} bytes")
        if before != (state.best.height, state.lower_bound):
            goal = state.best.height - 1
        elif goal > state.lower_bound:
            goal = (state.lower_bound + goal) // 2
        else:
            break
    return state.result()


def _refute(state: Descents, goal: int, share: float) -> None:
    """Find a placement no higher than `goal`, or prove that there is none, or give up."""
    free = state.problem.free
    for part in SUBSETS:
        ids = np.sort(free[: int(np.ceil(part * len(free)))])
        variant, most = (FULL_AREA_LENGTH, IN_ORDER), min(share, state.work)
        status = state.pack(ids, goal, variant, np.ones(len(ids)), steps=2**62, most=most)
        if status != SOLVED or state.best.height <= goal:
            return
