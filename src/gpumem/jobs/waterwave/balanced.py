"""A pipeline whose groups are searched: pairs that take equally long, as far as their memory allows.

Two jobs are a walk. A step is a slot: some atoms of A beside some of B, of one of them possibly none::

    A's atoms                     a step may not pass the end of an iteration, so the walk goes
       n +-------------------*    through the two marks: A ends while B is somewhere in its iteration,
         |           .---'   |    and the other way round. Where B is then is searched as well.
         |     .--'          |
     cut * --'               |    Steps that hold more than the limit are none.
         +-------------------+
         0      B's atoms   cut
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import NamedTuple, TypeVar

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.jit import jit
from gpumem.jobs.waterwave.node_groups import Partition
from gpumem.jobs.waterwave.pipeline import NO_LIMIT, Pipeline, Turn, feasible
from gpumem.simulator.machine import Machine
from gpumem.trace import F64, I64

# Atoms of a job while the ends of pairs are searched anywhere; with the first, the order of jobs is searched as well.
# Not tuned.
COARSE = (32, 64)
# What more atoms have to gain, as a fraction, so that rounds that cost the same are not all tried. Not tuned.
BETTER = 1e-4
# Jobs up to which all their orders are tried: (n - 1)! of them. Not tuned.
ORDERED = 4
# Ends that are tried around one that was found on fewer atoms. Not tuned.
NEAR = 7
FIRST, SECOND = 0, 1  # the two jobs of a walk: A, whose iteration ends, and B, whose iteration begins


T = TypeVar("T")


class _Step(NamedTuple):
    """How many atoms of each job of a walk have run."""

    first: int
    second: int


@strict
def takes(pipeline: Pipeline, *, slowdown: float = 0.0, sync_ns: float = 0.0) -> float:
    """Return what a round takes, in ns, if each slot takes what its two groups take side by side.

    Parameters
    ----------
    pipeline : Pipeline
    slowdown : float
        While two kernels run, each progresses `1 / (1 + slowdown)` as fast as alone. So groups of `a` and `b` ns take
        `max(a, b) + slowdown * min(a, b)`: at 0 they do not hinder each other, at 1 nothing is gained.
    sync_ns : float
        What it takes to begin a slot.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.jobs.waterwave import partition, pipeline
    >>> job = partition(bundled("vgg16"), Machine.named("v100"), 100 * 2**20)
    >>> both = pipeline([job, job], limit=1100 * 2**20)
    >>> [round(takes(both, slowdown=s) / 1e6, 1) for s in (0.0, 0.5, 1.0)]
    [45.3, 68.0, 90.6]
    """
    work = np.zeros((2, pipeline.period))
    for turn in pipeline.turns:
        np.add.at(work, (np.array(turn.stream), np.array(turn.slot) % pipeline.period), pipeline.parts[turn.job].ns)
    return float((work.max(0) + slowdown * work.min(0)).sum() + sync_ns * pipeline.period)


@strict
def balanced(
    parts: Sequence[Partition],
    machine: Machine,
    limit: int | None = None,
    *,
    slowdown: float = 0.0,
    sync_ns: float = 0.0,
) -> Pipeline:
    """Join small groups of jobs so that a round takes the least time that the limit allows.

    Parameters
    ----------
    parts : sequence of Partition
        The jobs, cut finely (see `atoms`); cuts are only made where these have one. A round runs each once.
    machine : Machine
    limit : int, optional
        Bytes that all jobs together may hold.
    slowdown, sync_ns : float
        What a slot takes, see `takes`. Without `sync_ns` the slowdown makes no difference to what is best, unless it
        is 1, where only the number of slots is left to save.

    Returns
    -------
    Pipeline
        Jobs in a cycle: the first part of each runs beside the last part of the one before, all others rest. Groups
        are of any length, and may both take and give back memory; the bound holds for each slot.

    Raises
    ------
    Infeasible
        A job cannot run while all others rest.
    ValueError
        No jobs; a slowdown outside [0, 1], a cost below 0.

    Notes
    -----
    Exact on the atoms, between the ends of the pairs: dynamic programming over how much of either job has run. The
    ends (where a job is when the one before it ends its iteration) are searched on `COARSE` atoms a job, exactly, then
    around the best ones on all atoms. The order of jobs is that in which they cost least, beyond `ORDERED` jobs the
    given one. O(atoms**4) a pair and end at most, less the tighter the limit.

    Two jobs that run beside each other the whole time are such a walk too, so with ample memory nothing is lost to
    the rule that forward runs beside backward, which takes twice as long.

    Examples
    --------
    >>> from gpumem.io import bundled
    >>> from gpumem.jobs.waterwave import atoms, partition, pipeline
    >>> machine, limit = Machine.named("v100"), 800 * 2**20
    >>> job = bundled("vgg16")
    >>> both = balanced([atoms(job, machine, 16)] * 2, machine, limit)
    >>> both.bound().max() <= limit
    np.True_
    >>> best = min(takes(pipeline([partition(job, machine, s * 2**20)] * 2, limit)) for s in range(5, 200, 15))
    >>> round(best / takes(both), 2)
    1.23
    """
    if not parts:
        raise ValueError("balanced: no jobs")
    if not 0 <= slowdown <= 1:
        raise ValueError(f"slowdown: {slowdown} is not in [0, 1]")
    if not 0 <= sync_ns < np.inf:
        raise ValueError(f"sync_ns: {sync_ns} is not finite and at least 0")
    feasible(parts, limit)
    if len(parts) == 1:
        whole = Partition.at(parts[0].trace, machine, [0, parts[0].trace.n], 0, order=parts[0].order)
        return Pipeline((whole,), (Turn(0, (0,), (0,)),), 1)
    headroom = NO_LIMIT if limit is None else limit - sum(part.rest for part in parts)
    jobs = [_Job.of(part) for part in parts]
    price = _Price(headroom, slowdown, sync_ns, work=sum(int(job.ns[-1]) for job in jobs), most=np.inf)
    best = _finer(_ordered([job.coarser(COARSE[0]) for job in jobs], price), jobs, price)
    ends = [*best.ends, best.ends[0]]
    walks = [
        _walk(first, second, ends[index], ends[index + 1], price=price)
        for index, (first, second) in enumerate(_ring(best.jobs))
    ]
    return _made(parts, machine, best, walks)


class _Price(NamedTuple):
    """What walks may hold, and what they cost."""

    headroom: int  # bytes above what all jobs hold at rest
    slowdown: float
    sync_ns: float
    work: int  # ns of all jobs together
    most: float  # ns of a round that is known


class _Best(NamedTuple):
    """Jobs in the order in which they follow one another, and how much of each runs beside the one before."""

    order: list[int]
    jobs: list[_Job]
    ends: list[int]
    cost: float


class _Walks(NamedTuple):
    """The cheapest walks from one start to each pair of cuts of A and B, float64 or int64[a, b]."""

    cost: F64  # ns
    slots: I64
    from_first: I64  # A's cut before the last step
    from_second: I64  # B's


class _Job(NamedTuple):
    """A job's atoms, in bytes above what it holds at rest."""

    ns: I64  # passed at each cut
    held: I64  # at each cut
    top: I64  # the most in each atom
    peak: int  # the cut at the peak
    at: I64  # which cut of the partition each is

    @classmethod
    def of(cls, part: Partition) -> _Job:
        ns, held = np.append(0, np.cumsum(part.ns)), part.held - part.rest
        return cls(ns, held, top=held[:-1] + part.inside, peak=part.angs, at=np.arange(len(part) + 1))

    def coarser(self, count: int) -> _Job:
        """At most so many atoms, the peak among the cuts."""
        at = np.unique(np.append(np.linspace(0, len(self.top), count).astype(np.int64), self.peak))
        top = np.maximum.reduceat(self.top, at[:-1])
        return _Job(self.ns[at], self.held[at], top, peak=int(np.searchsorted(at, self.peak)), at=at)


def _ring(items: Sequence[T]) -> list[tuple[T, T]]:
    """Each item and the one behind it, the first behind the last."""
    return list(zip(items, [*items[1:], items[0]]))


def _ordered(jobs: Sequence[_Job], price: _Price) -> _Best:
    """The best order of the jobs."""
    count = len(jobs)
    pairs = permutations(range(count), 2) if count <= ORDERED else zip(range(count), [*range(1, count), 0])
    every = [np.arange(len(job.at)) for job in jobs]
    costs = {
        (one, other): _costs(jobs[one], jobs[other], every[one], every[other], price=price) for one, other in pairs
    }
    candidates = []
    for rest in permutations(range(1, count)) if count <= ORDERED else [tuple(range(1, count))]:
        order = [0, *rest]
        cost, ends = _closed([costs[pair] for pair in zip(order, [*rest, 0])])
        candidates.append(_Best(order, [jobs[one] for one in order], ends, cost))
    return min(candidates, key=lambda best: best.cost)


def _finer(best: _Best, jobs: Sequence[_Job], price: _Price) -> _Best:
    """The same order on more atoms: ends anywhere, then on all atoms near the best ones."""
    for count in (*COARSE[1:], 0):
        refined = [jobs[index].coarser(count) if count else jobs[index] for index in best.order]
        candidates = [
            np.arange(len(job.at)) if count else _near(few, job, end)
            for few, job, end in zip(best.jobs, refined, best.ends)
        ]
        cheaper = price._replace(most=best.cost * (1 - BETTER))
        tables = [
            _costs(first, second, ends, behind, price=cheaper)
            for (first, second), (ends, behind) in zip(_ring(refined), _ring(candidates))
        ]
        cost, ends = _closed(tables)
        if cost < best.cost:
            best = _Best(best.order, refined, [int(row[end]) for row, end in zip(candidates, ends)], cost)
    return best


def _near(few: _Job, job: _Job, end: int) -> I64:
    """Where an end may be that was found on fewer atoms: around there, at the peak, at the ends of the iteration."""
    low, high = (int(np.searchsorted(job.at, few.at[np.clip(end + by, 0, len(few.at) - 1)])) for by in (-1, 1))
    return np.unique([*np.linspace(low, high, NEAR).astype(np.int64), job.peak, 0, len(job.top)])


def _costs(first: _Job, second: _Job, ends: I64, behind: I64, price: _Price) -> F64:
    """What a pair costs from each of A's cuts `ends` to A's end and each of B's cuts `behind`."""
    return np.array([_walked(first, second, int(end), price).cost[-1, behind] for end in ends])


def _closed(costs: Sequence[F64]) -> tuple[float, list[int]]:
    """The cheapest ends all around the ring: row `e` of each table begins where column `e` of the one before ends."""
    best: tuple[float, list[int]] = (np.inf, [])
    for first in range(len(costs[0])):
        cost, came = costs[0][first], list[I64]()
        for table in costs[1:]:
            through = cost[:, None] + table
            came.append(np.argmin(through, axis=0))
            cost = through.min(axis=0)
        if cost[first] < best[0]:
            ends = [first]
            for row in reversed(came):
                ends.append(int(row[ends[-1]]))
            best = float(cost[first]), [first, *reversed(ends[1:])]
    return best


def _walked(first: _Job, second: _Job, end: int, price: _Price) -> _Walks:
    """The walks from A's cut `end` and B's start to anywhere."""
    shape = len(first.at), len(second.at)
    walks = _Walks(np.full(shape, np.inf), *(np.zeros(shape, np.int64) for _ in range(3)))
    walks.cost[end, 0] = 0.0
    _search(first, second, end, price, walks)
    return walks


@jit
def _search(first: _Job, second: _Job, end: int, price: _Price, walks: _Walks) -> None:
    """Fill `walks`, in the order of cuts: each step goes forward, so what leads to a pair of cuts is known before it.

    A walk is given up where no round through it can take less than `price.most`. A slot of `a` and `b` ns takes
    (1 - slowdown) max(a, b) + slowdown (a + b). Of all that is left to run in the round, the sums a + b add up to
    `left`, and the maxima to no less than the rest of A, the rest of B, or half of `left`.
    """
    for cut_a in range(end, len(first.held)):
        for cut_b in range(len(second.held)):
            done_a, done_b = first.ns[cut_a] - first.ns[end], second.ns[cut_b]
            left = price.work - done_a - done_b
            longest = max(first.ns[-1] - done_a, second.ns[-1] - done_b, left / 2)
            cost = walks.cost[cut_a, cut_b]
            bound = cost + price.slowdown * left + (1 - price.slowdown) * longest
            if cost < np.inf and bound <= price.most:
                _step(first, second, _Step(cut_a, cut_b), price, walks)


@jit
def _step(first: _Job, second: _Job, at: _Step, price: _Price, walks: _Walks) -> None:
    """Try each slot that begins at these cuts; of walks that cost the same the one with fewer slots is kept.

    Longer groups hold no less at their peak, so the first one above the headroom ends the loop.
    """
    peak_a = first.held[at.first]
    for next_a in range(at.first, len(first.held)):
        if next_a > at.first:
            peak_a = max(peak_a, first.top[next_a - 1])
        if peak_a + second.held[at.second] > price.headroom:
            break
        ns_a, peak_b = first.ns[next_a] - first.ns[at.first], second.held[at.second]
        for next_b in range(at.second, len(second.held)):
            if next_b > at.second:
                peak_b = max(peak_b, second.top[next_b - 1])
            if peak_a + peak_b > price.headroom:
                break
            if next_a + next_b == at.first + at.second:
                continue  # a slot without any atom
            ns_b = second.ns[next_b] - second.ns[at.second]
            cost = walks.cost[at.first, at.second] + max(ns_a, ns_b) + price.slowdown * min(ns_a, ns_b) + price.sync_ns
            slots = walks.slots[at.first, at.second] + 1
            known = walks.cost[next_a, next_b]
            if cost < known or (cost == known and slots < walks.slots[next_a, next_b]):
                walks.cost[next_a, next_b], walks.slots[next_a, next_b] = cost, slots
                walks.from_first[next_a, next_b], walks.from_second[next_a, next_b] = at.first, at.second


def _walk(first: _Job, second: _Job, end: int, behind: int, price: _Price) -> list[_Step]:
    """The cheapest walk from A's cut `end` and B's start to A's end and B's cut `behind`."""
    walks = _walked(first, second, end, price)
    steps = [_Step(len(first.top), behind)]
    while steps[-1] != (end, 0):
        steps.append(_Step(int(walks.from_first[steps[-1]]), int(walks.from_second[steps[-1]])))
    return steps[::-1]


def _made(parts: Sequence[Partition], machine: Machine, best: _Best, walks: Sequence[list[_Step]]) -> Pipeline:
    """The pipeline of walks, one behind the other: a job's first groups are in the walk before its own."""
    first = np.cumsum([0, *(len(walk) - 1 for walk in walks)]).tolist()  # slot with which each walk begins
    period, partitions, turns = first[-1], list(parts), list[Turn]()
    for place, job in enumerate(best.order):
        ups = _groups(walks[place - 1], SECOND, first[place - 1] if place else first[-2] - period)
        downs = _groups(walks[place], FIRST, first[place])
        cuts = best.jobs[place].at[[0, *(cut for cut, _ in ups + downs)]]
        part = parts[job]
        angs = int((cuts <= part.angs).sum()) - 1
        partitions[job] = Partition.at(part.trace, machine, part.cuts[cuts].tolist(), angs, order=part.order)
        slots = [slot for _, slot in ups + downs]
        later = period if slots[0] < 0 else 0  # slots count from the round in which the turn begins
        turns.append(Turn(job, tuple(slot + later for slot in slots), (0,) * len(ups) + (1,) * len(downs)))
    return Pipeline(tuple(partitions), tuple(sorted(turns, key=lambda turn: turn.slot[0])), period)


def _groups(walk: list[_Step], which: int, first: int) -> list[tuple[int, int]]:
    """The groups that one of two jobs runs in a walk: the cut at the end of each, and its slot."""
    return [
        (reached[which], first + step)
        for step, (begun, reached) in enumerate(pairwise(walk))
        if reached[which] > begun[which]
    ]
