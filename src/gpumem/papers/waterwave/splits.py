"""Figure 8 of Waterwave: the largest batch of two jobs, and what they get done at it, over the size of node groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from gpumem._strict import strict
from gpumem.machine import GIB
from gpumem.papers.waterwave.batches import NEEDS, Sizing, about, at_batch, most_of, ordered, solo, undelayed
from gpumem.papers.waterwave.quoted import SPLITS, model_of
from gpumem.papers.waterwave.throughput import round_ns
from gpumem.trace import Trace

Row = dict[str, Any]
Range = tuple[int, int]
PIECES = (2, 4, 8, 16, 32, 64)  # of what a job takes: a recurrent net's split sizes
EACH_STEP = ("_softmax.default", "_softmax_backward_data.default")  # once each time round Tacotron2's loop


@strict
def splits(
    setting: Sizing, trace: Trace, slowdown: float, order: str = "recorded", sizes: Sequence[float] = SPLITS
) -> list[Row]:
    """Find the largest batch of two jobs for each split size in GiB, and what they get done at it."""
    mine = ordered(trace, order)
    rows = []
    for size in sizes:
        setting.progress(f"{trace.name}, {order}: split size {size:g} GiB")
        row: Row = {"trace": trace.name, "order": order, "split": size}
        rows.append(row | _at(setting, mine, slowdown, partial(_fixed, int(size * GIB))))
    return rows


@strict
def grouped(setting: Sizing, trace: Trace, slowdown: float, pieces: Sequence[float] = PIECES) -> list[Row]:
    """The same for a recurrent net, by the number of groups: with its loops divided, and with each in one group."""
    rows = []
    for order, keep in (("recorded", ()), ("loops whole", loops(trace))):
        for piece in pieces:
            setting.progress(f"{trace.name}, {order}: {piece:g} pieces")
            row: Row = {"trace": trace.name, "order": order, "split": None}
            rows.append(row | _at(setting, trace, slowdown, partial(_piece, piece), keep))
    return rows


def _fixed(size: int, job: Trace) -> int:
    return size


def _piece(piece: float, job: Trace) -> int:
    return int(job.peak_load / piece)


def _at(
    setting: Sizing, trace: Trace, slowdown: float, split: Callable[[Trace], int], keep: Sequence[Range] = ()
) -> Row:
    """The largest batches at a split size, and samples a second at that in issue order."""
    alone, make = solo(setting, trace), cache(partial(at_batch, trace, 2))
    row: Row = {"machine": setting.machine.name, "solo": alone}

    def fits(needs: str, traces: Sequence[Trace]) -> bool:
        line = undelayed(traces, setting.machine, split(traces[0]), keep)
        return NEEDS[needs](line, setting.machine) <= setting.limit

    for name, needs in (("waterwave", "issue order"), ("bound", "bound")):
        row[name] = most_of(make, partial(fits, needs), max(alone * 3 // 4, 1))
    batch = row["waterwave"]
    jobs = make(max(batch, 1))
    line = undelayed(jobs, setting.machine, split(jobs[0]), keep)
    return row | about(line, "waterwave") | {"rate": 2e9 * batch / round_ns(line, setting.machine, slowdown)}


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
