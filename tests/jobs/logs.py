"""What tests that read a job's log share: small jobs, plans that are written down, and the log as lines.

A copy of 8 bytes takes 7 ns out and 4 ns in, one of 40 takes 23 and 12 (`tiny_machine`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpumem.jobs import Outcome
from gpumem.simulator.machine import Machine
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.tasks import Scheduled, Task
from gpumem.trace import Buffers, Ops, Trace


def told(ran: Outcome, *jobs: str) -> list[str]:
    """The log, a line an event."""
    lines = []
    for e in ran.log:
        if jobs and e.job not in jobs:
            continue
        what = f"{e.ns} {e.job} {e.kind}"
        if e.op >= 0:
            what += f" {e.op}"
        if e.part >= 0:
            what += f" {e.buffer}/{e.part}"
        if e.kind in ("launch", "adopt", "refused", "replan"):
            what += f" {e.size}"
        lines.append(what)
    return lines


def fork(name: str = "") -> Trace:
    """Op 0 makes 8 bytes that op 2 reads; op 1 makes 9 bytes in between: 17 bytes, or 9 with a swap."""
    ops = Ops.make([[], [], [0]], [[0], [1], []], duration=[10, 20, 10])
    return Trace(Buffers.make([8, 9], [0, 1], [3, 2]), ops, name=name)


MANAGED = ("arrive", "wait", "refused", "replan", "launch", "adopt", "leave", "iteration")  # not of ops and copies
NOTHING = Plan((), 0)
TIGHT = Plan((Swap(0, 0, 2, 1, 2),), 3)  # op 1 waits for the copy-out: 9 bytes
LOOSE = Plan((Swap(0, 0, 2, 2, 2),), 3)  # the copy-out has until op 1 has ended: 17 bytes
AWAY = Plan((Swap(0, 0, 2, 1, 2),), 2)  # of `weight`: on the host from after op 0 to before op 0


class Given:
    """A memory scheduler that gives each trace what is written here, one after another, the last one for ever."""

    def __init__(self, plans: dict[Trace, list[tuple[Plan, int, int]]]) -> None:
        self.plans = {id(trace): list(rows) for trace, rows in plans.items()}

    def __call__(self, tasks: Sequence[Task], machine: Machine, capacity: int) -> list[Scheduled]:
        found = []
        for task in tasks:
            rows = self.plans[id(task.trace)]
            plan, out, into = rows.pop(0) if len(rows) > 1 else rows[0]
            found.append(Scheduled(plan, 0, ((out, into),) * len(plan.decisions)))
        return found


def weight() -> Trace:
    """Op 0 changes 40 bytes that live for ever; op 1 does something else."""
    ops = Ops.make([[0], []], [[0], []], duration=[10, 10])
    return Trace(Buffers.make([40], [0], [2], persistent=[True]), ops)


def block(size: int, *duration: int) -> Trace:
    """Ops that all work in the same bytes."""
    n = len(duration)
    return Trace(Buffers.make([size], [0], [n]), Ops.make([[]] * n, [[0]] * n, duration=duration), name=str(size))
