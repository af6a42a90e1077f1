"""`gpumem jobs`: several jobs on one GPU, by the simulated clock."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import gpumem
from gpumem import evaluate, io, latency, papers, report
from gpumem.commands.args import add_machine, finite, one_word, target_of
from gpumem.commands.files import FILE, read_with_ops, source_of
from gpumem.commands.parser import Commands, Group
from gpumem.commands.planning import SIZE, of_use
from gpumem.commands.progress import Progress, complain, tell
from gpumem.names import choice
from gpumem.units import amount, moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumem.jobs import Job, Outcome
T = TypeVar("T")
TENSILE = ("link", "accounting", "least", "recompute", "rest")  # options of `schedule`


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    p = commands.add_parser(
        "jobs",
        help="run several jobs on one GPU, simulated",
        description=run.__doc__,
        examples=["gpumem jobs vgg16 resnet18 --limit 70%", "gpumem jobs mlp3 mlp3 --arrive 0,5ms --planner heuristic"],
    )
    p.add_argument("file", nargs="+", metavar="FILE", help=f"{FILE}; one job each")
    limits = p.add_argument_group("what to plan for")
    limits.add_argument(
        "--limit",
        metavar="SIZE",
        help=f"what all jobs may hold: {SIZE}, added up (default: what the machine has available)",
    )
    add_machine(limits, "rtx2080ti")
    limits.add_argument("--half-duplex", action="store_true", help="one copy engine for both directions")
    slowdown = "of k kernels at once each runs at 1 / (1 + S (k - 1)): 1 shares the GPU, 0 lets all run at full speed"
    limits.add_argument("--slowdown", type=float, default=1.0, metavar="S", help=f"{slowdown} (default: %(default)s)")
    add_times(p.add_argument_group("when jobs come and go"))
    add_planner(p.add_argument_group("how to plan"))
    add_tensile(p.add_argument_group("of the planner tensile"))
    p.add_argument("--log", metavar="FILE", help="write the event log, one JSON object a line")
    p.add_argument("--no-check", action="store_true", help="do not hold the event log against the naive oracle")
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


def add_planner(p: Group) -> None:
    """Add who plans, by what times, and when again."""
    p.add_argument(
        "--planner", default="tensile", metavar="NAME", help="tensile, none, or a swap planner for each job by itself"
    )
    p.add_argument(
        "--ratio", default="1", metavar="R[,R]", help="part of a job's tensors to swap at most; smaller goes first"
    )
    table = "predict times from a table of measurements (benchmarks/gpu.py --latency writes one)"
    p.add_argument("--latency", metavar="TABLE", help=table)
    p.add_argument(
        "--activity", action="store_true", help="release tensors after their last access (algorithm 3, line 2)"
    )
    p.add_argument("--drain", action="store_true", help="wait for all copies at the end of an iteration, as printed")
    drift = "drift that has all jobs planned anew (default: %(default)s)"
    p.add_argument("--threshold", type=float, default=0.3, metavar="X", help=drift)


def add_tensile(p: Group) -> None:
    """Add the options of TENSILE's scheduler."""
    p.add_argument("--link", metavar="NAME", help="global (one copy at a time) or job (copies of one job only)")
    p.add_argument("--accounting", metavar="NAME", help="exact, or paper, which underestimates the peak")
    p.add_argument("--least", action="store_true", default=None, help="swap as much as costs no time")
    p.add_argument("--no-recompute", dest="recompute", action="store_false", default=None, help="swap only")
    p.add_argument("--no-rest", dest="rest", action="store_false", default=None, help="swap in when a peak needs it")


def run(args: argparse.Namespace) -> int:
    """Run jobs that arrive, share one GPU and leave, planned together; compare with the same jobs without a plan."""
    from gpumem.jobs import Policy, simulate_jobs, unmanaged

    target = target_of(args)
    if args.half_duplex:
        target = target.with_(duplex=False)
    planner = _planner(args)
    finite(args, "slowdown", "threshold")
    with Progress() as progress:
        jobs = _jobs(args, target, progress)
        peaks = sum(job.trace.peak_load for job in jobs)
        capacity = target.available if args.limit is None else amount(args.limit, peaks, "--limit")
        clock = partial(simulate_jobs, machine=target, slowdown=args.slowdown)
        progress("running the jobs without a plan")
        before = clock(jobs, capacity=max(peaks, 1), policy=Policy(unmanaged, threshold=args.threshold))
        estimate = _estimate(args, target, progress)
        progress("running the jobs")
        policy = Policy(planner, drain=args.drain, threshold=args.threshold, estimate=estimate)
        after = clock(jobs, capacity=capacity, policy=policy)
        if not args.no_check:
            progress("checking the event log")
            evaluate.verify.jobs(after, jobs, target, capacity, args.slowdown).told(tell)
    row = _figures(args.planner, jobs, target, capacity, before, after)
    if args.log is not None:
        io.write_text(args.log, "".join(json.dumps(asdict(event)) + "\n" for event in after.log))
    print(json.dumps(row) if args.json else _table(row))
    for job in after.jobs:
        if job.refused:
            least = f"the limit is {report.human(capacity)}, its plan got down to {report.human(job.refused)}"
            complain(f"job {job.name}: refused: {least}; planners that wait for copies get lower (--planner heuristic)")
    return 3 if any(job.refused for job in after.jobs) else 0


def _planner(args: argparse.Namespace) -> Callable[..., Any]:
    """The memory scheduler that was asked for, with its options."""
    from gpumem.jobs import PLANNERS
    from gpumem.swap.tensile.peak import ACCOUNTING
    from gpumem.swap.tensile.planner import LINKS

    planner = choice(args.planner, PLANNERS, "--planner")
    one_word(args, "link", LINKS)
    one_word(args, "accounting", ACCOUNTING)
    given = {name: value for name in TENSILE if (value := getattr(args, name)) is not None}
    for name in given:
        of_use(f"--{'no-' if given[name] is False else ''}{name}", name, {args.planner: planner})
    return partial(planner, **given)


def _estimate(args: argparse.Namespace, machine: gpumem.Machine, progress: Progress) -> Callable[..., Any] | None:
    """What predicts times from a table of measurements, if one was given."""
    if args.latency is None:
        return None
    progress(f"learning from {args.latency}")
    try:
        predictor = latency.fit(latency.read_table(args.latency).rows)
    except ImportError as error:
        raise ValueError(f"--latency: {error}") from error
    return latency.estimator(machine, predictor, slowdown=args.slowdown)


def _jobs(args: argparse.Namespace, machine: gpumem.Machine, progress: Progress) -> list[Job]:
    """A job for each file, named after it."""
    from gpumem.jobs import Job
    from gpumem.swap.tensile.activity import released

    count = len(args.file)
    known: dict[str, gpumem.Trace] = {}
    jobs: list[Job] = []
    arrive = _each(args.arrive, count, "--arrive", moment)
    turns = _each(args.iterations, count, "--iterations", _count)
    leave = _each(args.leave or "-", count, "--leave", lambda text, what: None if text == "-" else moment(text, what))
    ratio = _each(args.ratio, count, "--ratio", _part)
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


def _each(text: str, count: int, what: str, read: Callable[[str, str], T]) -> list[T]:
    """One value for each job; the last one given counts for the rest."""
    values = [read(part.strip(), what) for part in text.split(",")]
    if len(values) > count:
        raise ValueError(f"{what}: {len(values)} values for {count} jobs")
    return values + values[-1:] * (count - len(values))


def _count(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) <= 10**6 or len(text) > 10:
        raise ValueError(f"{what}: {text[:40]!r} is not a number of iterations from 1 to a million")
    return int(text)


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

    whole, each = savings(after, before)
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


def _table(row: dict[str, Any]) -> str:
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
        lines.append([r["job"], *sizes, *times, str(r["passive"]), *papers.tensile.cells(r, 2)])
    t = row["together"]
    whole = [report.human_ns(t[key]) for key in ("makespan_ns_unmanaged", "makespan_ns")]
    before, after = (report.human(t[key]) for key in ("peak_unmanaged", "peak"))
    lines.append(["together", before, "", after, "", *whole, "", *papers.tensile.cells(t, 2)])
    about = f"{len(row['jobs'])} jobs by {row['planner']} on {row['machine']}, limit of {report.human(row['capacity'])}"
    told = "`together`: the peaks of one moment, the time until the last job has left, the MSR of the peaks added up."
    return f"{about}\n\n{report.columns(lines)}\n\n{told}\nPlans were made anew {t['replans']} times."
