"""Certified lower bounds: what no swap plan can beat.

Swapping is relaxed to fluid copies (`fluid`), a linear program finds the best of those (`program`), and the value
of its dual certifies that nothing is better. Breakpoints are added where they matter until they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.display import Facts, Shown
from gpumem.base.errors import Infeasible
from gpumem.base.units import human, human_ns, percent
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.limits import floor as static_floor
from gpumem.swap.fluid import Refined, in_a_row, refine, relax
from gpumem.trace import Trace
from gpumem.trace.lifetimes import touched

# Relative: what is taken off the dual, far above the rounding of its sums in float64 (1e-16 a term).
SAFETY = 1e-9
# A program with more variables is the last. Not tuned: HiGHS solves 30,000 of them in 3 s, see `zero_stall_limit`.
SIZE = 40_000


@dataclass(frozen=True, slots=True, repr=False)
class Bound(Shown):
    """What no swap plan for a trace can beat on a machine.

    Parameters
    ----------
    limit, stall_ns : int
        Bytes and nanoseconds: a plan with a limit of live bytes below `limit` makes an iteration longer by more than
        `stall_ns`; a plan for `limit` makes it longer by `stall_ns` at least.
    peak_live_bytes : int
        Bytes, without swapping.
    breakpoints : int
        How many the last program had; 0 where the bound is static: what some op holds whatever is swapped.
    has_converged : bool
        Whether finer breakpoints had stopped to change the bound. If not, it is valid but may be loose.
    """

    limit: int
    stall_ns: int
    peak_live_bytes: int
    breakpoints: int
    has_converged: bool

    def _facts(self) -> Facts:
        part = self.limit / self.peak_live_bytes if self.peak_live_bytes else 0.0
        facts = {
            "limit": f"{human(self.limit)} ({percent(part)} of the peak live bytes)",
            "stall": human_ns(self.stall_ns),
        }
        return facts | {"has_converged": "yes" if self.has_converged else "no, it may be loose"}


@strict
@work.budgeted
def zero_stall_limit(
    trace: Trace,
    machine: Machine,
    *,
    rounds: int = 20,
    size: int = SIZE,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Bound:
    """Return the least limit of live bytes that any swap plan can reach while the iteration takes no longer.

    Parameters
    ----------
    trace : Trace
        With ops.
    machine : Machine
        Gives op and copy times, and says whether both directions of the link run at once.
    rounds, size : int
        At most so many programs are solved, and none after one with more variables than `size`.
    seconds : float, optional
        The whole time. What is certified by then is returned: valid however short the time is, but the less the looser,
        at worst the static bound (a stall of 0).
    progress : callable, optional
        Told what each round found.

    Returns
    -------
    Bound
        With `stall_ns` 0.

    Notes
    -----
    What is bounded: the limit of the byte-counting simulation, for plans of `Swap` decisions (recomputation and
    operator variants may go below), in any steady state whose mean iteration equals the unswapped one's.

    Why it is valid. With one compute stream, an iteration that takes no longer leaves every op at its time.
    The byte-counting simulation gives out at most `limit` bytes at any moment; a buffer has them while it is used,
    while it is copied out and from the start of its copy-in on. So at the start and the end of every op, what is
    held without swapping, less what is off the device then, is at most `limit`. A buffer is off the device at most in
    the part that was copied out by then, and at most in the part that is copied in afterwards (`O` and `I` in
    `program`), and an engine copies for no longer than time passes. Each relaxation can only lower the bound: fractions
    of buffers, latency in proportion; live bytes looked at only at breakpoints; copies anywhere inside a segment; one
    copy-out for all gaps of a value as soon as one of them could make it; gaps that add up to less than 1/2000 of the
    peak leave for nothing; what is held after its last access counts as free; the iterations of a cycle are averaged.
    Kept from whole buffers: none is off the device before a whole copy-out since its access could have ended, nor later
    than a whole copy-in needs. The pinned budget is no constraint here, which lowers the bound at most. It is for a
    host that launches ops for nothing; copies that block or cost the host time only make plans slower. With a
    `host_ns`, several compute streams, or copies in the trace itself, only the static bound is returned: while an op
    waits for its host a copy may run.

    O(gaps x breakpoints) variables; HiGHS solves 30,000 of them in 3 s. Certified by the dual: any prices give a
    valid bound, so the solver's tolerances do not matter.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("mlp3")
    >>> bound = zero_stall_limit(trace, Machine.named("gtx1080ti"))
    >>> round(bound.limit / bound.peak_live_bytes, 3), bound.has_converged
    (0.998, True)
    """
    peak, least = trace.peak_live_bytes, static_floor(trace)[1]
    if not peak or not in_a_row(trace, machine) or work.over():
        return Bound(least, 0, peak, 0, False)
    refined = refine(relax(trace, machine, stalls=False), peak, None, rounds, size)
    limit = ceil(refined.dual * peak * (1 - SAFETY))
    return Bound(min(max(least, limit), peak), 0, peak, _count(refined), refined.has_converged)


def _count(refined: Refined) -> int:
    """How many breakpoints the last program had that was solved."""
    return 0 if refined.last is None else len(refined.breaks)


@strict
@work.budgeted
def least_stall(  # noqa: PLR0913  options of a public function, keyword-only
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    recompute: bool = False,
    placed: bool = False,
    rounds: int = 20,
    size: int = SIZE,
    seconds: float | None = None,
    progress: work.Progress | None = None,
) -> Bound:
    """Return by how much longer, at least, any plan for a limit of live bytes makes the iteration.

    Parameters
    ----------
    recompute : bool
        Whether plans may recompute values (`Recompute` and `Hold` beside `Swap`), by the trace's own operators.
    placed : bool
        Whether the limit is of a pool, so that the address-aware simulation judges.

    Notes
    -----
    Other parameters, returns and notes as for `zero_stall_limit`, but that ops may wait before they start: time
    between two breakpoints then grows at a price, and copies have no windows of time but only of ops.

    Why it is valid with recomputation. What a gap drops is not there from the op after its first access to the
    place before an op where recomputations bring it back, whichever place that is (`D` in `program`): D begins at 0 or
    1, and falls once. It falls while the next op waits, for recomputations run between two ops, on the stream of the
    ops; so the time of that segment has grown by the run time of all recomputations of the place, during which copies
    go on. These are at least the chains of what comes back there, its whole write and the changes in place after it,
    each op once. A buffer comes back at most once at a place, so an op's time may be split over all buffers that it can
    bring back (`again`) and is not counted twice. A gap is swapped or dropped, not both. What else recomputations need,
    be it recomputed in scratch, kept past its death or swapped in early, costs nothing here, in time and in bytes. A
    gap that wraps the iteration boundary cannot be dropped, nor one whose value has a chain that `Plan.apply` refuses.
    A recomputed value is the same, so that a copy on the host stays good.

    Why it is valid for a pool. Two buffers with bytes in common are touched one after the other: no op on one of them
    begins before all on the other have ended. So at any moment all that lie between their first access and their last
    are apart, and together at most as large as the pool. From its allocation to its first access a buffer is in
    nobody's way by that clock, so `touched` lifetimes count.

    Bounded are no plans with a `Variant`, by which an op may take less time or bytes than recorded.

    Raises
    ------
    Infeasible
        Some op must hold more than `limit` bytes whatever is swapped.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("mlp3")
    >>> least_stall(trace, Machine.named("gtx1080ti"), trace.peak_live_bytes * 9 // 10).stall_ns > 0
    True
    """
    trace = touched(trace) if placed else trace
    peak, (op, needs) = trace.peak_live_bytes, static_floor(trace)
    if limit < needs:
        raise Infeasible(op, needs, limit)
    if peak <= limit or not in_a_row(trace, machine) or work.over():
        return Bound(limit, 0, peak, 0, peak <= limit)
    fluid = relax(trace, machine, stalls=True, recompute=recompute)
    refined = refine(fluid, peak, limit, rounds, size)
    return Bound(limit, max(floor(refined.dual * (1 - SAFETY) + 1e-6), 0), peak, _count(refined), refined.has_converged)
