"""Footprints: how many bytes a pool planner or an online allocator takes for a trace, and in what time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.names import taken
from gpumem.base.work import now
from gpumem.check import verdict
from gpumem.pool.allocators.protocol import Pool, replay
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

Planners = Mapping[str, Callable[..., Placement]]
Allocators = Mapping[str, Callable[..., Pool]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a pool planner or an allocator takes for a trace.

    Parameters
    ----------
    trace, name : str
        Of the trace; of the planner or allocator.
    buffers, peak_live_bytes : int
        Of the trace.
    size : int
        Bytes: the height of a planner's placement, the bytes that an allocator reserved.
    bound : int
        Bytes that nothing of that kind goes below: at least the peak live bytes.
    seconds : float
        Spent on planning or replaying; compiling does not count.
    placement : Placement
    """

    trace: str
    name: str
    buffers: int
    peak_live_bytes: int
    size: int
    bound: int
    seconds: float
    placement: Placement = field(compare=False, repr=False)

    @property
    def ratio(self) -> float:
        """The fragmentation ratio: footprint over peak live bytes (1.0 where the live bytes are 0)."""
        return self.size / self.peak_live_bytes if self.peak_live_bytes else 1.0

    @property
    def optimal(self) -> bool:
        """Whether it is proven that nothing of that kind takes less."""
        return self.size <= self.bound

    def row(self) -> dict[str, object]:
        """Return all figures: bytes, a ratio, seconds."""
        return {
            "planner": self.name,
            "buffers": self.buffers,
            "peak_live_bytes": self.peak_live_bytes,
            "footprint": self.size,
            "ratio": self.ratio,
            "bound": self.bound,
            "optimal": self.optimal,
            "seconds": self.seconds,
        }


@strict
def placed(trace: Trace, planner: Callable[[Trace], Placement], *, name: str = "") -> Footprint:
    """Place with `planner(trace)` and measure; `name` is for people.

    Returns
    -------
    Footprint
        The bound is the placement's, or the peak live bytes where that is higher. It holds for the alignment asked for.

    Examples
    --------
    >>> from functools import partial
    >>> from gpumem.pool import best_fit
    >>> trace = Trace.from_lifetimes([4, 2, 3], [0, 1, 3], [2, 3, 5])
    >>> found = placed(trace, partial(best_fit, alignment=1), name="best-fit")
    >>> found.size, found.bound, found.optimal
    (6, 6, True)
    """
    begin = now()
    placement = planner(trace)
    seconds = now() - begin
    peak = trace.peak_live_bytes
    return Footprint(
        trace.name,
        name,
        buffers=len(trace.buffers),
        peak_live_bytes=peak,
        size=placement.height,
        bound=max(placement.bound, peak),
        seconds=seconds,
        placement=placement,
    )


@strict
def replayed(trace: Trace, make: Callable[[], Pool], *, name: str = "") -> Footprint:
    """Replay through a fresh allocator, which `make` returns, and measure; `name` is for people.

    Returns
    -------
    Footprint
        `size` is what was reserved at most. The bound is the peak live bytes: segments may lie anywhere, so that a
        bound on the height of a pool is none for them.

    Raises
    ------
    ValueError
        A buffer wraps and never comes to lie at one place, so that no placement says where it is.
    MemoryError
        The allocator's.

    Examples
    --------
    >>> from gpumem.pool.allocators.cnmem import CnMem
    >>> trace = Trace.from_lifetimes([1000, 500, 600], [0, 1, 3], [2, 3, 5])
    >>> found = replayed(trace, CnMem, name="cnmem")
    >>> found.size, found.bound, found.optimal
    (1536, 1500, False)
    """
    begin, allocator = now(), make()
    placement = replay(trace, allocator)
    seconds = now() - begin
    peak, size = trace.peak_live_bytes, allocator.statistics.reserved.peak
    return Footprint(
        trace.name,
        name,
        buffers=len(trace.buffers),
        peak_live_bytes=peak,
        size=size,
        bound=peak,
        seconds=seconds,
        placement=placement,
    )


@strict
@work.budgeted
def by_planners(
    trace: Trace,
    planners: Planners,
    options: Mapping[str, Any],
    progress: work.Progress | None = None,
    *,
    alignment: int | None = None,
) -> list[Footprint]:
    """Place with each planner, check and measure.

    The alignment is CUDA's for a trace with ops, none for a bare instance. A bound that one planner proves holds for
    all.
    """
    footprints, unit = [], alignment if alignment is not None else 256 if len(trace.ops) else 1
    for k, (name, planner) in enumerate(planners.items(), 1):
        work.step(k - 1, len(planners))
        with work.part(f"{trace.name}: {k} of {len(planners)}: {name}"):
            own = taken(planner, {**options, "progress": work.teller()})
            work.tell("placing")
            footprints.append(placed(trace, partial(planner, alignment=unit, **own), name=name))
        verdict.placed(trace, footprints[-1].placement)
    least = max((f.bound for f in footprints), default=0)
    return [replace(f, bound=least) for f in footprints]


@strict
@work.budgeted
def by_allocators(trace: Trace, allocators: Allocators, progress: work.Progress | None = None) -> list[Footprint]:
    """Replay through each allocator, check and measure."""
    footprints = []
    for k, (name, make) in enumerate(allocators.items(), 1):
        work.step(k - 1, len(allocators))
        work.tell(f"{trace.name}: {k} of {len(allocators)}: {name}: replaying")
        try:
            footprints.append(replayed(trace, make, name=name))
        except (MemoryError, ValueError) as error:
            kind = MemoryError if isinstance(error, MemoryError) else ValueError
            raise kind(f"{trace.name}: {name}: {error}") from error
        verdict.placed(trace, footprints[-1].placement)
    return footprints
