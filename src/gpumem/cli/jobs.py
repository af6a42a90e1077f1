"""`gpumem jobs`: several jobs on one GPU, by the simulated clock."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import gpumem
from gpumem import io
from gpumem.base import work
from gpumem.base.errors import failure
from gpumem.base.units import amount, human, human_ns, moment
from gpumem.cli.common.args import count_of, each, machine_flags, target_of
from gpumem.cli.common.files import FILE, read_with_ops, source_of
from gpumem.cli.common.parser import Command, Section, finite, option
from gpumem.cli.common.planning import SIZE
from gpumem.cli.common.progress import Progress, complain
from gpumem.cli.common.uncertainty import uncertainty_flags, uncertainty_of
from gpumem.cli.job_scheduler import SCHEDULING, scheduler
from gpumem.jobs.metrics import by_iteration, cells, makespan, savings, steady
from gpumem.pipeline.report import columns

if TYPE_CHECKING:
    from gpumem.jobs import Job, Outcome
    from gpumem.jobs.metrics import IterationCost, Saving, Steady
    from gpumem.jobs.outcome import JobRun
    from gpumem.simulator.uncertainty import Uncertainty

HEAD = ["job", "peak live bytes", "budget", "peak", "waited", "unmanaged", "iteration", "passive", "MSR", "EOR", "CBR"]
SHOWN = (1, 2, 3, 5, 10, 20)  # iterations


@dataclass(frozen=True, slots=True)
class _Ran:
    """How a job ran; and its steady state without a plan and with one, and what that saves, if it ran in both."""

    job: Job
    run: JobRun
    steady: tuple[Steady, Steady, Saving] | None
    error: str

    def row(self) -> dict[str, object]:
        """Return all figures for JSON: bytes, nanoseconds, ratios; infinite ones as None."""
        job, run = self.job, self.run
        row: dict[str, object] = {"job": job.name, "arrive": job.arrival, "peak_live_bytes": job.trace.peak_live_bytes}
        row |= {"launch": run.launch, "leave": run.leave, "iterations": len(run.end), "refused": run.refused}
        if self.steady is not None:
            before, after, saving = self.steady
            row |= {"budget": self.budget, "peak": after.peak, "passive": sum(run.passive)}
            row |= {"iteration_ns_unmanaged": before.ns, "iteration_ns": after.ns}
            row |= {"bytes_out": run.out, "bytes_in": run.into, "waits": run.waits, **saving.row()}
        return row | ({"error": self.error} if self.error else {})

    def cells(self) -> list[str]:
        """Return a row of the table."""
        if self.steady is None:
            why = "refused" if self.run.refused else "never ran"
            return [self.job.name, human(self.job.trace.peak_live_bytes), why, *[""] * 8]
        before, after, saving = self.steady
        sizes = map(human, (self.job.trace.peak_live_bytes, self.budget, after.peak))
        times = (human_ns(round(ns)) for ns in (self.run.launch - self.job.arrival, before.ns, after.ns))
        return [self.job.name, *sizes, *times, str(sum(self.run.passive)), *cells(saving.row(), 2)]

    @property
    def budget(self) -> int:
        """The most bytes that it might hold in its steady state."""
        return max(self.run.budget[k] for k in self.steady[1].iterations) if self.steady else 0


@dataclass(frozen=True, slots=True)
class _Together:
    """All jobs without a plan and with one; and iteration by iteration, where durations are uncertain."""

    planner: str
    machine: gpumem.Machine
    capacity: int
    jobs: list[_Ran]
    before: Outcome
    after: Outcome
    whole: Saving
    uncertainty: Uncertainty

    @property
    def iterations(self) -> list[IterationCost]:
        """The way from the first plans, by estimates, to the steady state; empty where they are certain."""
        return [] if self.uncertainty.certain else by_iteration(self.after, self.before)

    def row(self) -> dict[str, object]:
        """Return all figures for JSON."""
        before, after = self.before, self.after
        together = {"peak_unmanaged": before.peak, "peak": after.peak, "replans": len(after.replans)}
        times = {"makespan_ns_unmanaged": makespan(before), "makespan_ns": makespan(after), **self.whole.row()}
        row = {"planner": self.planner, "machine": self.machine.name, "capacity": self.capacity}
        row |= {"jobs": [one.row() for one in self.jobs], "together": together | times}
        if self.uncertainty.certain:
            return row
        return row | {"uncertainty": asdict(self.uncertainty), "iterations": [asdict(t) for t in self.iterations]}

    def table(self) -> str:
        """Return the figures as a table."""
        from gpumem.jobs.waterwave import SHARING_POLICIES

        runs = self.before, self.after
        (held, peak), whole = (human(run.peak) for run in runs), (human_ns(makespan(run)) for run in runs)
        last = ["together", held, "", peak, "", *whole, "", *cells(self.whole.row(), 2)]
        limit = f"limit of {human(self.capacity)}"
        saved = "of that peak" if self.planner in SHARING_POLICIES else "of the peaks added up"
        legend = f"`together`: the peaks of one moment, the time until the last job has left, the MSR {saved}."
        parts = [
            f"{len(self.jobs)} jobs by {self.planner} on {self.machine.name}, {limit}",
            columns([HEAD, *(one.cells() for one in self.jobs), last]),
            f"{legend}\nPlans were made anew {len(self.after.replans)} times.",
        ]
        if turns := self.iterations:
            sampled = {k: turns[k - 1] for k in sorted({*SHOWN, len(turns)}) if k <= len(turns)}
            extra = ["extra time", *(f"{turn.eor:.4f}" for turn in sampled.values())]
            passive = ["passive swap-ins", *(str(turn.passive) for turn in sampled.values())]
            table = columns([["iteration", *map(str, sampled)], extra, passive])
            parts.append(f"Of all jobs, by iteration:\n\n{table}")
        return "\n\n".join(parts)


def run(args: argparse.Namespace) -> int:
    """Run jobs that arrive, share one GPU and leave, planned together; compare with the same jobs without a plan."""
    from gpumem.jobs import Policy, simulate_jobs, unmanaged
    from gpumem.jobs.waterwave import SHARING_POLICIES

    target = target_of(args)
    if args.half_duplex:
        target = target.with_(duplex=False)
    broken: dict[str, Exception] = {}
    uncertainty = uncertainty_of(args)
    run_together = scheduler(args, broken, uncertainty)
    with Progress():
        jobs = _jobs(args, target)
        peaks = sum(job.trace.peak_live_bytes for job in jobs)
        capacity = target.available if args.limit is None else amount(args.limit, peaks, "--limit")
        work.tell("running the jobs without a plan")
        before = simulate_jobs(
            jobs, target, max(peaks, 1), Policy(unmanaged), slowdown=args.slowdown, uncertainty=uncertainty
        )
        after = run_together(jobs, target, capacity)
    whole, ran = _compared(jobs, before, after, broken)
    if args.planner in SHARING_POLICIES:  # they hold their peaks in turn
        held = sum(before[one.job.name].peak[0] for one in ran if one.steady)
        whole = replace(whole, msr=1 - after.peak / held if held else 0.0)
    answer = _Together(args.planner, target, capacity, ran, before, after, whole, uncertainty)
    if args.log is not None:
        io.write_text(args.log, "".join(json.dumps(asdict(event)) + "\n" for event in after.log))
    print(json.dumps(answer.row()) if args.json else answer.table())
    for job in after.jobs:
        if job.refused:
            least = f"the limit is {human(capacity)}, its plan got down to {human(job.refused)}"
            lower = "planners that wait for copies get lower (--planner heuristic)"
            complain(f"job {job.name}: refused: {least}; {lower}")
    return 1 if broken else 3 if any(job.refused for job in after.jobs) else 0


def _compared(
    jobs: Sequence[Job], before: Outcome, after: Outcome, broken: Mapping[str, Exception]
) -> tuple[Saving, list[_Ran]]:
    """What is saved of all together, and how each job ran."""
    whole, each = savings(after, before)
    unmanaged, planned, ran = steady(before), steady(after), []
    for job in jobs:
        one, error = after[job.name], broken.get(job.trace.name)
        both = None
        if job.name in each and one.end:
            both = unmanaged[job.name], planned[job.name], each[job.name]
        ran.append(_Ran(job, one, both, "" if error is None else failure(error)))
    return whole, ran


def _jobs(args: argparse.Namespace, machine: gpumem.Machine) -> list[Job]:
    """A job for each file, named after it."""
    from gpumem.jobs import Job
    from gpumem.trace.lifetimes import released

    count = len(args.file)
    known: dict[str, gpumem.Trace] = {}
    jobs: list[Job] = []
    arrive = each(args.arrive, count, "--arrive", moment)
    turns = each(args.iterations, count, "--iterations", count_of)
    leave = each(args.leave or "-", count, "--leave", lambda text, what: None if text == "-" else moment(text, what))
    ratio = each(args.ratio or "1", count, "--ratio", _part)
    for k, file in enumerate(args.file):
        if file not in known:
            trace = read_with_ops(source_of(file), machine)
            known[file] = released(trace) if args.activity else trace
        same = args.file[:k].count(file)
        name = known[file].name + (f"#{same + 1}" if same else "")
        while any(job.name == name for job in jobs):  # files of one name
            name += "'"
        jobs.append(Job(name, known[file], arrive[k], turns[k], leave[k], ratio[k]))
    return jobs


def _part(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{what}: {text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{what}: {value} is not in [0, 1]")
    return value


COMMAND = Command(
    "jobs",
    run,
    "run several jobs on one GPU, simulated",
    options=(
        option("file", nargs="+", metavar="FILE", help=f"{FILE}; one job each"),
        Section(
            "what to plan for",
            (
                option(
                    "--limit",
                    metavar="SIZE",
                    help=f"what all jobs may hold: {SIZE}, added up (default: what the machine has available)",
                ),
                *machine_flags("rtx2080ti"),
                option(
                    "--slowdown",
                    read=finite,
                    default=1.0,
                    metavar="S",
                    help="of k kernels at once each runs at 1 / (1 + S (k - 1)): 1 shares the GPU, 0 lets all run at "
                    "full speed (default: %(default)s)",
                ),
            ),
        ),
        Section(
            "when jobs come and go",
            (
                option(
                    "--arrive",
                    default="0",
                    metavar="T[,T]",
                    help="when jobs arrive, in ns, us, ms or s; the last counts on",
                ),
                option(
                    "--iterations",
                    default="20",
                    metavar="N[,N]",
                    help="after how many jobs leave (default: %(default)s)",
                ),
                option("--leave", metavar="T[,T]", help="when jobs leave, if that is earlier; - for never"),
            ),
        ),
        *SCHEDULING,
        uncertainty_flags(),
        option("--log", metavar="FILE", help="write the event log, one JSON object a line"),
        option("--json", action="store_true", help="print one JSON object"),
    ),
    examples=(
        "gpumem jobs vgg16 resnet18 --limit 70%",
        "gpumem jobs mlp3 mlp3 --arrive 0,5ms --planner heuristic",
        "gpumem jobs vgg16 vgg16 --limit 70% --planner waterwave",
        "gpumem jobs vgg16 --limit 80% --spread 0.5 --noise 0.05 --replan windows",
    ),
)
