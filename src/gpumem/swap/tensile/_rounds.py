"""Algorithm 1 for one job as compiled loops: try the biggest tensor at the peak, again and again.

A row is a window; `Board` has all that the loops read and write, `Biggest` which window over an op is the biggest.
`swap_rounds` is the way in from Python.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumem.base.jit import inlined, inner, jit
from gpumem.swap.facts import link, pinned, segment_tree as _tree
from gpumem.swap.facts.biggest import Biggest, biggest
from gpumem.swap.facts.link import Taken
from gpumem.swap.facts.pinned import Values
from gpumem.swap.tensile.peak import NO_COPY, away, ops_between
from gpumem.trace import I64, Bool


class Tensors(NamedTuple):
    """Columns over rows, ascending by value, then by `after`."""

    buffer: I64
    size: I64
    after: I64
    before: I64
    value: I64
    out_ns: I64
    in_ns: I64
    opens: I64  # ns: the access before the gap has ended
    closes: I64  # ns: the access after the gap starts
    first: I64  # the first and the last row of the value
    last: I64


class Made(NamedTuple):
    """Columns over rows: what has been decided, and in which order."""

    out_at: I64  # ns; `NO_COPY` where the host has the value
    in_at: I64
    out: I64  # ops, as in `Swap`
    release: I64
    prefetch: I64
    done: I64  # rows in the order in which they were swapped


class Board(NamedTuple):
    """What the rounds of a job read and write."""

    rows: Tensors
    made: Made
    start: I64  # ns of the ops, as in `Times`
    end: I64
    outs: Taken
    ins: Taken
    host: Values
    by_size: Biggest
    order: I64  # of each row of `by_size`, the row here
    place: I64  # and the other way round
    top: I64  # tree of the load
    add: I64
    on_host: I64  # values: the first row that is absent, -1 where the value was never copied out
    swapped: Bool  # buffers
    now: I64  # the row to try next, -1 if nobody has looked; how many are done; how many buffers are swapped
    n: int
    most: int  # buffers
    exact: bool  # accounting
    rest: bool


NEXT, DONE, BUFFERS = range(3)  # what `now` has


@inner
def _op(job: Board) -> int:
    """The op of the peak."""
    return int(_tree.first_largest(job.top, job.add)) // 2


@jit
def following(job: Board) -> int:
    """Return the row of the biggest tensor at the peak that is worth a try, -1 if there is none left."""
    if job.now[NEXT] < 0:
        found = biggest(job.by_size, _op(job))
        job.now[NEXT] = job.order[found] if found >= 0 else -1
    return int(job.now[NEXT])


@jit
def swap(job: Board, goal: int, budget: int, tries: int) -> int:
    """Try to swap tensors until the peak is at most `goal` bytes; a row that fails is not tried at this op again.

    Return how many tries are left where a link has no `room` for the next, else 0.
    """
    while tries > 0 and job.top[1] > goal:
        row = following(job)
        if row < 0:
            return 0
        copies = job.rows.last[row] - job.rows.first[row] + 2
        if min(link.room(job.outs), link.room(job.ins)) < copies:
            return tries
        job.now[NEXT] = -1
        first, stop = _tasks(job, row)
        if first < stop and _hold(job, budget, first, stop, row):
            _settle(job, first, stop, row)
        tries -= 1
    return 0


@inner
def _kill(job: Board, row: int) -> None:
    job.by_size.length[job.place[row]] = 0


@inlined
def _tasks(job: Board, row: int) -> tuple[int, int]:
    """Write the swap tasks that make the tensor of `row` absent at the peak, and return among which rows they are."""
    r = job.rows
    new = job.on_host[r.value[row]] < 0
    if new and not job.swapped[r.buffer[row]] and job.now[BUFFERS] >= job.most:
        _kill(job, row)
        return 0, 0
    if not new or not r.out_ns[row]:
        return (row, row + 1) if _into(job, row, row, NO_COPY) else (0, 0)
    for first in range(r.first[row], row + 1):
        stop = _from(job, first, row)
        if stop:
            return first, stop
    return 0, 0


@inlined
def _from(job: Board, first: int, row: int) -> int:
    """Copy the tensor out in gap `first`, and in again there and before the later accesses where it fits.

    Return the row behind the last one that was tried, 0 where it is not absent in gap `first` or at the peak.
    """
    r = job.rows
    stop = min(r.closes[first], job.start[_peak_after(job, row)])  # out before that op starts
    out = link.earliest(job.outs, r.opens[first], stop, r.out_ns[first])
    if out < 0 or not _into(job, first, row, out):
        return 0
    last = r.last[row] + 1 if job.rest else row + 1
    for k in range(first + 1, last):
        if not _into(job, k, row, NO_COPY) and k == row:
            return 0
    return int(last)


@inner
def _into(job: Board, k: int, row: int, out: int) -> bool:
    """Drop the tensor of `row` in gap `k`, copied out at `out` unless the host has it, and copy it in again."""
    r, m = job.rows, job.made
    out_ns = r.out_ns[k] if out != NO_COPY else 0
    begin = r.opens[k] if out == NO_COPY else out + out_ns
    if k == row:
        begin = max(begin, _back_from(job, row))
    m.in_at[k] = link.latest(job.ins, begin, r.closes[k], r.in_ns[k])
    m.out_at[k] = out
    m.prefetch[k] = -1
    if m.in_at[k] >= 0:
        ops = ops_between(job.start, job.end, r.after[k], r.before[k], out, out_ns, m.in_at[k])
        m.out[k], m.release[k], m.prefetch[k] = ops
    return bool(m.prefetch[k] >= 0)


@inner
def _peak_after(job: Board, row: int) -> int:
    """The op of the peak, as it follows the access before the gap of `row`."""
    after = job.rows.after[row]
    return int(after + (_op(job) - after) % job.n)


@inner
def _back_from(job: Board, row: int) -> int:
    """When the tensor may start to come in: the op of the peak has ended; by the paper's accounting, sooner."""
    peak = _peak_after(job, row)
    return int(job.end[peak] if job.exact else job.start[peak] - job.rows.in_ns[row] + 1)


@inlined
def _hold(job: Board, budget: int, first: int, stop: int, row: int) -> bool:
    """Let the host hold what is swapped through the gap of `row`; later gaps are left out where it has no room."""
    m = job.made
    for k in range(first, stop):
        if m.prefetch[k] < 0 or pinned.take(job.host, job.n, budget, k, m.out[k], m.prefetch[k]):
            continue
        m.prefetch[k] = -1
        if k <= row:
            for taken in range(first, k):
                if m.prefetch[taken] >= 0:
                    pinned.drop(job.host, job.n, taken)
            _kill(job, row)
            return False
    return True


@jit
def take(job: Board, rows: Tensors, made: Made, done: I64) -> None:
    """Take the links for copies of another job."""
    for k in done:
        if made.out_at[k] != NO_COPY:
            link.take(job.outs, made.out_at[k], rows.out_ns[k])
        link.take(job.ins, made.in_at[k], rows.in_ns[k])


@inlined
def _settle(job: Board, first: int, stop: int, row: int) -> None:
    """Count what was made: the load, the links, the rows that need no try any more."""
    r, m, since, earliest = job.rows, job.made, job.now[DONE], -1
    for k in range(first, stop):
        if m.prefetch[k] < 0:
            continue
        if earliest < 0:
            earliest = k
        _kill(job, k)
        back = away(job.start, r.before[k], m.prefetch[k], m.in_at[k] + r.in_ns[k], job.exact)
        _tree.add_around(job.top, job.add, 2 * job.n, 2 * m.release[k], 2 * back, -r.size[k])
        m.done[job.now[DONE]] = k
        job.now[DONE] += 1
    take(job, r, m, m.done[since : job.now[DONE]])
    if job.on_host[r.value[row]] < 0:
        job.on_host[r.value[row]] = earliest
    job.now[BUFFERS] += not job.swapped[r.buffer[row]]
    job.swapped[r.buffer[row]] = True
    if r.out_ns[row]:  # before its first absence a value would need a copy-out of its own
        for k in range(r.first[row], job.on_host[r.value[row]]):
            _kill(job, k)
