"""Planners that the commands are given in tests: one gives up, one takes options, two break a promise; and a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpumem.base.errors import NotReached
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.plan import Plan
from gpumem.trace import Trace
from tests.nets import PEAK


def gives_up(trace: Trace, machine: Machine, limit: int, *, seed: int = 0) -> Plan:
    raise NotReached(PEAK - seed, limit, hint="a better planner may")


def seeded(trace: Trace, machine: Machine, limit: int, *, seed: int = 0, seconds: float = 60.0) -> Plan:
    """Plan as AutoSwap does, and take down what it was told."""
    TOLD.append((seed, seconds))
    return autoswap(trace, machine, limit, peaks="all")


TOLD: list[tuple[int, float]] = []


def breaks(trace: Trace, machine: Machine, limit: int) -> Plan:
    """Raise what no planner should."""
    raise ZeroDivisionError("division\nby zero")


def wrong(kind: str) -> Callable[..., Plan]:
    """A planner whose plan breaks a promise."""

    def too_high(trace: Trace, machine: Machine, limit: int) -> Plan:
        return Plan((), trace.n)

    def too_much_pinned(trace: Trace, machine: Machine, limit: int) -> Plan:
        return autoswap(trace, machine.with_(pinned=2**40), limit, peaks="all")

    return {"limit": too_high, "pinned": too_much_pinned}[kind]


@dataclass(frozen=True)
class FakeBound:
    """What `swap.bound` returns, as far as the commands read it."""

    limit: int
    stall_ns: int = 0
