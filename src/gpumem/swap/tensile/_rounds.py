"""Algorithm 1 for one job as compiled loops: try to swap the biggest tensor at the peak, over and over.

A job is what does not change: its tensors' gaps by row, the times of its ops, its options. Its progress is what the
rounds write: the swap tasks so far, the link times and the host bytes that they take, the live bytes that they leave,
the rows that are still worth a try. `swap_rounds` calls this module from Python. Lines are those of the paper's
algorithm 1; docs/papers/tensile.md has them beside this reading.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inlined, inner, jit
from gpumem.swap.facts import link, pinned, segment_tree as _tree
from gpumem.swap.facts.biggest import Biggest, biggest
from gpumem.swap.facts.link import Taken
from gpumem.swap.facts.pinned import Values
from gpumem.swap.tensile.peak import NO_COPY, counts_from, ops_between
from gpumem.trace import I64, Bool


class TensorGaps(NamedTuple):
    """Columns over gaps between accesses of a tensor, ascending by value, then by `after`."""

    buffer: I64
    size: I64
    after: I64
    before: I64
    value: I64
    out_ns: I64
    in_ns: I64
    opens: I64  # ns: the access before the gap has ended
    closes: I64  # ns: the access after the gap starts
    first: I64  # the first and the last gap of the same value
    last: I64


class SwapTasks(NamedTuple):
    """Columns over gaps: when each is swapped, and which are, in the order in which that was decided."""

    out_at: I64  # ns; `NO_COPY` where the host has the value
    in_at: I64
    out: I64  # ops, as in `Swap`
    release: I64
    prefetch: I64  # -1 where the gap is not swapped
    done: I64  # the swapped gaps; the first counts[DONE] of these


class SwapJob(NamedTuple):
    """What the rounds of a job know and do not change."""

    gaps: TensorGaps
    start: I64  # ns of the ops, as in `Times`
    end: I64
    order: I64  # of each row of `SwapProgress.by_size`, the gap
    place: I64  # of each gap, its row
    n: int
    most: int  # buffers that may be swapped
    exact: bool  # accounting
    rest: bool  # whether later accesses get their swap-ins at once (line 36)


class SwapProgress(NamedTuple):
    """What the rounds of a job have decided, and what that takes."""

    tasks: SwapTasks
    outs: Taken  # link times
    ins: Taken
    host: Values
    by_size: Biggest  # which gap over an op is the biggest
    top: I64  # tree of the live bytes
    add: I64
    on_host: I64  # values: the first gap that is swapped, -1 where the value was never copied out
    swapped: Bool  # buffers
    counts: I64


# Indexes of `SwapProgress.counts`: the gap to try next, -1 where that has to be looked up; how many gaps and how many
# buffers are swapped.
NEXT, DONE, BUFFERS, COUNTS = range(4)
ROOT = 1  # the node of the tree of live bytes that has the peak


@inner
def _peak_op(progress: SwapProgress) -> int:
    return int(_tree.first_largest(progress.top, progress.add)) // 2


@jit
def next_gap(job: SwapJob, progress: SwapProgress) -> int:
    """Return the gap of the biggest tensor at the peak that is worth a try, -1 if there is none left."""
    if progress.counts[NEXT] < 0:
        row = biggest(progress.by_size, _peak_op(progress))
        progress.counts[NEXT] = job.order[row] if row >= 0 else -1
    return int(progress.counts[NEXT])


@jit
def swap(job: SwapJob, progress: SwapProgress, goal: int, budget: int, tries: int) -> int:
    """Try to swap tensors until the peak is at most `goal` bytes (lines 24 to 36).

    A gap that fails is not tried at this op once more: what it needs only becomes scarcer. Return how many tries are
    left where a link's columns are too short for the next one, else 0.
    """
    while tries > 0 and progress.top[ROOT] > goal:
        gap = next_gap(job, progress)
        if gap < 0:
            return 0
        copies = job.gaps.last[gap] - job.gaps.first[gap] + 2
        if min(link.room(progress.outs), link.room(progress.ins)) < copies:
            return tries
        progress.counts[NEXT] = -1
        first, stop = _propose(job, progress, gap)
        if first < stop and _reserve_host(job, progress, budget, (first, stop), gap=gap):
            _commit(job, progress, (first, stop), gap)
        tries -= 1
    return 0


@inner
def _strike_out(job: SwapJob, progress: SwapProgress, gap: int) -> None:
    """The gap is never to be tried any more."""
    progress.by_size.length[job.place[gap]] = 0


@inlined
def _propose(job: SwapJob, progress: SwapProgress, gap: int) -> tuple[int, int]:
    """Write swap tasks with which the tensor is off the device at the peak; return among which gaps, (0, 0): none."""
    gaps = job.gaps
    is_new = progress.on_host[gaps.value[gap]] < 0
    # Line 29: as many swapped tensors as the job's ratio allows.
    if is_new and not progress.swapped[gaps.buffer[gap]] and progress.counts[BUFFERS] >= job.most:
        _strike_out(job, progress, gap)
        return 0, 0
    if not is_new or not gaps.out_ns[gap]:  # the host has the value: a swap-in alone
        return (gap, gap + 1) if _schedule_in(job, progress, gap, gap, out=NO_COPY) else (0, 0)
    # Lines 20 to 22: where the swap-in before the first access does not fit, the copy-out is tried once more from the
    # end of that access on.
    for first in range(gaps.first[gap], gap + 1):
        stop = _schedule_out(job, progress, first, gap)
        if stop:
            return first, stop
    return 0, 0


@inlined
def _schedule_out(job: SwapJob, progress: SwapProgress, first: int, gap: int) -> int:
    """Copy the tensor out in gap `first`, and in there and before the later accesses where that fits.

    Return the gap behind the last one that was tried, 0 where it is on the device in gap `first` or at the peak.
    """
    gaps = job.gaps
    # Lines 4 to 6 and 25: the earliest free time of the link, with an end before the op of the peak starts.
    deadline = min(gaps.closes[first], job.start[_peak_behind(job, progress, gap)])
    out = link.earliest(progress.outs, gaps.opens[first], deadline, gaps.out_ns[first])
    if out < 0 or not _schedule_in(job, progress, first, gap, out=out):  # line 15: the swap-in before the first access
        return 0
    last = gaps.last[gap] + 1 if job.rest else gap + 1
    for later in range(first + 1, last):  # line 36: the rest of the accesses, in the order of time
        if not _schedule_in(job, progress, later, gap, out=NO_COPY) and later == gap:
            return 0
    return int(last)


@inner
def _schedule_in(job: SwapJob, progress: SwapProgress, at: int, gap: int, out: int) -> bool:
    """Swap gap `at` of the tensor of `gap` by the latest swap-in that fits; the copy-out starts at `out`, if any."""
    gaps, tasks = job.gaps, progress.tasks
    out_ns = gaps.out_ns[at] if out != NO_COPY else 0
    begin = gaps.opens[at] if out == NO_COPY else out + out_ns
    if at == gap:
        begin = max(begin, _earliest_in(job, progress, gap))
    tasks.in_at[at] = link.latest(progress.ins, begin, gaps.closes[at], gaps.in_ns[at])
    tasks.out_at[at] = out
    tasks.prefetch[at] = -1
    if tasks.in_at[at] >= 0:
        copies, accesses = (out, out_ns, tasks.in_at[at]), (gaps.after[at], gaps.before[at])
        tasks.out[at], tasks.release[at], tasks.prefetch[at] = ops_between(job.start, job.end, accesses, copies)
    return bool(tasks.prefetch[at] >= 0)


@inner
def _peak_behind(job: SwapJob, progress: SwapProgress, gap: int) -> int:
    """The op of the peak, counted on from the access before the gap."""
    after = job.gaps.after[gap]
    return int(after + (_peak_op(progress) - after) % job.n)


@inner
def _earliest_in(job: SwapJob, progress: SwapProgress, gap: int) -> int:
    """When the swap-in may start: the op of the peak has ended; by the paper's accounting it only may not end before.

    That counts a tensor from the end of its swap-in on (algorithm 2).
    """
    peak = _peak_behind(job, progress, gap)
    return int(job.end[peak] if job.exact else job.start[peak] - job.gaps.in_ns[gap] + 1)


@inlined
def _reserve_host(job: SwapJob, progress: SwapProgress, budget: int, proposed: tuple[int, int], gap: int) -> bool:
    """Reserve host bytes for what is proposed; gaps behind `gap` are left out where it does not suffice."""
    tasks, (first, stop) = progress.tasks, proposed
    for at in range(first, stop):
        if tasks.prefetch[at] < 0:
            continue
        if pinned.take(progress.host, job.n, budget, at, tasks.out[at], tasks.prefetch[at]):
            continue  # the host has room: it stays proposed
        tasks.prefetch[at] = -1
        if at <= gap:
            for taken in range(first, at):
                if tasks.prefetch[taken] >= 0:
                    pinned.drop(progress.host, job.n, taken)
            _strike_out(job, progress, gap)
            return False
    return True


@jit
def take_links(progress: SwapProgress, gaps: TensorGaps, tasks: SwapTasks, done: I64) -> None:
    """Take the link times of the copies of `done`, gaps of this job or of another."""
    for gap in done:
        if tasks.out_at[gap] != NO_COPY:
            link.take(progress.outs, tasks.out_at[gap], gaps.out_ns[gap])
        link.take(progress.ins, tasks.in_at[gap], gaps.in_ns[gap])


@inlined
def _commit(job: SwapJob, progress: SwapProgress, proposed: tuple[int, int], gap: int) -> None:
    """Make the proposed tasks progress: live bytes (algorithm 2), links, the gaps that need no try any more."""
    gaps, tasks, (first, stop) = job.gaps, progress.tasks, proposed
    begun, earliest = progress.counts[DONE], -1
    for at in range(first, stop):
        if tasks.prefetch[at] < 0:
            continue
        if earliest < 0:
            earliest = at
        _strike_out(job, progress, at)
        ends = tasks.in_at[at] + gaps.in_ns[at]
        back = counts_from(job.start, gaps.before[at], tasks.prefetch[at], ends, exact=job.exact)
        off_device = 2 * tasks.release[at], 2 * back  # positions of the tree: two for each op
        _tree.add_around(progress.top, progress.add, 2 * job.n, *off_device, -gaps.size[at])
        tasks.done[progress.counts[DONE]] = at
        progress.counts[DONE] += 1
    take_links(progress, gaps, tasks, tasks.done[begun : progress.counts[DONE]])
    value, buffer = gaps.value[gap], gaps.buffer[gap]
    if progress.on_host[value] < 0:
        progress.on_host[value] = earliest
    progress.counts[BUFFERS] += not progress.swapped[buffer]
    progress.swapped[buffer] = True
    if gaps.out_ns[gap]:  # to swap a gap before the first one would take a copy-out of its own
        for at in range(gaps.first[gap], progress.on_host[value]):
            _strike_out(job, progress, at)
