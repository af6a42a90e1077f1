"""The host threads of a simulation: who launches which op, how long that takes, and for which ops it waits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.arguments import strict
from gpumem.simulator.machine import Machine
from gpumem.trace import I64, Bool, Trace

LAST, HELD, LATE = range(3)  # entries of `Hosts.state`


class Hosts(NamedTuple):
    """What the host threads do in an iteration, and where they are. Columns are empty while the host is off.

    All launch in one order, that of the trace, so the last op launched says where they are together.
    """

    cost: I64  # of each op: ns to launch it
    host: I64  # of each op, among those that launch any
    blocks: Bool  # of each op: its host goes on when it has ended
    drains: Bool  # of each op: it is launched when all that its host launched before has ended
    issued: I64  # of each op: when it was launched last
    clock: I64  # of each host: where it is
    ended: I64  # of each host: the latest end of what it has launched
    held: I64  # of each host: until when a blocking copy has held it; -1 before the first
    state: I64  # when the last op was launched, until when a copy held that back, how many ops were issued too late

    @classmethod
    def make(cls, trace: Trace, machine: Machine, sync: bool | None) -> Hosts:
        """Set all hosts to 0; see `simulate` for `sync`."""
        ops, state = trace.ops, np.array([0, -1, 0], np.int64)
        if not (sync or hosted(trace, machine)):
            nothing, never = np.array([], np.int64), np.array([], np.bool_)
            return cls(
                cost=nothing,
                host=nothing,
                blocks=never,
                drains=never,
                issued=nothing,
                clock=nothing,
                ended=nothing,
                held=nothing,
                state=state,
            )
        blocks = ops.blocking.copy()
        computing = np.flatnonzero(~ops.copies)
        if sync is not False and len(computing):
            blocks[computing[-1]] = True
        drains, issued = ops.blocking & ops.copies, np.zeros(trace.n, np.int64)
        used, host = np.unique(ops.host, return_inverse=True)  # one that launches nothing stays behind for ever
        clock, ended = np.zeros((2, len(used)), np.int64)
        held = np.full(len(used), -1)
        return cls(
            cost=machine.host_costs(trace),
            host=host.astype(np.int64),
            blocks=blocks,
            drains=drains,
            issued=issued,
            clock=clock,
            ended=ended,
            held=held,
            state=state,
        )

    @property
    def free(self) -> bool:
        """Whether the host and the device went each at its own pace: nobody blocks, and no op was issued too late."""
        return len(self.cost) > 0 and self.state[LATE] == 0 and not self.blocks.any()

    def lead(self, origin: int) -> int:
        """By how many ns the last op was launched before `origin`."""
        return origin - int(self.state[LAST]) if len(self.cost) else 0

    def apart(self, now: int, origin: int) -> I64:
        """Return all that later iterations depend on but for the lead: clocks beside one another, holds from `now`."""
        if not len(self.cost):
            return self.cost
        held = np.maximum(np.append(self.held, self.state[HELD]), now - 1)
        return np.concatenate([self.clock - self.state[LAST], held - origin])


@strict
def hosted(trace: Trace, machine: Machine) -> bool:
    """Return whether the host is on: launching some op takes time, or some op blocks.

    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("mlp3"), Machine.named("p100")
    >>> hosted(trace, machine), hosted(trace, machine.with_(host_ns=1))
    (False, True)
    """
    return bool(machine.host_costs(trace).any() or trace.ops.blocking.any())
