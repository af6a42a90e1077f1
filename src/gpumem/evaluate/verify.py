"""Results held against the naive oracles of `gpumem.check`; what would take hours is left out, and said so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpumem import check
from gpumem.errors import CheckError
from gpumem.machine import Machine
from gpumem.placement import Placement
from gpumem.report import Run
from gpumem.timeline import Timeline
from gpumem.trace import Trace

if TYPE_CHECKING:
    from gpumem.jobs import Job, Outcome

QUADRATIC = 20_000  # ops or buffers that quadratic checks are run on
ORACLES = ("placement", "data_flow", "budget", "timeline")


@dataclass(frozen=True, slots=True)
class Checked:
    """Which oracles found nothing wrong, and which were not asked, with the reason.

    >>> print(Checked(("placement",), {"timeline": "30000 ops are too many"}))
    checked: placement; not checked: timeline (30000 ops are too many)
    """

    held: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"checked: {', '.join(self.held)}"] if self.held else []
        if self.left_out:
            parts.append("not checked: " + ", ".join(f"{name} ({why})" for name, why in self.left_out.items()))
        return "; ".join(parts)


UNCHECKED = Checked((), dict.fromkeys(ORACLES, "not asked for"))


@contextmanager
def self_check() -> Iterator[None]:
    """What an oracle objects to in here is our fault, not bad input; bad input stays what it is."""
    try:
        yield
    except CheckError as error:
        raise RuntimeError(f"the result failed its own check, please report this: {error}") from error


def placed(trace: Trace, placement: Placement) -> None:
    """Hold a placement against the oracle."""
    with self_check():
        check.placement(trace, placement)


def plan(before: Trace, after: Run, by_pool: Timeline, machine: Machine, load_limit: int, load: int | None) -> Checked:
    """Hold a plan, placed and simulated, against the oracles; of huge traces not against the quadratic ones.

    Parameters
    ----------
    before : Trace
        Without the plan.
    after : Run
        The rewritten trace, its placement, and its timeline by the clock that judges.
    by_pool : Timeline
        By the placed clock.
    machine : Machine
    load_limit : int
        Bytes that the load was to come down to.
    load : int, optional
        Bytes of the capacity clock, where that judges.

    Raises
    ------
    RuntimeError
        An oracle objects.

    Notes
    -----
    `budget` and `timeline` are quadratic: above 20,000 ops or buffers they are left out.
    """
    trace, ns, duplex = after.trace, machine.durations(after.trace), machine.duplex
    with self_check():
        check.placement(trace, after.placement)
        check.data_flow(before, trace)
        if max(trace.n, len(trace.buffers)) > QUADRATIC:
            why = f"{trace.n} ops and {len(trace.buffers)} buffers are too many"
            return Checked(ORACLES[:2], dict.fromkeys(ORACLES[2:], why))
        check.budget(trace, load_limit, host=machine.pinned)
        check.timeline(trace, by_pool, ns, placement=after.placement, duplex=duplex)
        if load is not None:
            check.timeline(trace, after.timeline, ns, capacity=load, duplex=duplex)
    return Checked(ORACLES)


def jobs(outcome: Outcome, jobs: Sequence[Job], machine: Machine, capacity: int, slowdown: float) -> Checked:
    """Hold an event log of several jobs against the naive oracle; of huge ones it would take too long.

    Raises
    ------
    RuntimeError
        The oracle objects.
    """
    if len(outcome.log) > 100 * QUADRATIC:
        return Checked((), {"jobs": f"{len(outcome.log)} events are too many"})
    traces = {job.name: job.trace for job in jobs}
    ns = {job.name: machine.durations(job.trace) for job in jobs}
    with self_check():
        check.jobs(outcome.log, traces=traces, machine=machine, capacity=capacity, durations=ns, slowdown=slowdown)
    return Checked(("jobs",))
