"""Beyond the paper: node groups of any length beside the paper's, and jobs that do not run equally often.

What gets done is counted in work: how long each job's iterations of a round take alone, over what the round takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.papers.waterwave.batches import alone_ns, named, needed, within
from gpumem.base.arguments import strict
from gpumem.jobs.waterwave import atoms, balanced, by_weight, round_ns, waterwave
from gpumem.simulator.machine import Machine
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
                row[key] = None if line is None else work / round_ns(line, machine, slowdown=slowdown)
            rows.append(row)
    return rows


@strict
def weighted(
    traces: Sequence[Trace],
    machine: Machine,
    slowdown: float,
    weights: Sequence[Sequence[int]] = WEIGHTS,
    progress: Callable[[str], None] = lambda text: None,
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
            ns = round_ns(line, machine, slowdown=slowdown)
            row["done"] = [weight * own / ns for weight, own in zip(each, alone)]
        rows.append(row)
    return rows
