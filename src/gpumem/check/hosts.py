"""The host threads, by the rules taken literally: when each op is enqueued, and who waits for it."""

from __future__ import annotations

from gpumem.trace import I64, Trace, int_column


class NaiveHosts:
    """The host threads from `begin` on: where each is, and when what it has enqueued ends.

    `host_costs`: nanoseconds to launch each op, none where left out; `sync` as of the clock.
    """

    def __init__(self, trace: Trace, host_costs: I64 | None, sync: bool | None, begin: int = 0) -> None:
        ops = list(trace.ops)
        self.cost = [0] * trace.n if host_costs is None else int_column(host_costs, "host_costs").tolist()
        self.of, self.blocks = trace.ops.host.tolist(), trace.ops.blocking.tolist()
        self.copy = [op.role in ("copy_in", "copy_out") for op in ops]
        self.drains = [copy and waits for copy, waits in zip(self.copy, self.blocks)]
        self.on = bool(sync) or any(self.cost) or any(self.blocks)
        computing = [op.id for op in ops if not self.copy[op.id]]
        if self.on and sync is not False and computing:
            self.blocks[computing[-1]] = True
        self.at: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # when the last op ends that each has enqueued
        self.held: dict[int, int] = {}  # until when a blocking copy has held it
        self.begin = self.before = begin  # when the op before was issued
        self.copying = -1  # until when a copy held a host that this waited for

    def issue(self, op: int) -> int:
        """Enqueue an op; return when."""
        host = self.of[op]
        here = self.at.get(host, self.begin)
        if self.drains[op] and (drained := self.ends.get(host, 0)) > here:
            here = self.held[host] = drained
        if here + self.cost[op] > self.before:
            self.before, self.copying = here + self.cost[op], max(self.copying, self.held.get(host, -1))
        self.at[host] = self.before
        return self.before

    def ended(self, op: int, end: int) -> None:
        """Note when an op ends."""
        self.ends[self.of[op]] = max(self.ends.get(self.of[op], 0), end)
        if self.blocks[op]:
            self.at[self.of[op]] = end
        if self.drains[op]:
            self.held[self.of[op]] = end
