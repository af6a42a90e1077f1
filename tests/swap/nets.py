"""Traces that several tests of swap planners plan for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.simulator.machine import Link, Machine
from gpumem.swap.plan import Variant
from gpumem.trace import Buffers, Ops, Trace

CARD = Machine("m", 10_000, Link(0, 1.0), Link(0, 1.0), 1.0, 1.0)


def line() -> Trace:
    """X of 8 bytes: written by op 0, read by op 4; Y of 8 bytes lives during op 2. Each op takes 10 ns."""
    ops = Ops.make([[], [], [1], [], [0]], [[0], [], [1], [], []], duration=[10] * 5)
    return Trace(Buffers.make([8, 8], [0, 2], [5, 3]), ops)


def layers(k: int) -> Trace:
    """P, a constant; op i makes map i + 1 of map i (op 0 of P), op 2k - 1 - i is its backward and needs map i + 1."""
    ops = Ops.make([[i] for i in range(k)] + [[k - i] for i in range(k)], [[i + 1] for i in range(k)] + [[]] * k)
    ops = replace(ops, duration=np.full(2 * k, 10))
    end = [2 * k, *(2 * k - i for i in range(k))]
    return Trace(Buffers.make([1] + [8] * k, [0, *range(k)], end, persistent=[True] + [False] * k), ops)


def chain(workspace: int = 0) -> tuple[Trace, dict[int, list[Variant]]]:
    """Op 4 reads what op 0 made; op 1 has a workspace, and a slower way without."""
    ops = Ops.make([[], [], [1], [2], [0, 3]], [[0], [1, 4], [2], [3], []], duration=[50] * 5, name=["zeros"] * 5)
    kind = ["activation"] * 4 + ["workspace"]
    trace = Trace(Buffers.make([40, 30, 30, 10, workspace], [0, 1, 2, 3, 1], [5, 3, 4, 5, 2], kind=kind), ops)
    return trace, {1: [Variant(1, "zeros", 50, workspace), Variant(1, "narrow", 65, 0)]}


def activation() -> Trace:
    """X: written by 0, read by 4, alive until 5 (a dead tail). Y: alive in 1..3."""
    ops = Ops.make([[], [], [], [1], [0], []], [[0], [1], [1], [], [], []])
    return Trace(Buffers.make([8, 4], [0, 1], [6, 4]), ops)
