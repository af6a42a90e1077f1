"""The hosts in an event log: each job's kernels start when its own host threads have handed them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpumem.check.log import RUN, LoggedEvent, objection
from gpumem.columns import I64, int_column
from gpumem.trace import Trace


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
    hosts = {name: _Hosts(name, traces[name], ns) for name, ns in handing.items()}
    happened: dict[str, int] = {}  # when something happened to each job last
    for i, e in enumerate(log):
        mine = hosts.get(e.job)
        if mine is not None and e.kind == "launch":
            mine.launched = mine.before = e.ns
        elif mine is not None and e.kind in RUN:
            ns = mine.issue(e.op)
            if e.ns < ns:
                raise objection("handing", f"op {e.op} starts, but its host hands it over at {ns} ns", i, e)
            if e.ns > ns and e.ns > happened.get(e.job, -1):
                told = f"op {e.op} starts, but its host has handed it over at {ns} ns, and nothing happens now"
                raise objection("handing", told, i, e)
        elif mine is not None and e.kind in RUN.values() and mine.blocks[e.op]:  # a rerun blocks as its op does
            mine.at[mine.of[e.op]] = e.ns
        happened[e.job] = e.ns


class _Hosts:
    """Where the host threads of one job are."""

    def __init__(self, name: str, trace: Trace, handing: I64) -> None:
        self.cost, self.of = int_column(handing, "handing").tolist(), trace.ops.host.tolist()
        if len(self.cost) != trace.n:
            raise ValueError(f"handing: {len(self.cost)} costs for the {trace.n} ops of job {name!r}")
        self.blocks = [*trace.ops.blocking.tolist()[:-1], True]  # the last one always does
        self.at: dict[int, int] = {}
        self.launched = self.before = 0

    def issue(self, op: int) -> int:
        """Hand over an op, or its rerun; return when."""
        host = self.of[op]
        self.before = self.at[host] = max(self.at.get(host, self.launched) + self.cost[op], self.before)
        return self.before
