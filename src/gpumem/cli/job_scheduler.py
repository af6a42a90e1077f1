"""Who runs the jobs of `gpumem jobs`: TENSILE's run-time system under some planner, or a policy of Waterwave."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gpumem
from gpumem import io, pool, swap
from gpumem.base import work
from gpumem.base.names import taken, unknown
from gpumem.base.units import amount, human
from gpumem.cli.common.args import check_file, count_of, each
from gpumem.cli.common.parser import Option, Section, finite, option, word
from gpumem.cli.common.planners import OPTION, OWN, of_use, planner_options
from gpumem.cli.common.planning import NO_CHECK
from gpumem.cli.common.progress import tell, tell_failure
from gpumem.execute import latency
from gpumem.jobs import verify

if TYPE_CHECKING:
    from gpumem.jobs import Job, Outcome
    from gpumem.simulator import Uncertainty
    from gpumem.swap import Task

    Run = Callable[[Sequence[Job], gpumem.Machine, int], Outcome]
KEYWORDS = {"split": "split", "order": "order", "priority": "turns"}  # that not all policies have
TENSILE = (  # of its scheduler, `schedule`
    option(
        "--link",
        read=word("gpumem.swap.tensile.planner:LINKS"),
        metavar="NAME",
        help="global (one copy at a time) or job (copies of one job only)",
    ),
    option(
        "--accounting",
        read=word("gpumem.swap.tensile.peak:ACCOUNTING"),
        metavar="NAME",
        help="exact, or paper, which underestimates the peak",
    ),
    option(
        "--ratio-of",
        read=word("gpumem.swap.tensile.planner:RATIOS"),
        metavar="NAME",
        help="--ratio is of a job's tensors (job), or of all swapped (system)",
    ),
    option("--least", action="store_true", default=None, help="swap as much as costs no time"),
    option("--no-recompute", dest="recompute", action="store_false", default=None, help="swap only"),
    option("--no-rest", dest="rest", action="store_false", default=None, help="swap in when a peak needs it"),
)
REPLANNING = (  # when jobs are planned again, as keywords of `Policy`
    option(
        "--replan",
        read=word("gpumem.jobs.policy:REPLAN"),
        metavar="sum|windows",
        help="plan anew by the sum of a job's times (the paper, the default), or by the windows of its copies",
    ),
    option("--threshold", read=finite, metavar="X", help="of sum: drift that is too much (default: 0.3)"),
    option(
        "--late",
        read=finite,
        metavar="X",
        help="of windows: how late copies may be, as a share of the iteration (default: 0.003)",
    ),
)
RUNTIME = (  # of jobs that copy: by what times they are planned, and when again
    option("--ratio", metavar="R[,R]", help="part of a job's tensors to swap at most; smaller goes first"),
    option(
        "--latency",
        metavar="TABLE",
        help="predict times from a table of measurements (benchmarks/gpu/__main__.py --latency writes one)",
    ),
    option(
        "--drain",
        action="store_true",
        default=None,
        help="wait for all copies at the end of an iteration, as printed",
    ),
    *REPLANNING,
    option("--half-duplex", action="store_true", default=None, help="one copy engine for both directions"),
)
TOGETHER = (  # of Waterwave's sharing policies
    option("--split", metavar="SIZE", help="of a node group: bytes, KiB/MiB/GiB (default: several are tried)"),
    option(
        "--order",
        read=word("gpumem.jobs.waterwave.node_groups:ORDERS"),
        metavar="NAME",
        help="of a job's ops: recorded, or depth (the longest path to an op)",
    ),
    option("--priority", metavar="N[,N]", help="iterations of each job in a round (default: 1)"),
    option(
        "--trace",
        metavar="FILE",
        help="write a round of as many as run together as one trace, placed (.json, .json.gz)",
    ),
    option(
        "--host-threads",
        type=int,
        metavar="N",
        help="1 for all (the default), or 2: one for each stream",
    ),
)
SCHEDULING = (  # who plans, and the options of each
    Section(
        "how to plan",
        (
            option(
                "--planner",
                default="tensile",
                metavar="NAME",
                help=f"tensile, none, or a swap planner for each job by itself ({OWN}); side by side by node groups "
                "(waterwave, waterwave-searched) or halves (waterwave-s), or in turn (temporal)",
            ),
            OPTION,
            option(
                "--activity", action="store_true", help="release tensors after their last access (algorithm 3, line 2)"
            ),
            NO_CHECK,
        ),
    ),
    Section("of planners that swap", RUNTIME),
    Section("of the planner tensile", TENSILE),
    Section("of jobs side by side", TOGETHER),
)


def scheduler(args: argparse.Namespace, broken: dict[str, Exception], uncertainty: Uncertainty) -> Run:
    """Return what runs the jobs as the options say; `broken`: for which traces the planner failed is noted there."""
    from gpumem.jobs import PLANNERS
    from gpumem.jobs.waterwave import SHARING_POLICIES

    if args.planner not in {**PLANNERS, **SHARING_POLICIES} and ":" not in args.planner:
        raise unknown(args.planner, {**PLANNERS, **SHARING_POLICIES}, "--planner")
    for stray in _given(args, (*RUNTIME, *TENSILE) if args.planner in SHARING_POLICIES else TOGETHER):
        which = _takers(stray.dest) if stray in TOGETHER else "planners that swap"
        raise ValueError(f"{stray.names[-1]}: no use to {args.planner}; it is an option of {which}")
    if args.option and args.planner in SHARING_POLICIES:
        raise ValueError(f"--option: no use to {args.planner}")
    if args.planner in SHARING_POLICIES and not uncertainty.certain:
        raise ValueError(f"--planner: {args.planner} runs jobs by their estimates; --spread and its kin are of no use")
    return _side_by_side(args) if args.planner in SHARING_POLICIES else _swapping(args, broken, uncertainty)


def _given(args: argparse.Namespace, options: Iterable[Option]) -> list[Option]:
    return [one for one in options if one.value(args) is not None]


def _takers(name: str) -> str:
    """The policies that an option is one of."""
    from gpumem.jobs.waterwave import SHARING_POLICIES

    return ", ".join(
        policy for policy, one in SHARING_POLICIES.items() if name not in KEYWORDS or taken(one, {KEYWORDS[name]: 0})
    )


def _side_by_side(args: argparse.Namespace) -> Run:
    """One of Waterwave's sharing policies."""
    from gpumem.jobs.waterwave import SHARING_POLICIES, CoSchedule, SlotLog, simulate_together
    from gpumem.simulator.sharing import share

    policy = SHARING_POLICIES[args.planner]
    if args.host_threads not in (None, 1, 2):
        raise ValueError(f"--host-threads: {args.host_threads} is neither 1 nor 2")
    if args.trace is not None:
        check_file(args.trace, (".json", ".json.gz"), "--trace")  # a CSV has no ops
    given = _policy_options(args, policy)
    weights = None if args.priority is None else each(args.priority, len(args.file), "--priority", count_of)

    def run(jobs: Sequence[Job], machine: gpumem.Machine, capacity: int) -> Outcome:
        def made(members: Sequence[Job], both: CoSchedule) -> None:
            outcome = both.pipeline
            held = f"{human(both.trace.peak_live_bytes)} held, {human(int(outcome.bound().max()))} at most"
            names = " + ".join(job.name for job in members)
            tell(f"{names}: {outcome.period} slots, {outcome.pairs} of them pairs; {held}")
            if not args.no_check:
                verify.co_schedule([job.trace for job in members], both, capacity).report_to(tell)
            if not largest or len(members) > len(largest[-1].ops):
                largest.append(both)

        work.tell("running the jobs side by side")
        largest: list[CoSchedule] = []
        more = {"slowdown": args.slowdown, "hosts": args.host_threads or 1, "weights": weights, "made": made}
        few = sum(job.trace.n * job.iterations for job in jobs) <= verify.EVENTS
        log = SlotLog() if few and not args.no_check else None
        outcome = simulate_together(jobs, machine, capacity, partial(policy, **given), **more, log=log)
        if log is not None:
            work.tell("checking the log")
            verify.waterwave(log, outcome, jobs, machine, capacity, args.slowdown)
        elif not args.no_check:
            tell("not checked: the log of what runs when, which would be too long")
        if args.trace is not None and largest:
            work.tell(f"writing {args.trace}")
            trace = share(largest[-1].trace, machine, args.slowdown)
            io.write(args.trace, trace, pool.best_fit(trace), machine=machine, source=" + ".join(args.file))
        return outcome

    return run


def _policy_options(args: argparse.Namespace, policy: Callable[..., Any]) -> dict[str, Any]:
    """The options of a sharing policy, as its keywords; one that it does not have is refused."""
    given: dict[str, Any] = {} if args.split is None else {"split": amount(args.split, 0, "--split")}
    given |= {} if args.order is None else {"order": args.order}
    for name, keyword in KEYWORDS.items():
        if getattr(args, name) is not None and not taken(policy, {keyword: 0}):
            raise ValueError(f"--{name}: no use to {args.planner}; it is an option of {_takers(name)}")
    return given | taken(policy, {"slowdown": args.slowdown, "hosts": args.host_threads or 1})


def _replanning(args: argparse.Namespace) -> dict[str, Any]:
    """By which rule jobs are planned anew, as keywords of `Policy`."""
    rule = args.replan or "sum"
    for name, of in (("threshold", "sum"), ("late", "windows")):
        if getattr(args, name) is not None and rule != of:
            raise ValueError(f"--{name}: no use to --replan {rule}; it is an option of --replan {of}")
    return {one.dest: one.value(args) for one in _given(args, REPLANNING)}


def _swapping(args: argparse.Namespace, broken: dict[str, Exception], uncertainty: Uncertainty) -> Run:
    """TENSILE's run-time system, under a planner."""
    from gpumem.jobs import Policy, simulate_jobs

    def failed(task: Task, error: Exception) -> None:
        if task.trace.name not in broken:  # jobs are planned anew, with the same error
            tell_failure(f"{task.trace.name}: {args.planner}", error, args.traceback)
        broken[task.trace.name] = error

    planner = _planner(args)
    planner = partial(planner, **taken(planner, {"failed": failed}))
    replanning = _replanning(args)

    def run(jobs: Sequence[Job], machine: gpumem.Machine, capacity: int) -> Outcome:
        estimate = _estimate(args, machine)
        work.tell("running the jobs")
        policy = Policy(planner, drain=bool(args.drain), estimate=estimate, **replanning)
        outcome = simulate_jobs(jobs, machine, capacity, policy, slowdown=args.slowdown, uncertainty=uncertainty)
        if not args.no_check:
            work.tell("checking the event log")
            verify.jobs(outcome, jobs, machine, capacity, args.slowdown, uncertainty).report_to(tell)
        return outcome

    return run


def _planner(args: argparse.Namespace) -> Callable[..., Any]:
    """The memory scheduler that was asked for, with its options."""
    planner, given = _named(args), _given(args, TENSILE)
    for one in given:
        of_use(one.names[-1], one.dest, {args.planner: planner})
    return partial(planner, **{one.dest: one.value(args) for one in given})


def _named(args: argparse.Namespace) -> Callable[..., Any]:
    """The memory scheduler of a name; a swap planner, one of the user's own too, with what `--option` says."""
    from gpumem.jobs import PLANNERS, separately

    if args.planner in PLANNERS and not args.option:
        return PLANNERS[args.planner]
    if args.planner in ("tensile", "none"):
        raise ValueError(f"--option: no use to {args.planner}")
    alone = swap.planner_of(args.planner, "--planner")
    return separately(alone.with_(**planner_options(args, {args.planner: alone}, flags=())))


def _estimate(args: argparse.Namespace, machine: gpumem.Machine) -> Callable[..., Any] | None:
    """What predicts times from a table of measurements, if one was given."""
    if args.latency is None:
        return None
    work.tell(f"learning from {args.latency}")
    try:
        predictor = latency.fit(latency.read_table(args.latency).rows)
    except ImportError as error:
        raise ValueError(f"--latency: {error}") from error
    return latency.estimator(machine, predictor, slowdown=args.slowdown)
