"""The ways in which ops can run: implementations of other durations and other workspaces, as a search sees them.

What a search starts from runs each op by its fastest way, in a trace of its own (`fastest`): a slower one takes
`longer`, and holds another workspace, at its op and wherever it runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpumem.simulator.machine import Machine
from gpumem.swap.facts.operators import Menu, recorded
from gpumem.swap.plan import Plan, Variant
from gpumem.swap.plan.variants import own_workspaces
from gpumem.trace import I64, Trace

Choices = Sequence[Sequence[Variant]]  # of each op that has a choice: its ways, the fastest first


class Ways(NamedTuple):
    """Columns over c ops with a choice, and over all their ways: those of op `op[k]` are `first[k]:first[k + 1]`."""

    op: I64  # c
    first: I64  # c + 1
    own: I64  # c: the workspace buffer
    longer: I64  # of each way: ns more than the fastest of its op
    size: I64  # bytes of workspace
    row: I64  # n: which of the c each op is, -1 where it has no choice

    @classmethod
    def of(cls, fastest: Trace, choices: Choices) -> Ways:
        """Take the choices, and the trace in which each op runs by the first of them."""
        own = own_workspaces(fastest) if choices else {}
        op = np.array([ways[0].op for ways in choices], np.int64)
        row = np.full(fastest.n, -1, np.int64)
        row[op] = np.arange(len(op))
        return cls(
            op,
            np.cumsum([0, *map(len, choices)]),
            np.array([own[i] for i in op.tolist()], np.int64),
            np.array([way.duration - ways[0].duration for ways in choices for way in ways], np.int64),
            np.array([way.workspace for ways in choices for way in ways], np.int64),
            row,
        )


def choices_of(trace: Trace, machine: Machine, menu: Menu, plan: Plan | None = None) -> Choices:
    """Return the ways of each op that has more than one: of the menu, as recorded, and as a plan has it."""
    ways = {op: list(row) for op, row in menu.items()}
    for d in () if plan is None else plan.decisions:
        if isinstance(d, Variant) and d.at == -1:
            ways.setdefault(d.op, []).append(d)
    for op, way in recorded(trace, machine, [*ways]).items():
        ways[op].insert(0, way)
    own, b = own_workspaces(trace), trace.buffers
    for op in [op for op in ways if op in own and (b.persistent[own[op]] or b.end[own[op]] != op + 1)]:
        del ways[op]  # it is held longer than its op runs
    every = (sorted(dict.fromkeys(ways[op]), key=lambda way: (way.duration, way.workspace)) for op in sorted(ways))
    return [row for row in every if len(row) > 1]


def fastest(trace: Trace, choices: Choices) -> Trace:
    """Return the trace with each op run by its fastest way; what has no workspace gets one of no bytes."""
    return Plan.of(trace, [ways[0] for ways in choices]).apply(trace)
