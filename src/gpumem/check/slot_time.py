"""Time in the log of node groups: what each op takes beside the others, and that no stream stands still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from typing import NamedTuple

from gpumem.check.event_log import LoggedEvent
from gpumem.check.slot_log import LoggedGroup, LoggedOp, LoggedPipeline, objection
from gpumem.trace import COMPUTE, I64, RECOMPUTE, Trace


def durations(
    groups: Sequence[LoggedGroup], traces: Mapping[str, Trace], alone: Mapping[str, I64], slowdown: float, hosts: bool
) -> None:
    """Check that each op does its work while it runs, at the speed that the others leave it.

    Only kernels share; all others take their own time.

    Raises
    ------
    CheckError
        `duration`: a kernel does not end with the first nanosecond by which its work is done. Where `hosts` take time,
        rounds differ and a clock may tell their mean: then a nanosecond more or less for its end and for each instant
        at which others start or end while it runs.
    """
    for _, slot in groupby(groups, key=lambda run: run.slot):  # kernels of two slots never run at once
        ran = [(one, run, traces[run.job].ops.role[one.op] in (COMPUTE, RECOMPUTE)) for run in slot for one in run.ops]
        progress = _progress([one for one, _, is_kernel in ran if is_kernel], Fraction(str(slowdown)))
        for one, run, is_kernel in ran:
            takes, work, changes = int(alone[run.job][one.op]), Fraction(one.end - one.start), 0
            if slowdown and is_kernel:
                work = progress[one.end].work - progress[one.start].work
                changes = progress[one.end].place - progress[one.start].place
            over = work - takes
            if abs(over) > 1 + changes if hosts else not 0 <= over < 1:
                reason = f"op {one.op} did work of {float(work):g} ns, it takes {takes}"
                raise objection("duration", run, reason, one.op)


class _Progress(NamedTuple):
    """How far a kernel has got that runs all the time, and how many instants there were before this one."""

    work: Fraction
    place: int


def _progress(kernels: Sequence[LoggedOp], slowdown: Fraction) -> dict[int, _Progress]:
    """Return the progress at each instant at which a kernel starts or ends."""
    more = Counter(one.start for one in kernels)
    more.subtract(one.end for one in kernels)
    work, running, now = Fraction(0), 0, 0
    progress = {}
    for place, ns in enumerate(sorted(more)):
        if running:
            work += (ns - now) / (1 + slowdown * (running - 1))
        progress[ns], now = _Progress(work, place), ns
        running += more[ns]
    return progress


def starts(groups: Sequence[LoggedGroup], pipelines: Sequence[LoggedPipeline], events: Sequence[LoggedEvent]) -> None:
    """Check that no stream stands still: a slot begins when those before it end, an op when the one before it ends.

    A pipeline begins when its last job is launched, or when the one before it ends; without events that is unknown.

    Raises
    ------
    CheckError
        `start`
    """
    launched = {event.job: event.ns for event in events if event.kind == "launch"}
    begins = {at.slot: at for at in pipelines}
    over, seen = 0, -1  # the end of all earlier slots, and the last slot whose pipelines have been looked at
    for slot, of_slot in groupby(groups, key=lambda run: run.slot):
        runs, known = list(of_slot), True
        for at in (begins[new_slot] for new_slot in range(seen + 1, slot + 1) if new_slot in begins):
            known = all(job in launched for job in at.jobs)
            over = max([over, *(launched[job] for job in at.jobs if job in launched)])
        seen = slot
        for run in runs:
            if known and run.start != over:
                raise objection("start", run, f"starts at {run.start} ns, its slot begins at {over} ns")
            for one, following in pairwise(run.ops):
                if following.start != one.end:
                    raise objection("start", run, f"op {following.op} starts at {following.start} ns, not {one.end}")
        over = max(run.end for run in runs)
