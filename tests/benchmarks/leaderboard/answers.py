"""A net of three ops, planners that end in every way there is, and questions to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.leaderboard.survey import Question, questions
from gpumem.base.errors import Infeasible, NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap import Plan, Swap
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine

NET = Trace(
    Buffers.make([40, 60], [0, 2], [6, 4]),
    Ops.make([[], [], [], [1], [], [0]], [[0], [], [1], [], [], []], duration=[10, 50, 10, 10, 50, 10]),
    name="net",
)
NONE = Plan.of(NET)
ONE = Plan.of(NET, [Swap(0, 0, 5, 2, 4)])


def swaps(trace: Trace, machine: Machine, limit: int) -> Plan:
    return ONE


def nothing(trace: Trace, machine: Machine, limit: int) -> Plan:
    return NONE


def gives_up(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise NotReached(90, limit)


def cannot(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise Infeasible(2, 80, limit)


def broken(trace: Trace, machine: Machine, limit: int) -> Plan:
    raise KeyError("a bug")


def forgets(trace: Trace, machine: Machine, limit: int) -> Any:
    return None


def slow(trace: Trace, machine: Machine, limit: int, *, seconds: float | None = None) -> Plan:
    time.sleep(0.002)
    return ONE


ALL: dict[str, Callable[..., Any]] = {
    "swaps": swaps,
    "nothing": nothing,
    "gives-up": gives_up,
    "cannot": cannot,
    "broken": broken,
    "forgets": forgets,
    "slow": slow,
}


def asked(*names: str, **options: Any) -> list[Question]:
    table = {name: ALL[name] for name in names or ALL}
    return questions([NET], tiny_machine(), table, [0.6], options)


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "seconds": 0} for row in rows]
