"""The host threads, by the rules taken literally: when each op is handed over, and who waits for it."""

from __future__ import annotations

from gpumem.trace import I64, Trace, int_column


class NaiveHosts:
    """The host threads from `begin` on: where each is, and when what it has handed over ends.

    `handing`: nanoseconds for each op, none where left out; `sync` as of the clock.
    """

    def __init__(self, trace: Trace, handing: I64 | None, sync: bool | None, begin: int = 0) -> None:
        ops = list(trace.ops)
        self.cost = [0] * trace.n if handing is None else int_column(handing, "handing").tolist()
        self.of, self.blocks = trace.ops.host.tolist(), trace.ops.blocking.tolist()
        self.copy = [op.role in ("copy_in", "copy_out") for op in ops]
        self.drains = [copy and waits for copy, waits in zip(self.copy, self.blocks)]
        self.on = bool(sync) or any(self.cost) or any(self.blocks)
        computing = [op.id for op in ops if not self.copy[op.id]]
        if self.on and sync is not False and computing:
            self.blocks[computing[-1]] = True
        self.at: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # of all that each has handed over, the last
        self.held: dict[int, int] = {}  # until when a blocking copy has held it
        self.begin = self.before = begin  # when the op before was issued
        self.copying = -1  # until when a copy held a host that this waited for

    def issue(self, i: int) -> int:
        """Hand over op `i`; return when."""
        host = self.of[i]
        here = self.at.get(host, self.begin)
        if self.drains[i] and (drained := self.ends.get(host, 0)) > here:
            here = self.held[host] = drained
        if here + self.cost[i] > self.before:
            self.before, self.copying = here + self.cost[i], max(self.copying, self.held.get(host, -1))
        self.at[host] = self.before
        return self.before

    def ended(self, i: int, end: int) -> None:
        """Op `i` will end then."""
        self.ends[self.of[i]] = max(self.ends.get(self.of[i], 0), end)
        if self.blocks[i]:
            self.at[self.of[i]] = end
        if self.drains[i]:
            self.held[self.of[i]] = end
