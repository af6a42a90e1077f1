"""Beyond the paper: node groups of any length beside the paper's, and jobs that do not run equally often.

What gets done is counted in work: how long each job's iterations of a round take alone, over what the round takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.papers.waterwave.batches import (
    NEEDS,
    Sizing,
    about,
    alone_ns,
    at_batch,
    most_of,
    named,
    needed,
    ordered,
    rate,
    solo,
    undelayed,
    within,
)
from benchmarks.papers.waterwave.published import SPLITS, model_of
from gpumem.base.arguments import strict
from gpumem.jobs.waterwave import atoms, balanced, by_weight, round_ns, waterwave
from gpumem.simulator.machine import GIB, Machine
from gpumem.trace import Trace

Row = dict[str, Any]
OF_NEED = (1.05, 1.1, 1.2, 1.4)  # of what one job needs beside the other at rest: the memory there is
OF_NEED_BY_WEIGHT = 1.2
WEIGHTS = ((1, 1), (2, 1), (3, 1), (4, 1))


@strict
def lengths(
    traces: Sequence[Trace],
    machine: Machine,
    slowdowns: Sequence[float],
    parts: Sequence[float] = OF_NEED,
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[..., int] = round_ns,
) -> list[Row]:
    """Measure what jobs get done by the paper's groups, at the best of several split sizes, and by any length.

    Returns
    -------
    list of dict
        A row an amount of memory and a slowdown: `groups` and `balanced`, how many times as much gets done as in turn.
        None where no pipeline keeps within the limit.
    """
    rows, work = [], sum(alone_ns(traces, machine))
    fine = [atoms(trace, machine) for trace in traces]
    for part in parts:
        limit = int(part * needed(traces))
        for slowdown in slowdowns:
            progress(f"{named(traces)}: {part:.2f} of one, slowdown {slowdown:g}")
            ours = within(waterwave, traces, machine, limit, slowdown=slowdown)
            other = within(balanced, fine, machine, limit, slowdown=slowdown)
            row: Row = {"traces": named(traces), "machine": machine.name, "part": part, "slowdown": slowdown}
            for key, line in (("groups", ours), ("balanced", other)):
                row[key] = None if line is None else work / clock(line, machine, slowdown=slowdown)
            rows.append(row)
    return rows


@strict
def weighted(
    traces: Sequence[Trace],
    machine: Machine,
    slowdown: float,
    weights: Sequence[Sequence[int]] = WEIGHTS,
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[..., int] = round_ns,
) -> list[Row]:
    """Measure what each of two jobs gets done of what it does alone, where one runs more often than the other.

    Returns
    -------
    list of dict
        A row a choice of `weights`: `done`, a number a job; None where no pipeline keeps within the limit.
    """
    rows, alone, limit = [], alone_ns(traces, machine), int(OF_NEED_BY_WEIGHT * needed(traces))
    for each in weights:
        progress(f"{named(traces)}: weights {', '.join(map(str, each))}")
        line = within(waterwave, traces, machine, limit, turns=by_weight(each), slowdown=slowdown)
        row: Row = {"traces": named(traces), "machine": machine.name, "part": OF_NEED_BY_WEIGHT, "slowdown": slowdown}
        row |= {"weights": list(each), "done": None}
        if line is not None:
            ns = clock(line, machine, slowdown=slowdown)
            row["done"] = [weight * own / ns for weight, own in zip(each, alone)]
        rows.append(row)
    return rows


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
    return int(job.peak_live_bytes / piece)


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
