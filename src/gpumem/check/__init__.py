"""Naive, independent oracles: are this placement, budget, rewrite, timeline, trace or log of several jobs right?

Each follows the rules of the design literally and shares no code with what it judges.
All return None, or raise a `CheckError` that says which of the `RULES` is broken, and names the op or the buffer.
"""

from __future__ import annotations

from gpumem.base.arguments import strict
from gpumem.check.clock import naive_clock, timeline
from gpumem.check.co_schedule import together
from gpumem.check.data_flow import data_flow
from gpumem.check.event_log import LoggedEvent
from gpumem.check.jobs import jobs
from gpumem.check.memory import budget, placement
from gpumem.check.rules import RULES
from gpumem.check.slot_log import LoggedGroup, LoggedOp, LoggedPipeline, LoggedSchedule, LoggedSlots, LoggedTurn
from gpumem.check.waterwave import waterwave
from gpumem.simulator.machine import Machine
from gpumem.simulator.timeline import Timeline
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

__all__ = [
    "RULES",
    "LoggedEvent",
    "LoggedGroup",
    "LoggedOp",
    "LoggedPipeline",
    "LoggedSchedule",
    "LoggedSlots",
    "LoggedTurn",
    "budget",
    "data_flow",
    "everything",
    "jobs",
    "naive_clock",
    "placement",
    "timeline",
    "together",
    "waterwave",
]


@strict
def everything(
    original: Trace,
    rewritten: Trace,
    placed: Placement,
    line: Timeline,
    machine: Machine,
    *,
    limit: int | None = None,
    host: int | None = None,
) -> None:
    """Run all oracles on a rewritten and placed trace and its timeline by the address-aware simulation.

    Parameters
    ----------
    limit, host : int, optional
        Bytes that the live bytes on the device and on the host must not exceed.

    Raises
    ------
    CheckError
        What the first oracle that objects says.
    """
    placement(rewritten, placed)
    if limit is not None:
        budget(rewritten, limit, host=host)
    data_flow(original, rewritten)
    duration, host_costs = machine.durations(rewritten), machine.host_costs(rewritten)
    timeline(rewritten, line, duration, placement=placed, duplex=machine.duplex, host_costs=host_costs)
