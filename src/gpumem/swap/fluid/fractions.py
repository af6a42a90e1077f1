"""What the program of least stall would do with each gap, in fractions: where a search may begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict
from gpumem.simulator.machine import Machine
from gpumem.swap.fluid.program import Solution
from gpumem.swap.fluid.refine import refine
from gpumem.swap.fluid.relax import in_a_row, relax
from gpumem.swap.plan.gaps import Spans
from gpumem.trace import F64, Trace

ROUNDS, SIZE = 4, 15_000  # programs, and variables of one, which take about a second each


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fractions(Spans):
    """Columns over gaps, ascending by value, then by `after`; together at most 1.

    `buffer`, `after`, `before` as in a plan's decisions; `swapped`, `dropped`: the greatest fractions that are on the
    host, and yet to be made again, at any breakpoint.
    """

    swapped: F64
    dropped: F64


@strict
def fractions(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    recompute: bool = True,
    rounds: int = ROUNDS,
    size: int = SIZE,
) -> Fractions:
    """Return what the program of least stall (see `swap.least_stall`) for `limit` swaps and drops of each gap.

    At most `rounds` programs of at most `size` variables are solved, until the time is up. There is no gap where no
    program could be solved, and none that is tiny.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace = bundled("vgg16")
    >>> found = fractions(trace, Machine.named("gtx1080ti"), trace.peak_load // 2, rounds=1)
    >>> bool((found.swapped + found.dropped).max() <= 1 + 1e-6), bool(found.swapped.sum() > 1)
    (True, True)
    """
    f = relax(trace, machine, stalls=True, recompute=recompute)
    solution: Solution | None = None
    if trace.peak_load > limit and in_a_row(trace, machine):
        solution = refine(f, trace.peak_load, limit, rounds, size).last
    w, most = f.w, np.zeros((2, len(f.w)))
    if solution is not None:
        for row, column in zip(most, (solution.absent, solution.dropped)):
            np.maximum.at(row, solution.gap, column)
    mine = w.where(np.full(len(w), solution is not None))
    after = mine.after % trace.n
    swapped, dropped = np.clip(most[:, : len(mine)], 0, 1)
    swapped = np.minimum(swapped, 1 - dropped)  # told of whole parts: the gaps that are not dropped are swapped
    return Fractions(mine.buffer, after, mine.before - mine.after + after, swapped, dropped)
