"""What a scheduler of several jobs is given and gives back: the contract between planners and `gpumem.jobs`."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.base.arguments import strict_fields
from gpumem.base.display import Shown
from gpumem.swap.plan import Plan
from gpumem.trace import I64, Trace


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task(Shown):
    """A job as the scheduler sees it: its iteration, ns of each op as predicted or measured, its priority.

    `ratio` of its buffers may be swapped at most: a smaller ratio is a higher priority. With 1 there is no limit.
    """

    trace: Trace
    duration: I64
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"job {self.trace.name!r}: ratio {self.ratio} is not in [0, 1]")
        if len(self.duration) != self.trace.n:
            raise ValueError(f"job {self.trace.name!r}: {len(self.duration)} durations for {self.trace.n} ops")


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scheduled(Shown):
    """What one job shall do.

    Parameters
    ----------
    plan : Plan
    peak : int
        Bytes that it holds at most, by the accounting that was asked for.
    delays : tuple of (int, int)
        Of each decision: ns from the end of op `out` to the start of the copy-out, and from that of op
        `prefetch - 1` to that of the copy-in; zeros for a recomputation.
    """

    plan: Plan
    peak: int
    delays: tuple[tuple[int, int], ...] = ()
