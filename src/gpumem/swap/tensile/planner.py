"""TENSILE: swap what the peak holds, biggest tensor first, over all jobs that share a GPU, then recompute.

Read `peak` (algorithm 2) and `swap_rounds` (algorithm 1) beside this file (algorithm 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpumem.base import work
from gpumem.base.arguments import strict, strict_fields
from gpumem.base.errors import NotReached
from gpumem.base.names import one_of
from gpumem.simulator.machine import Machine
from gpumem.swap.facts.limits import fits
from gpumem.swap.facts.options import option
from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.planner import PlannerRecord, plans
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.peak import ACCOUNTING
from gpumem.swap.tensile.recompute_rounds import RecomputeRounds
from gpumem.swap.tensile.swap_rounds import SwapRounds
from gpumem.trace import Trace

LINKS = ("global", "job")
RATIOS = ("job", "system")
# Tries of one job between two checks of the deadline, which a compiled loop cannot do. Not tuned; some milliseconds.
TRIES = 1000
# The authors' code ends when the last `WINDOW` sums of peaks differ by less than this share of them.
WINDOW, CONVERGED = 3, 0.0005
ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996 in floating point, and has to be 29 buffers


@strict
def schedule(  # noqa: PLR0913  a planner's options are its interface
    tasks: Sequence[Task],
    machine: Machine,
    capacity: int,
    *,
    link: str = "global",
    accounting: str = "exact",
    rest: bool = True,
    recompute: bool = True,
    least: bool = False,
    ratio_of: str = "job",
    rounds: int | None = None,
    seconds: float | None = None,
) -> list[Scheduled]:
    """Schedule swaps and recomputations for jobs that share a GPU (algorithm 3).

    Parameters
    ----------
    tasks : sequence of Task
    machine : Machine
        Gives copy times, one copy engine or two, and the pinned-host budget of all jobs together.
    capacity : int
        Bytes that all jobs together may hold: the sum of their peaks. Where it cannot be reached the schedule gets
        as low as it can.
    link : str
        `global`: a copy of one job takes the link from all. `job`: from its own copies only (the authors' code).
    accounting : str
        `exact`, or `paper`, which counts a swapped-in tensor from the end of its copy; see `peak`.
    rest : bool
        Whether the later accesses of a swapped tensor get their swap-ins at once, as printed, or when they lie over
        a peak.
    recompute : bool
        Whether to recompute where swapping does not do.
    least : bool
        Go on with swaps below the capacity, as low as they get (as printed).
    ratio_of : str
        What a task's `ratio` is a share of: the buffers of its `job`, or the tensors that are swapped in the whole
        `system` (section 4.1). By the latter, as in line 29, a job may swap one more while it has no larger share.
    rounds : int, optional
        After so many successes, stop when the last three sums of peaks differ by less than 0.05 % (the authors'
        code: 100).
    seconds : float, optional
        Stop after so many; what is swapped by then depends on the machine.

    Returns
    -------
    list of Scheduled
        One for each task.

    Raises
    ------
    ValueError
        An unknown link or accounting, a capacity below 1, a ratio outside [0, 1].

    Notes
    -----
    O((n + m) log n + k (m + c)) for m gaps, k tries and c copies on a link; docs/papers/tensile.md has the
    paper's pseudo-code beside this reading. Each success lowers the live bytes at the op of a job's peak, so the rounds
    end. On the common link a copy of one job takes the time at which it runs in an iteration that starts with the
    others'; jobs whose iterations differ in length drift apart, which no plan can foresee (section 4.1).

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("vgg16"), Machine.named("rtx2080ti")
    >>> task = Task(trace, machine.durations(trace))
    >>> both = schedule([task, task], machine, 2 * trace.peak_live_bytes * 9 // 10)
    >>> sum(job.peak for job in both) <= 2 * trace.peak_live_bytes * 9 // 10
    True
    >>> [job.plan.apply(trace).peak_live_bytes == job.peak for job in both]
    [True, True]

    References
    ----------
    Zhang et al., TENSILE, section 4, algorithms 1 to 3.
    """
    one_of("link", link, LINKS)
    one_of("accounting", accounting, ACCOUNTING)
    one_of("ratio_of", ratio_of, RATIOS)
    if capacity < 1:
        raise ValueError(f"capacity: {capacity} bytes is below 1")
    hosts = list[Pinned]()
    jobs = [
        SwapRounds(
            task.trace,
            machine,
            task.duration,
            most=most(task) if ratio_of == "job" else len(task.trace.buffers),
            hosts=hosts,
            accounting=accounting,
            rest=rest,
        )
        for task in tasks
    ]
    shares = [1.0 if ratio_of == "job" else task.ratio for task in tasks]
    _swap(jobs, 0 if least else capacity, shared=link == "global", rounds=rounds, shares=shares)
    dropped: list[list[Recompute]] = [[] for _ in tasks]
    if recompute and sum(job.peak for job in jobs) > capacity and not work.over():
        dropped = _recompute([RecomputeRounds(job, task.duration) for job, task in zip(jobs, tasks)], capacity)
    return [_scheduled(job, more) for job, more in zip(jobs, dropped)]


def most(task: Task) -> int:
    """How many buffers of a job may be swapped."""
    device = int((~task.trace.buffers.host).sum())
    return math.floor(task.ratio * device + ROUNDING)


def _swap(jobs: Sequence[SwapRounds], goal: int, *, shared: bool, rounds: int | None, shares: Sequence[float]) -> None:
    """Swap the biggest tensor of all peaks, over and over (algorithm 3, lines 3 to 9).

    `shares`: the share of each job in all that is swapped, at most.
    """
    # One job alone may try many tensors in a call; several take turns, and `rounds` counts each success.
    tries = TRIES if len(jobs) == 1 and rounds is None else 1
    sums = [sum(job.peak for job in jobs)]
    while sums[-1] > goal and not _has_converged(sums, rounds) and not work.over():
        swapped = [len(job.done) for job in jobs]
        may_swap = [share and count <= share * sum(swapped) for count, share in zip(swapped, shares)]
        # Of equal tensors that of the higher peak, then that of the first job.
        tensors = [(job.biggest(), job.peak, -index) for index, job in enumerate(jobs) if may_swap[index]]
        size, peak, index = max(tensors, default=(-1, 0, 0))
        if size < 0:
            return
        job = jobs[-index]
        done = job.swap(goal - sums[-1] + peak, tries)
        if not len(done):
            continue
        sums.append(sum(job.peak for job in jobs))
        for other in jobs if shared else ():
            if other is not job:
                other.take_links(job, done)


def _has_converged(sums: Sequence[int], rounds: int | None) -> bool:
    """Whether the sum of the peaks falls no more, as the authors' code judges it."""
    last = sums[-WINDOW:]
    return rounds is not None and len(sums) > max(rounds, 2) and max(last) - min(last) < CONVERGED * max(last)


def _recompute(jobs: Sequence[RecomputeRounds], capacity: int) -> list[list[Recompute]]:
    """Recompute what saves most bytes per ns (MSPS) at any peak, until the capacity is reached (lines 10 to 12)."""
    while sum(job.peak for job in jobs) > capacity and not work.over():
        best = [(job, job.best()) for job in jobs]
        job, row = max(best, key=lambda pair: pair[0].msps(pair[1]), default=(None, -1))
        if job is None or row < 0:
            break
        job.drop(row)
    return [job.taken for job in jobs]


def _scheduled(job: SwapRounds, dropped: Sequence[Recompute]) -> Scheduled:
    """Put the decisions in the order in which their copies in start."""
    swaps, delays = job.swaps()
    delays += [(0, 0)] * len(dropped)
    return Scheduled(Plan.of(job.trace, [*swaps, *dropped]), job.peak, tuple(delays))


@strict_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Tensile(PlannerRecord):
    """The planner `tensile` and its options."""

    accounting: str = option("exact", ACCOUNTING)
    rest: bool = True
    recompute: bool = True
    ratio: float = option(1.0)


@plans(Tensile)
def tensile(
    trace: Trace,
    machine: Machine,
    limit: int,
    *,
    accounting: str = "exact",
    rest: bool = True,
    recompute: bool = True,
    ratio: float = 1.0,
    seconds: float | None = None,
) -> Plan:
    """Plan swaps, then recomputations, that bring one job's peak down to `limit` bytes without a wait for a copy.

    Parameters
    ----------
    trace, machine, limit
        The contract of a planner, and what it raises, stands in `gpumem.swap`.
    accounting, rest, recompute, ratio
        As in `schedule` and `Task`. With `paper` accounting the live bytes may exceed the limit.
    seconds : float, optional
        The whole time; see `gpumem.swap`.

    Raises
    ------
    NotReached
        Swaps that hide behind computation, and recomputations, do not get there (`reached`: the lowest peak).

    Notes
    -----
    As `schedule` for one task, with durations of the machine. TENSILE never lets a computation wait for a copy, so
    on a fast GPU with a slow link it does not get far; `search` and `heuristic` do, and wait.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> trace, machine = bundled("resnet18"), Machine.named("rtx2080ti")
    >>> limit = trace.peak_live_bytes * 8 // 10
    >>> tensile(trace, machine, limit).apply(trace).peak_live_bytes <= limit
    True

    References
    ----------
    Zhang et al., TENSILE, section 4.
    """
    if fits(trace, limit):
        return Plan.of(trace)
    task = Task(trace, machine.durations(trace), ratio)
    (job,) = schedule([task], machine, limit, accounting=accounting, rest=rest, recompute=recompute)
    if job.peak > limit:
        raise NotReached(job.peak, limit, hint=work.hint("TENSILE lets no computation wait for a copy"))
    return job.plan
