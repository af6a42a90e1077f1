"""A job: a trace that is run over and over, from when it arrives to when it leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict_fields
from gpumem.base.display import Shown
from gpumem.trace import Trace


@strict_fields
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Job(Shown):
    """One training job.

    Parameters
    ----------
    name : str
        For the event log; no two jobs share it.
    trace : Trace
        One iteration, unswapped. Its kernels run one at a time, whatever streams it names.
    arrival : int
        When it arrives, in ns.
    iterations : int
        After how many iterations it leaves.
    leave : int, optional
        It leaves earlier, when the first of its iterations from this ns on has ended; at once if it still waits then.
    ratio : float
        The share of its buffers that may be swapped: smaller means a higher priority (TENSILE, section 4.1).

    Raises
    ------
    ValueError
        A trace without ops or with copies of its own; numbers out of range.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> job = Job("a", Trace(Buffers.make([8], [0], [1]), Ops.make([[]], [[0]])), iterations=3)
    >>> job.name, job.arrival, job.iterations
    ('a', 0, 3)
    """

    name: str
    trace: Trace
    arrival: int = 0
    iterations: int = 1
    leave: int | None = None
    ratio: float = 1.0

    def __post_init__(self) -> None:
        who = f"job {self.name!r}"
        if not len(self.trace.ops):
            raise ValueError(f"{who}: no ops, a bare instance cannot run")
        copies = np.flatnonzero(self.trace.ops.copies)
        if len(copies):
            raise ValueError(f"{who}: op {copies[0]} is a copy; give the unswapped trace, plans make the copies")
        if self.arrival < 0:
            raise ValueError(f"{who}: arrival {self.arrival} ns is below 0")
        if self.iterations < 1:
            raise ValueError(f"{who}: iterations {self.iterations} is below 1")
        if self.leave is not None and self.leave < self.arrival:
            raise ValueError(f"{who}: leaves at {self.leave} ns, before it arrives at {self.arrival} ns")
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"{who}: ratio {self.ratio} is not in [0, 1]")
