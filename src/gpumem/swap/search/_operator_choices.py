"""Variants of ops: implementations of other durations and other workspaces, as a search sees them.

What a search starts from runs each op by its fastest variant, in a trace of its own (`fastest`): a slower one takes
`extra_ns`, and holds another workspace, at its op and wherever it is recomputed.
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

Choices = Sequence[Sequence[Variant]]  # of each op that has a choice: its variants, the fastest first


class Variants(NamedTuple):
    """Columns over c ops with a choice, and over all variants: those of `op[k]` are `first[k]:first[k + 1]`."""

    op: I64  # c
    first: I64  # c + 1
    workspace: I64  # c: the workspace buffer
    extra_ns: I64  # of each variant: ns more than the fastest of its op
    size: I64  # of each variant: bytes of workspace
    row: I64  # n: which of the c each op is, -1 where it has no choice

    @classmethod
    def of(cls, fastest: Trace, choices: Choices) -> Variants:
        """Take the choices, and the trace in which each op runs by the first of them."""
        workspaces = own_workspaces(fastest) if choices else {}
        ops = [variants[0].op for variants in choices]
        row = np.full(fastest.n, -1, np.int64)
        row[ops] = np.arange(len(ops))
        slower = [variant.duration - variants[0].duration for variants in choices for variant in variants]
        return cls(
            op=np.array(ops, np.int64),
            first=np.cumsum([0, *map(len, choices)]),
            workspace=np.array([workspaces[op] for op in ops], np.int64),
            extra_ns=np.array(slower, np.int64),
            size=np.array([variant.workspace for variants in choices for variant in variants], np.int64),
            row=row,
        )


def choices_of(trace: Trace, machine: Machine, menu: Menu, plan: Plan | None = None) -> Choices:
    """Return the variants of each op that has more than one: of the menu, as recorded, and as a plan has it."""
    options = {op: list(variants) for op, variants in menu.items()}
    for decision in () if plan is None else plan.decisions:
        if isinstance(decision, Variant) and decision.at == -1:
            options.setdefault(decision.op, []).append(decision)
    for op, variant in recorded(trace, machine, [*options]).items():
        options[op].insert(0, variant)
    workspaces, buffers = own_workspaces(trace), trace.buffers
    for op in [op for op in options if op in workspaces]:
        # A workspace that is held longer than its op runs is no scratch: a variant without it would lose a value.
        if buffers.persistent[workspaces[op]] or buffers.end[workspaces[op]] != op + 1:
            del options[op]
    ascending = (
        sorted(dict.fromkeys(options[op]), key=lambda variant: (variant.duration, variant.workspace))
        for op in sorted(options)
    )
    return [variants for variants in ascending if len(variants) > 1]


def fastest(trace: Trace, choices: Choices) -> Trace:
    """Return the trace with each op run by its fastest variant; what has no workspace gets one of no bytes."""
    return Plan.of(trace, [variants[0] for variants in choices]).apply(trace)
