"""`gpumem jobs`: several jobs on one GPU, by the simulated clock."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import gpumem
from gpumem import io
from gpumem.base.errors import failure
from gpumem.base.units import amount, moment
from gpumem.cli.common.args import add_machine, count_of, each, finite, target_of
from gpumem.cli.common.files import FILE, read_with_ops, source_of
from gpumem.cli.common.parser import Commands, Group
from gpumem.cli.common.planning import SIZE
from gpumem.cli.common.progress import Progress, complain
from gpumem.cli.common.uncertainty import add_uncertainty, uncertainty_of
from gpumem.cli.job_scheduler import add_scheduling, scheduler
from gpumem.jobs.metrics import cells
from gpumem.pipeline import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem.jobs import Job, Outcome
T = TypeVar("T")
SHOWN = (1, 2, 3, 5, 10, 20)  # iterations


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "jobs",
        help="run several jobs on one GPU, simulated",
        description=run.__doc__,
        examples=[
            "gpumem jobs vgg16 resnet18 --limit 70%",
            "gpumem jobs mlp3 mlp3 --arrive 0,5ms --planner heuristic",
            "gpumem jobs vgg16 vgg16 --limit 70% --planner waterwave",
            "gpumem jobs vgg16 --limit 80% --spread 0.5 --noise 0.05 --replan windows",
        ],
    )
    p.add_argument("file", nargs="+", metavar="FILE", help=f"{FILE}; one job each")
    limits = p.add_argument_group("what to plan for")
    limits.add_argument(
        "--limit",
        metavar="SIZE",
        help=f"what all jobs may hold: {SIZE}, added up (default: what the machine has available)",
    )
    add_machine(limits, "rtx2080ti")
    slowdown = "of k kernels at once each runs at 1 / (1 + S (k - 1)): 1 shares the GPU, 0 lets all run at full speed"
    limits.add_argument("--slowdown", type=float, default=1.0, metavar="S", help=f"{slowdown} (default: %(default)s)")
    add_times(p.add_argument_group("when jobs come and go"))
    add_scheduling(p)
    add_uncertainty(p)
    p.add_argument("--log", metavar="FILE", help="write the event log, one JSON object a line")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)


def add_times(p: Group) -> None:
    """Add when jobs arrive and leave."""
    p.add_argument(
        "--arrive", default="0", metavar="T[,T]", help="when jobs arrive, in ns, us, ms or s; the last counts on"
    )
    p.add_argument(
        "--iterations", default="20", metavar="N[,N]", help="after how many jobs leave (default: %(default)s)"
    )
    p.add_argument("--leave", metavar="T[,T]", help="when jobs leave, if that is earlier; - for never")


def run(args: argparse.Namespace) -> int:
    """Run jobs that arrive, share one GPU and leave, planned together; compare with the same jobs without a plan."""
    from gpumem.jobs import Policy, by_iteration, simulate_jobs, unmanaged

    target = target_of(args)
    if args.half_duplex:
        target = target.with_(duplex=False)
    broken: dict[str, Exception] = {}
    uncertainty = uncertainty_of(args)
    run_together = scheduler(args, broken, uncertainty)
    finite(args, "slowdown")
    with Progress() as progress:
        jobs = _jobs(args, target, progress)
        peaks = sum(job.trace.peak_load for job in jobs)
        capacity = target.available if args.limit is None else amount(args.limit, peaks, "--limit")
        progress("running the jobs without a plan")
        before = simulate_jobs(
            jobs, target, max(peaks, 1), Policy(unmanaged), slowdown=args.slowdown, uncertainty=uncertainty
        )
        after = run_together(jobs, target, capacity, progress)
    row = _figures(args.planner, jobs, target, capacity, before, after)
    if not uncertainty.certain:
        row |= {"uncertainty": asdict(uncertainty), "iterations": [asdict(t) for t in by_iteration(after, before)]}
    for one, mine in zip(jobs, row["jobs"]):
        mine |= {"error": failure(broken[one.trace.name])} if one.trace.name in broken else {}
    if args.log is not None:
        io.write_text(args.log, "".join(json.dumps(asdict(event)) + "\n" for event in after.log))
    print(json.dumps(row) if args.json else "\n\n".join([_table(row), *_settling(row)]))
    for job in after.jobs:
        if job.refused:
            least = f"the limit is {report.human(capacity)}, its plan got down to {report.human(job.refused)}"
            lower = "planners that wait for copies get lower (--planner heuristic)"
            complain(f"job {job.name}: refused: {least}; {lower}")
    return 1 if broken else 3 if any(job.refused for job in after.jobs) else 0


def _jobs(args: argparse.Namespace, machine: gpumem.Machine, progress: Progress) -> list[Job]:
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
            trace = read_with_ops(source_of(file), machine, progress)
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


def _figures(
    planner: str, jobs: Sequence[Job], machine: gpumem.Machine, capacity: int, before: Outcome, after: Outcome
) -> dict[str, Any]:
    """Return all figures: bytes, nanoseconds, ratios; infinite ones as None."""
    from gpumem.jobs import makespan, savings, steady
    from gpumem.jobs.waterwave import WAYS

    whole, each = savings(after, before)
    if planner in WAYS:  # they hold their peaks in turn
        held = sum(before[name].peak[0] for name in each if before[name].peak)
        whole = replace(whole, msr=1 - after.peak / held if held else 0.0)
    unmanaged, planned = steady(before), steady(after)
    rows = []
    for job in jobs:
        one = after[job.name]
        row: dict[str, Any] = {"job": job.name, "arrive": job.arrival, "peak_load": job.trace.peak_load}
        row |= {"launch": one.launch, "leave": one.leave, "iterations": len(one.end), "refused": one.refused}
        if job.name in each and one.end:
            budget = max(one.budget[k] for k in planned[job.name].iterations)
            row |= {"budget": budget, "peak": planned[job.name].peak, "passive": sum(one.passive)}
            row |= {"iteration_ns_unmanaged": unmanaged[job.name].ns, "iteration_ns": planned[job.name].ns}
            row |= {"bytes_out": one.out, "bytes_in": one.into, "waits": one.waits, **each[job.name].row()}
        rows.append(row)
    together: dict[str, Any] = {"peak_unmanaged": before.peak, "peak": after.peak, "replans": len(after.replans)}
    together |= {"makespan_ns_unmanaged": makespan(before), "makespan_ns": makespan(after), **whole.row()}
    return {"planner": planner, "machine": machine.name, "capacity": capacity, "jobs": rows, "together": together}


def _settling(row: dict[str, Any]) -> list[str]:
    """The way from the first plans, by estimates, to the steady state, where durations are uncertain."""
    turns = row.get("iterations")
    if not turns:
        return []
    shown = sorted({k for k in (*SHOWN, len(turns)) if k <= len(turns)})
    lines = [["iteration", *map(str, shown)]]
    lines.append(["extra time", *(f"{turns[k - 1]['eor']:.4f}" for k in shown)])
    lines.append(["passive swap-ins", *(str(turns[k - 1]["passive"]) for k in shown)])
    return [f"Of all jobs, by iteration:\n\n{report.columns(lines)}"]


def _table(row: dict[str, Any]) -> str:
    from gpumem.jobs.waterwave import WAYS

    head = ["job", "peak load", "budget", "peak", "waited", "unmanaged", "iteration", "passive", "MSR", "EOR", "CBR"]
    lines = [head]
    for r in row["jobs"]:
        if "peak" not in r:
            why = "refused" if r["refused"] else "never ran"
            lines.append([r["job"], report.human(r["peak_load"]), why, *[""] * 8])
            continue
        sizes = [report.human(r[key]) for key in ("peak_load", "budget", "peak")]
        waited = r["launch"] - r["arrive"]
        times = [report.human_ns(round(ns)) for ns in (waited, r["iteration_ns_unmanaged"], r["iteration_ns"])]
        lines.append([r["job"], *sizes, *times, str(r["passive"]), *cells(r, 2)])
    t = row["together"]
    whole = [report.human_ns(t[key]) for key in ("makespan_ns_unmanaged", "makespan_ns")]
    before, after = (report.human(t[key]) for key in ("peak_unmanaged", "peak"))
    lines.append(["together", before, "", after, "", *whole, "", *cells(t, 2)])
    about = f"{len(row['jobs'])} jobs by {row['planner']} on {row['machine']}, limit of {report.human(row['capacity'])}"
    saved = "of that peak" if row["planner"] in WAYS else "of the peaks added up"
    told = f"`together`: the peaks of one moment, the time until the last job has left, the MSR {saved}."
    return f"{about}\n\n{report.columns(lines)}\n\n{told}\nPlans were made anew {t['replans']} times."
