"""Figure 8 of Waterwave: the largest batch of two jobs, and what they get done at it, over the size of node groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.papers.waterwave.batches import NEEDS, Sizing, about, at_batch, most_of, ordered, rate, solo, undelayed
from benchmarks.papers.waterwave.published import SPLITS, model_of
from gpumem.base.arguments import strict
from gpumem.simulator.machine import GIB
from gpumem.trace import Trace

Row = dict[str, Any]
Range = tuple[int, int]
SIZES = (0.25, 0.5, *SPLITS)  # GiB
PIECES = (2, 4, 8, 16, 32, 64)  # of what a job takes: a recurrent net's split sizes
EACH_STEP = ("_softmax.default", "_softmax_backward_data.default")  # once each time round Tacotron2's loop


@strict
def splits(sizing: Sizing, trace: Trace, order: str = "recorded", sizes: Sequence[float] = SIZES) -> list[Row]:
    """Find the largest batch of two jobs for each split size in GiB, and what they get done at it."""
    mine = ordered(trace, order)
    rows = []
    for size in sizes:
        sizing.progress(f"{trace.name}, {order}: split size {size:g} GiB")
        row: Row = {"trace": trace.name, "order": order, "split": size}
        rows.append(row | _at(sizing, mine, partial(_fixed, int(size * GIB))))
    return rows


@strict
def grouped(sizing: Sizing, trace: Trace, pieces: Sequence[float] = PIECES) -> list[Row]:
    """The same for a recurrent net, by the number of groups: with its loops divided, and with each in one group."""
    rows = []
    for order, keep in (("recorded", ()), ("loops whole", loops(trace))):
        for piece in pieces:
            sizing.progress(f"{trace.name}, {order}: {piece:g} pieces")
            row: Row = {"trace": trace.name, "order": order, "split": None}
            rows.append(row | _at(sizing, trace, partial(_piece, piece), keep))
    return rows


def _fixed(size: int, job: Trace) -> int:
    return size


def _piece(piece: float, job: Trace) -> int:
    return int(job.peak_load / piece)


def _at(sizing: Sizing, trace: Trace, split: Callable[[Trace], int], keep: Sequence[Range] = ()) -> Row:
    """The largest batches at a split size, and samples a second at that in issue order."""
    alone, make = solo(sizing, trace), cache(partial(at_batch, trace, 2))
    row: Row = {"machine": sizing.machine.name, "solo": alone}

    def fits(needs: str, traces: Sequence[Trace]) -> bool:
        line = undelayed(traces, sizing.machine, split(traces[0]), keep)
        return NEEDS[needs](line, sizing.machine) <= sizing.limit

    for name, needs in (("waterwave", "issue order"), ("bound", "bound")):
        row[name] = most_of(make, partial(fits, needs), max(alone * 3 // 4, 1))
    batch = row["waterwave"]
    jobs = make(max(batch, 1))
    line = undelayed(jobs, sizing.machine, split(jobs[0]), keep)
    return row | about(line, "waterwave") | {"rate": rate(sizing, line, 2 * batch)}


@strict
def loops(trace: Trace) -> list[Range]:
    """Return the ops of Tacotron2's loop and of its backward pass, as ranges that no cut may divide; of others none."""
    if model_of(trace.name) != "tacotron2":
        return []
    name, found = np.array(trace.ops.name, object), []
    for each in EACH_STEP:
        ops = np.flatnonzero(name == each).tolist()
        found += [(ops[0], ops[-1] + 1)] if ops else []
    return found
