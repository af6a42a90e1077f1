"""Origins: what one whole write of a buffer and the changes in place after it made, and which ops make one again.

A *whole write* is an op that writes a buffer without reading it. What reads a buffer and writes it changes it in place,
so it belongs to the value that was there::

    op      w        c      c'            w2
    A    ===[whole]==[in place]===========[whole]=====
            |---- one value, made by w, c, c' ----|

A *version* is a value after some of its changes. Its *chain* is what makes it: the whole write and those changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import INPUT, OPT_STATE, PARAM

FINE, NO_WHOLE, OVER_BOUNDARY, SOURCE, COPY, STATISTIC, LASTING, WRAPS, RANDOM, NOT_LEFT, ANYWAY = range(11)
REASONS = (
    "",
    "no op makes it as a whole",
    "it was made before the iteration boundary",
    "its data comes from outside, and may not come again",
    "it came by a copy",
    "an op updates it as a statistic, which happens once an iteration",
    "it is a parameter or optimizer state",
    "the gap wraps the iteration boundary",
    "it is random, and the host has no room for the state of the generator",
    "reruns at that place change it on",
    "it comes back there anyway",
)


class Versions(NamedTuple):
    """Columns over versions: `writer[first:stop]` is the chain; `why` it cannot run again, an index into `REASONS`."""

    first: I64
    stop: I64
    why: I64


class Origins(NamedTuple):
    """Who makes the values of a trace and who reads them, as columns that compiled loops read.

    Statistics are left out of reads and writes, since no rerun touches them. Reads and writes are rows by op.
    """

    n: int
    writer: I64  # the ops that write each buffer, by buffer, ascending
    goes_on: Bool  # whether each of these changes what the one before it left
    read_ptr: I64  # n + 1
    read: I64  # the buffer
    found: Versions  # what the op finds in it
    last: I64  # the last place that finds the same there, without any plan
    dies: Bool  # whether it is so because the lifetime ends
    write_ptr: I64  # n + 1
    write: I64  # the buffer
    made: I64  # the whole write of the value that the op writes or changes, -1 if there is none
    access_ptr: I64  # all accesses, by buffer
    access: I64  # the op, ascending
    left: Versions  # what the buffer holds after it

    @classmethod
    def of(cls, trace: Trace) -> Origins:
        """Look up all accesses: O(accesses log accesses)."""
        a = _Accesses.of(trace)
        bad = _Obstacles.of(trace, a)
        found, left = (_versions(a, bad, stop) for stop in (a.before, a.after))
        last, dies = _lasts(trace, a)
        by_op = np.argsort(a.op, kind="stable")
        reads = by_op[(a.reads & ~a.statistic)[by_op]]
        writes = by_op[(a.writes & ~a.statistic)[by_op]]
        steps, ptr = np.arange(trace.n + 1), np.searchsorted(a.buffer, np.arange(len(trace.buffers) + 1))
        return cls(
            trace.n,
            a.op[a.writes],
            (a.reads & (a.life == np.roll(a.life, 1)))[a.writes],
            np.searchsorted(a.op[reads], steps).astype(np.int64),
            a.buffer[reads],
            Versions(*(column[reads] for column in found)),
            last[reads],
            dies[reads],
            np.searchsorted(a.op[writes], steps).astype(np.int64),
            a.buffer[writes],
            np.append(a.op[a.writes], -1)[np.where(left.first < left.stop, left.first, -1)[writes]],
            ptr.astype(np.int64),
            a.op,
            left,
        )

    def without(self, ops: Bool) -> Origins:
        """Return the same, but that none of `ops`, bool[n], may run again."""
        through = np.concatenate([[0], np.cumsum(ops[self.writer])])

        def barred(v: Versions) -> Versions:
            runs = through[v.stop] > through[v.first]
            return v._replace(why=np.where(runs & (v.why == FINE), RANDOM, v.why))

        return self._replace(found=barred(self.found), left=barred(self.left))

    def last_access(self, buffer: int) -> int:
        """Return the last op of the iteration that accesses a buffer, -1 if there is none."""
        lo, hi = int(self.access_ptr[buffer]), int(self.access_ptr[buffer + 1])
        return int(self.access[hi - 1]) if lo < hi else -1

    def after(self, buffer: int, op: int) -> int:
        """Return the row of `left` after access `op` of `buffer`."""
        lo, hi = int(self.access_ptr[buffer]), int(self.access_ptr[buffer + 1])
        return lo + int(np.searchsorted(self.access[lo:hi], op))


class _Accesses(NamedTuple):
    """All accesses by buffer, then op; those of one lifetime lie together."""

    buffer: I64
    op: I64
    reads: Bool
    writes: Bool
    statistic: Bool
    old: Bool  # of a lifetime that began before the iteration
    before: I64  # rows of writes before it
    after: I64  # and through it
    life: I64  # the first access of the lifetime

    @classmethod
    def of(cls, trace: Trace) -> _Accesses:
        b, touched, kept = trace.buffers, trace.accesses(), trace.statistics
        buffer, op = touched.op.rows(), touched.op.idx
        statistic = np.isin(buffer * trace.n + op, kept.idx * trace.n + kept.rows())
        old = trace.eternal[buffer] | (op < b.end[buffer] - trace.n)
        after = np.cumsum(touched.writes).astype(np.int64)
        begins = (np.diff(buffer, prepend=-1) != 0) | (np.diff(old, prepend=False) & ~old)
        life = np.maximum.accumulate(np.where(begins, np.arange(len(op)), 0))
        before = after - touched.writes.astype(np.int64)
        return cls(buffer, op, touched.reads, touched.writes, statistic, old, before, after, life.astype(np.int64))


class _Obstacles(NamedTuple):
    """Of each access: why nothing that it takes part in can be made again."""

    lasting: Bool  # the buffer is a parameter or optimizer state
    copy: Bool
    outside: Bool  # as a whole write it takes data that no op made
    nobody: Bool  # and so it is unless later ops write into it: what an op only allocates is as good as any other

    @classmethod
    def of(cls, trace: Trace, a: _Accesses) -> _Obstacles:
        kind, name = trace.buffers.kind, trace.ops.name
        batch = np.array([k == INPUT for k in kind], np.bool_)
        lasting = np.array([k in (PARAM, OPT_STATE) for k in kind], np.bool_)
        none = np.flatnonzero(np.diff(trace.ops.reads.ptr) == 0).tolist()
        moved, empty, nothing = np.zeros((3, trace.n), np.bool_)
        nothing[none] = True
        moved[none] = [name[i].split(".")[0] == "_to_copy" for i in none]
        empty[none] = [name[i].removeprefix("new_").startswith("empty") for i in none]
        outside = (batch[a.buffer] & nothing[a.op]) | moved[a.op]
        return cls(lasting[a.buffer], trace.ops.copies[a.op], outside, empty[a.op])


def _versions(a: _Accesses, bad: _Obstacles, stop: I64) -> Versions:
    """The version before or after each access; its chain ends with the first `stop` writes."""
    whole = np.flatnonzero(a.writes & ~a.reads)  # accesses
    rank = np.searchsorted(a.before[whole], stop) - 1  # the last whole write among the first `stop` writes
    start = np.append(a.before[whole], len(stop))[rank]
    exists = (rank >= 0) & (start >= a.before[a.life])
    first = np.where(exists, start, stop)
    made = np.append(whole, 0)[np.where(exists, rank, -1)]

    def any_of(access: Bool) -> Bool:
        seen = np.concatenate([[0], np.cumsum(access[a.writes])])
        some: Bool = seen[stop] > seen[first]
        return some

    unwritten = (stop - first == 1) & ~(a.reads & (stop < a.after))  # nor does the access itself change it
    why = np.zeros(len(stop), np.int64)
    for code, refused in (  # the first that holds counts, so the last ones are written first
        (STATISTIC, any_of(a.statistic)),
        (COPY, any_of(bad.copy)),
        (SOURCE, exists & (bad.outside[made] | (bad.nobody[made] & unwritten))),
        (OVER_BOUNDARY, ~exists & a.old),
        (NO_WHOLE, ~exists & ~a.old),
        (LASTING, bad.lasting),
    ):
        why[refused] = code
    return Versions(first, stop, why)


def _lasts(trace: Trace, a: _Accesses) -> tuple[I64, Bool]:
    """The last place that finds what each access finds, and whether it is the last because the lifetime ends."""
    b, n, count = trace.buffers, trace.n, len(a.op)
    death = np.where(trace.eternal, n, b.end - 1)[a.buffer] - np.where(a.old & ~trace.eternal[a.buffer], n, 0)
    write = np.append(a.op[a.writes], n)  # the last is behind all of them
    ends = np.append(a.life[1:] != a.life[:-1], True) if count else np.zeros(0, np.bool_)
    end_of = np.searchsorted(np.flatnonzero(ends), np.arange(count))
    through = a.after[ends][end_of]  # rows of writes through the end of the lifetime
    dies = a.before == through  # no write comes before that
    return np.where(b.host[a.buffer], -1, np.where(dies, death, write[a.before])), dies
