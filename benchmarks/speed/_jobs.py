"""Two training jobs side by side on one GPU: planned together by TENSILE, against unmanaged."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from cuda.core import Device
from numpy.typing import NDArray

from gpumem import Machine, best_fit
from gpumem.execute.cuda import Cuda
from gpumem.execute.cuda.memory import for_numba
from gpumem.execute.latency.measured import measured
from gpumem.execute.models.graph import Model
from gpumem.jobs import Job, Outcome, Planner, Policy, run_jobs, unmanaged
from gpumem.swap.tensile.planner import schedule
from gpumem.trace import Trace

TITLE = (
    "two jobs side by side, planned by TENSILE against unmanaged; limit: of the sum of their pools;"
    " ms: the median iteration of the second half"
)
PERCENT = (90, 80, 70, 60)
MIB = 2**20
Row = dict[str, Any]
State = dict[int, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models, their traces with the times of their ops alone, and what runs them."""

    models: Mapping[str, Model]
    traces: Mapping[str, Trace]
    library: ModuleType
    machine: Machine
    iterations: int
    array: Any

    def run(self, capacity: int, planner: Planner) -> tuple[Outcome, dict[str, State]]:
        """Run both from the start; return what came of it and where their states got to."""
        jobs = [Job(name, trace, iterations=self.iterations) for name, trace in self.traces.items()]
        state = {name: model.state() for name, model in self.models.items()}
        ran = run_jobs(
            jobs,
            self.machine,
            capacity,
            lambda: Cuda(timing=True, array=self.array),
            lambda job: self.models[job.name].launch(self.library),
            Policy(planner),
            place=best_fit,
            state=state,
            enter=lambda: Device().set_current(),
        )
        return ran, state


def side_by_side(
    models: Mapping[str, Model],
    library: ModuleType,
    machine: Machine,
    *,
    iterations: Callable[[int], int],
    percent: tuple[int, ...] = PERCENT,
    array: Any = for_numba,
    late: Callable[[int], bool] = lambda percent: False,
) -> list[Row]:
    """A line for each job and limit: ms an iteration, what it waited for, bytes copied and held, bits compared.

    `iterations` is asked how many, by the ns that an iteration of both takes; `late` before each limit.
    """
    traces = {}
    for name, model in models.items():
        with Cuda(timing=True, array=array) as backend:  # compiles, too
            traces[name] = measured(model.trace, backend, model.launch(library), place=best_fit, state=model.initial)
    both = sum(int(trace.ops.duration.sum()) for trace in traces.values())
    pair = Pair(models, traces, library, machine, iterations(both), array)
    whole = sum(best_fit(trace).height for trace in traces.values())
    ran, want = pair.run(whole, unmanaged)
    rows = told("unmanaged", 100, ran, want, want)
    for limit in percent:
        if late(limit):
            continue
        rows += told("tensile", limit, *pair.run(whole * limit // 100, schedule), want)
    return rows


def told(plan: str, limit: int, ran: Outcome, state: dict[str, State], want: dict[str, State]) -> list[Row]:
    """A line a job."""
    rows = []
    slabs = max(total for _, total in ran.budgets)
    for job in ran.jobs:
        ns = [end - start for start, end in zip(job.start, job.end)]
        same = all(np.array_equal(state[job.name][of], value) for of, value in want[job.name].items())
        rows.append(
            {
                "plan": plan, "limit %": limit, "job": job.name,
                "ms": statistics.median(ns[len(ns) // 2 :]) / 1e6 if ns else float("nan"),
                "copy waits ms": (job.waits["copy"] + job.waits["memory"]) / 1e6,
                "admitted ms": job.waits["admission"] / 1e6, "passive": sum(job.passive),
                "out MiB": job.out / MIB, "in MiB": job.into / MIB, "budget MiB": max(job.budget, default=0) / MIB,
                "peak MiB": ran.peak / MIB, "slabs MiB": slabs / MIB, "replans": len(ran.replans),
                "identical": str(same),
            }
        )  # fmt: skip
    return rows
