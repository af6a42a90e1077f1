"""The hosts in an event log: each job's kernels start when its own host threads have handed them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.check.event_log import RUN, LoggedEvent, objection
from gpumem.check.hosts import NaiveHosts
from gpumem.trace import I64, Trace


def handing_over(log: Sequence[LoggedEvent], traces: Mapping[str, Trace], handing: Mapping[str, I64]) -> None:
    """Check that no kernel starts before its host can hand it over, and that none stands idle when it could start.

    Parameters
    ----------
    handing : mapping from job to int64[n]
        Nanoseconds that a host needs to hand over each op; of jobs that are not in it the host is off.

    Raises
    ------
    CheckError
        A kernel starts before its host has come to it; or later, and at that instant nothing happens to its job that
        it can have waited for.
    """
    for name, costs in handing.items():
        if len(costs) != traces[name].n:
            raise ValueError(f"handing: {len(costs)} costs for the {traces[name].n} ops of job {name!r}")
    hosts: dict[str, NaiveHosts] = {}
    happened: dict[str, int] = {}  # when something happened to each job last
    for i, e in enumerate(log):
        if e.kind == "launch" and e.job in handing:
            hosts[e.job] = NaiveHosts(traces[e.job], handing[e.job], True, e.ns)
        mine = hosts.get(e.job)
        if mine is not None and e.kind in RUN:
            ns = mine.issue(e.op)
            if e.ns < ns:
                raise objection("handing", f"op {e.op} starts, but its host hands it over at {ns} ns", i, e)
            if e.ns > ns and e.ns > happened.get(e.job, -1):
                told = f"op {e.op} starts, but its host has handed it over at {ns} ns, and nothing happens now"
                raise objection("handing", told, i, e)
        elif mine is not None and e.kind in RUN.values():  # a rerun blocks as its op does
            mine.ended(e.op, e.ns)
        happened[e.job] = e.ns
