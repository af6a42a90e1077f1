"""What `python -m benchmarks tensile` measures: methods side by side on copies of a job, MLPs, and jobs that arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpumem import swap
from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible
from gpumem.execute.models import mlp
from gpumem.jobs import Job, Outcome, Planner, Policy, savings, separately, simulate_jobs, unmanaged, verify
from gpumem.jobs.actual_times import CERTAIN
from gpumem.jobs.metrics import cells
from gpumem.pipeline.report import Figure, Series, columns, human_ns
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.uncertainty import Uncertainty
from gpumem.swap import least_stall, schedule, zero_stall_limit
from gpumem.swap.facts.times import Times
from gpumem.swap.tasks import Task
from gpumem.trace import Trace
from gpumem.trace.lifetimes import released

Row = dict[str, Any]
TABLE1 = {  # VGG: tasks, method -> MSR, EOR
    (1, "vdnn"): (0.2733, 0.8580),
    (1, "capuchin"): (0.1003, 0.8971),
    (1, "tensile"): (0.2241, 0.0971),
}
TABLE2 = {  # the same; another run of one task
    (1, "vdnn"): (0.2822, 0.8507),
    (1, "capuchin"): (0.1003, 0.8921),
    (1, "tensile"): (0.2001, 0.0838),
    (2, "vdnn"): (0.2368, 0.9103),
    (2, "capuchin"): (0.0056, 0.9208),
    (2, "tensile"): (0.2295, 0.1016),
    (3, "vdnn"): (0.2613, 0.9202),
    (3, "capuchin"): (0.1109, 0.9215),
    (3, "tensile"): (0.2767, 0.2793),
}
MLP_SAVING, MLP_EXTRA = 0.335, 0.005  # section 4.1
HOST_NS = 1e6  # of an op that Python hands over, where the host waits for each: ops follow one another so in section 5
METHODS = ("vdnn", "capuchin", "tensile", "tensile+activity")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What all measurements have in common."""

    machine: Machine
    slowdown: float
    iterations: int
    check: bool
    progress: Callable[[str], None]
    tell: Callable[[str], None]
    rounds: int = 20  # of the bound, at most
    uncertainty: Uncertainty = CERTAIN

    @strict
    def simulated(self, jobs: Sequence[Job], capacity: int, policy: Policy) -> Outcome:
        """Run jobs, and hold the log against the oracle, if asked to; `tell` hears where it is too long for that."""
        machine, off = self.machine, self.uncertainty
        outcome = simulate_jobs(jobs, machine, capacity, policy, slowdown=self.slowdown, uncertainty=off)
        if self.check:
            verify.jobs(outcome, jobs, machine, capacity, self.slowdown, off).report_to(self.tell)
        return outcome


@strict
def in_framework(trace: Trace, setting: Setting, host_ns: float = HOST_NS) -> tuple[Trace, Setting]:
    """Return a trace and a setting as in the paper's framework: each op is handed over in `host_ns` and waited for.

    >>> from gpumem.io import bundled
    >>> setting = Setting(Machine.named("rtx2080ti"), 1, 5, True, print, print)
    >>> trace, there = in_framework(bundled("mlp3"), setting)
    >>> trace.name, bool(trace.ops.blocking.all()), there.machine.launch_ns, there.machine.host_ns
    ('mlp3_b128_sgd, waited for', True, 0, 1000000.0)
    """
    machine = setting.machine.with_(launch_ns=0, host_ns=host_ns)
    return replace(trace.with_blocking(), name=f"{trace.name}, waited for"), replace(setting, machine=machine)


@strict
def methods(trace: Trace, tasks: int, setting: Setting) -> list[Row]:
    """Run copies of a job side by side by each method; Capuchin is asked for what TENSILE saves, as in the paper."""

    def capuchin(msr: float, trace: Trace, machine: Machine, limit: int) -> Any:
        return swap.PLANNERS["capuchin"](trace, machine, max(math.floor((1 - msr) * trace.peak_live_bytes), 1))

    def vdnn(trace: Trace, machine: Machine, limit: int) -> Any:  # offloads whatever the limit
        return swap.PLANNERS["vdnn-all"](trace, machine, max(trace.peak_live_bytes - 1, 1))

    least, before = partial(schedule, least=True), _run(trace, tasks, unmanaged, setting)
    ours = _saving(before, trace, tasks, least, "tensile", setting)
    return [
        _saving(before, trace, tasks, separately(vdnn), "vdnn", setting),
        _saving(before, trace, tasks, separately(partial(capuchin, ours["msr"])), "capuchin", setting),
        ours,
        _saving(before, released(trace), tasks, least, "tensile+activity", setting),
    ]


def beside(rows: Sequence[Row], paper: Mapping[tuple[int, str], tuple[float, float]]) -> list[Row]:
    """Put the MSR and EOR of one of the paper's tables beside ours, where the net is a VGG16."""
    return [{**r, "paper": paper.get((r["tasks"], r["method"])) if "vgg16" in r["trace"] else None} for r in rows]


def _saving(before: Outcome, trace: Trace, tasks: int, planner: Planner, method: str, setting: Setting) -> Row:
    """MSR, EOR and CBR of one method, against the run `before` of the jobs as they were recorded."""
    setting.progress(f"{trace.name} x{tasks}: {method}")
    after = _run(trace, tasks, planner, setting)
    found, _ = savings(after, before)
    passive = sum(sum(job.passive) for job in after.jobs)
    row: Row = {"trace": trace.name, "tasks": tasks, "method": method, **found.row(), "passive": passive}
    b, peak = trace.buffers, max(job.peak[0] for job in before.jobs)
    whole = int(b.size[~b.host].sum())
    return row | {"msr_nothing_freed": 1 - (1 - found.msr) * peak / whole if whole else 0.0}


def _run(trace: Trace, tasks: int, planner: Planner, setting: Setting) -> Outcome:
    jobs = [Job(f"{trace.name}#{k + 1}", trace, iterations=setting.iterations) for k in range(tasks)]
    capacity = max(tasks * trace.peak_live_bytes, 1)
    return setting.simulated(jobs, capacity, Policy(planner))


@strict
def bounds(trace: Trace, setting: Setting) -> Row:
    """What no swap plan of one task can beat: the saving without a stall, the extra time at the paper's savings."""
    setting.progress(f"{trace.name}: bounds")
    machine, peak = setting.machine, trace.peak_live_bytes
    row: Row = {"trace": trace.name, "free_msr": _free(trace, setting)}
    base, stall = simulate(trace, machine).makespan, partial(least_stall, trace, machine, rounds=setting.rounds)
    for msr in sorted({TABLE1[1, "tensile"][0], TABLE2[3, "tensile"][0]} | {MLP_SAVING}):
        row[f"eor_at_{msr}"] = _least(stall, math.floor((1 - msr) * peak), base)
    return row


def _free(trace: Trace, setting: Setting) -> float:
    """The most that is saved without a stall, of the peak; 0 of nothing."""
    limit, peak = zero_stall_limit(trace, setting.machine, rounds=setting.rounds).limit, trace.peak_live_bytes
    return 1 - limit / peak if peak else 0.0


def _least(stall: Callable[[int], Any], limit: int, base: int) -> float | None:
    """The least extra time at a limit; None where no plan gets there."""
    try:
        least = stall(max(limit, 1)).stall_ns
    except Infeasible:
        return None
    return float(least / base) if base else math.inf if least else 0.0


def mlps() -> list[Trace]:
    """MLPs of twelve layers, a trace a batch size, to hold against section 4.1."""
    return [mlp(batch=batch, features=256, hidden=(1024,) * 12).trace for batch in (128, 512, 2048, 8192)]


@strict
def mlp_row(trace: Trace, setting: Setting) -> Row:
    """What TENSILE saves of one MLP, and what it costs; beside it what can be saved without a stall at all."""
    setting.progress(trace.name)
    found = _saving(_run(trace, 1, unmanaged, setting), trace, 1, partial(schedule, least=True), "tensile", setting)
    free, met = _free(trace, setting), found["msr"] >= MLP_SAVING and found["eor"] <= MLP_EXTRA
    return {"trace": trace.name, "msr": found["msr"], "eor": found["eor"], "met": met, "free_msr": free}


@strict
def arrivals(trace: Trace, setting: Setting) -> list[Row]:
    """Jobs that arrive one after another under a limit that they fit with TENSILE only: how soon there is room."""
    machine = setting.machine
    ns = machine.durations(trace)
    three = sum(s.peak for s in schedule([Task(trace, ns)] * 3, machine, 1, recompute=False))
    capacity, turn = max((three + 3 * trace.peak_live_bytes) // 2, 1), Times.serial(trace, machine, ns).period
    jobs = [Job(f"{trace.name}#{k + 1}", trace, 5 * k * turn, setting.iterations) for k in range(3)]
    setting.progress(f"{trace.name}: arrivals")
    out = setting.simulated(jobs, capacity, Policy())
    rows, part = [], capacity / max(3 * trace.peak_live_bytes, 1)
    for k, job in enumerate(jobs):
        mine = out[job.name]
        ended = [sum(job.arrival < end <= mine.launch for end in out[other.name].end) for other in jobs[:k]]
        row = {"trace": trace.name, "job": job.name, "arrive": job.arrival, "launch": mine.launch, "limit": part}
        row |= {"iterations_waited": max(ended, default=0), "passive": sum(mine.passive), "refused": mine.refused}
        rows.append(row)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Methods by task count, next to the paper's figures."""
    head = ["trace", "tasks", "method", "MSR", "EOR", "CBR", "passive", "MSR of all", "paper: MSR", "EOR", "CBR"]
    lines = [head]
    for r in rows:
        msr, eor = r["paper"] or (0, 1)
        theirs = [f"{x:.4f}" if r["paper"] else "" for x in (msr, eor, msr / eor)]
        ours = [*cells(r, 4), str(r["passive"]), f"{r['msr_nothing_freed']:.4f}"]
        lines.append([r["trace"], str(r["tasks"]), r["method"], *ours, *theirs])
    told = "`MSR of all`: against a run that frees nothing before the iteration ends, as the paper's does."
    return f"{columns(lines)}\n\n{told}"


def bound_table(rows: Sequence[Row]) -> str:
    """What cannot be beaten."""
    keys = [key for key in rows[0] if key not in ("trace", "free_msr")] if rows else []
    lines = [["trace", "MSR without a stall", *(f"least EOR at MSR {key[7:]}" for key in keys)]]
    for r in rows:
        least = ["no plan" if r[key] is None else f"{r[key]:.4f}" for key in keys]
        lines.append([r["trace"], f"{r['free_msr']:.4f}", *least])
    return columns(lines)


def mlp_table(rows: Sequence[Row]) -> str:
    """MLPs and the claim."""
    lines = [["trace", "MSR", "EOR", f"{MLP_SAVING} at {MLP_EXTRA}", "MSR without a stall, at most"]]
    for r in rows:
        msr, eor, free = (f"{r[key]:.4f}" for key in ("msr", "eor", "free_msr"))
        lines.append([r["trace"], msr, eor, "yes" if r["met"] else "no", free])
    return columns(lines)


def arrival_table(rows: Sequence[Row]) -> str:
    """How long newcomers wait for room."""
    lines = [["job", "arrives", "runs from", "iterations that others ended meanwhile", "passive swap-ins", "limit"]]
    for r in rows:
        times = [human_ns(r["arrive"]), "refused" if r["refused"] else human_ns(r["launch"])]
        lines.append([r["job"], *times, str(r["iterations_waited"]), str(r["passive"]), f"{r['limit']:.1%}"])
    return columns(lines)


def figure6(rows: Sequence[Row]) -> list[Figure]:
    """Figure 6: the three metrics over the number of tasks, one picture each."""
    drawn = []
    for name in dict.fromkeys(r["trace"] for r in rows):
        for key in ("msr", "eor", "cbr"):
            mine = {m: [r for r in rows if (r["trace"], r["method"]) == (name, m)] for m in METHODS}
            series = tuple(Series(m, [float(r["tasks"]) for r in rs], [r[key] for r in rs]) for m, rs in mine.items())
            drawn.append(Figure(f"fig6-{key}", f"{name}: {key.upper()}", "tasks", key.upper(), series))
    return drawn


TABLES = {"table1": table, "bounds": bound_table, "table2": table, "mlp": mlp_table, "arrivals": arrival_table}
