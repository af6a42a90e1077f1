"""Origins: what one whole write of a buffer and the changes in place after it made, and which ops recompute one.

A *whole write* is an op that writes a buffer without reading it. What reads a buffer and writes it changes it in place,
so it belongs to the value that was there::

    op      w        c      c'            w2
    A    ===[whole]==[in place]===========[whole]=====
            |---- one value, made by w, c, c' ----|

A *version* is a value after some of its changes. Its *chain* is what makes it: the whole write and those changes.

Two numberings, both by buffer, then by op: an *access row* counts all accesses, a *write row* only those that write;
a chain is a stretch of write rows. For buffer A, behind 20 accesses of which 8 write::

    op               w        c        r        w2
    access row       20       21       22       23
    writes_before    8        9        10       10     write rows before the access
    writes_through   9        10       10       11     and through it
    finds            -        [8, 9)   [8, 10)  -      the chain of the version before the access
    leaves           [8, 9)   [8, 10)  [8, 10)  [10, 11)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import INPUT, OPT_STATE, PARAM

# Why a version cannot be recomputed: indices into `REASONS`; `FINE` is 0, so that reasons are true.
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
    "it is random, and the host cannot hold the state of the generator",
    "recomputations at that place change it further",
    "it comes back there anyway",
)


class Versions(NamedTuple):
    """Columns over versions: `writer[first:stop]` is the chain; `why` it cannot be recomputed: index into `REASONS`."""

    first: I64
    stop: I64
    why: I64


class Origins(NamedTuple):
    """Who makes the values of a trace and who reads them, as columns that compiled loops read.

    Statistics are left out of reads and writes, since no recomputation touches them. Reads and writes are rows by op.
    """

    n: int
    writer: I64  # the ops that write each buffer, by buffer, ascending
    goes_on: Bool  # whether each of these changes what the one before it left
    read_ptr: I64  # n + 1
    read: I64  # the buffer
    finds: Versions  # what the op finds in it
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
        accesses = _Accesses.of(trace)
        obstacles = _Obstacles.of(trace, accesses)
        finds, left = (
            _versions(accesses, obstacles, stop) for stop in (accesses.writes_before, accesses.writes_through)
        )
        last, dies = _lasts(trace, accesses)
        by_op = np.argsort(accesses.op, kind="stable")
        reads = by_op[(accesses.reads & ~accesses.statistic)[by_op]]
        writes = by_op[(accesses.writes & ~accesses.statistic)[by_op]]
        op_bounds = np.arange(trace.n + 1)
        buffer_ptr = np.searchsorted(accesses.buffer, np.arange(len(trace.buffers) + 1))
        return cls(
            n=trace.n,
            writer=accesses.op[accesses.writes],
            goes_on=(accesses.reads & (accesses.life_access == np.roll(accesses.life_access, 1)))[accesses.writes],
            read_ptr=np.searchsorted(accesses.op[reads], op_bounds).astype(np.int64),
            read=accesses.buffer[reads],
            finds=Versions(*(column[reads] for column in finds)),
            last=last[reads],
            dies=dies[reads],
            write_ptr=np.searchsorted(accesses.op[writes], op_bounds).astype(np.int64),
            write=accesses.buffer[writes],
            made=np.append(accesses.op[accesses.writes], -1)[np.where(left.first < left.stop, left.first, -1)[writes]],
            access_ptr=buffer_ptr.astype(np.int64),
            access=accesses.op,
            left=left,
        )

    def without(self, ops: Bool) -> Origins:
        """Return the same, but that none of `ops`, bool[n], may be recomputed."""
        through = np.concatenate([[0], np.cumsum(ops[self.writer])])

        def barred(versions: Versions) -> Versions:
            recomputes_barred = through[versions.stop] > through[versions.first]
            return versions._replace(why=np.where(recomputes_barred & (versions.why == FINE), RANDOM, versions.why))

        return self._replace(finds=barred(self.finds), left=barred(self.left))

    def last_access(self, buffer: int) -> int:
        """Return the last op of the iteration that accesses a buffer, -1 if there is none."""
        first, stop = int(self.access_ptr[buffer]), int(self.access_ptr[buffer + 1])
        return int(self.access[stop - 1]) if first < stop else -1

    def after(self, buffer: int, op: int) -> int:
        """Return the row of `left` after access `op` of `buffer`."""
        first, stop = int(self.access_ptr[buffer]), int(self.access_ptr[buffer + 1])
        return first + int(np.searchsorted(self.access[first:stop], op))


class _Accesses(NamedTuple):
    """All accesses by buffer, then op; those of one lifetime lie together."""

    buffer: I64
    op: I64
    reads: Bool
    writes: Bool
    statistic: Bool
    old: Bool  # of a lifetime that began before the iteration
    writes_before: I64  # write rows before it
    writes_through: I64  # write rows through it
    life_access: I64  # the access row of the first access of the lifetime

    @classmethod
    def of(cls, trace: Trace) -> _Accesses:
        table, touched, statistics = trace.buffers, trace.accesses(), trace.statistics
        buffer, op = touched.op.rows(), touched.op.idx
        statistic = np.isin(buffer * trace.n + op, statistics.idx * trace.n + statistics.rows())
        old = trace.eternal[buffer] | (op < table.end[buffer] - trace.n)
        after = np.cumsum(touched.writes).astype(np.int64)
        begins = (np.diff(buffer, prepend=-1) != 0) | (np.diff(old, prepend=False) & ~old)
        life = np.maximum.accumulate(np.where(begins, np.arange(len(op)), 0))
        return cls(
            buffer=buffer,
            op=op,
            reads=touched.reads,
            writes=touched.writes,
            statistic=statistic,
            old=old,
            writes_before=after - touched.writes.astype(np.int64),
            writes_through=after,
            life_access=life.astype(np.int64),
        )


class _Obstacles(NamedTuple):
    """Of each access: why nothing that it takes part in can be recomputed."""

    lasting: Bool  # the buffer is a parameter or optimizer state
    copy: Bool
    takes_unseen_data: Bool  # as a whole write it takes data that no op made
    nobody: Bool  # and so it is unless later ops write into it: what an op only allocates is as good as any other

    @classmethod
    def of(cls, trace: Trace, accesses: _Accesses) -> _Obstacles:
        kind, name = trace.buffers.kind, trace.ops.name
        batch = np.array([label == INPUT for label in kind], np.bool_)
        lasting = np.array([label in (PARAM, OPT_STATE) for label in kind], np.bool_)
        without_reads = np.flatnonzero(np.diff(trace.ops.reads.ptr) == 0).tolist()
        converts, allocates, reads_nothing = np.zeros((3, trace.n), np.bool_)
        reads_nothing[without_reads] = True
        converts[without_reads] = [name[op].split(".")[0] == "_to_copy" for op in without_reads]
        allocates[without_reads] = [name[op].removeprefix("new_").startswith("empty") for op in without_reads]
        takes_unseen_data = (batch[accesses.buffer] & reads_nothing[accesses.op]) | converts[accesses.op]
        return cls(lasting[accesses.buffer], trace.ops.copies[accesses.op], takes_unseen_data, allocates[accesses.op])


def _versions(accesses: _Accesses, obstacles: _Obstacles, stop: I64) -> Versions:
    """The version before or after each access: its chain ends before write row `stop`, a row an access."""
    whole_access = np.flatnonzero(accesses.writes & ~accesses.reads)  # access rows of whole writes
    whole_write = accesses.writes_before[whole_access]  # their write rows
    rank = np.searchsorted(whole_write, stop) - 1  # the last whole write before `stop`
    first_write = np.append(whole_write, len(stop))[rank]
    exists = (rank >= 0) & (first_write >= accesses.writes_before[accesses.life_access])
    first = np.where(exists, first_write, stop)
    made_at = np.append(whole_access, 0)[np.where(exists, rank, -1)]  # the access row of the chain's whole write

    def any_of(flags: Bool) -> Bool:
        seen = np.concatenate([[0], np.cumsum(flags[accesses.writes])])
        some: Bool = seen[stop] > seen[first]
        return some

    changes_it = accesses.reads & (stop < accesses.writes_through)  # the access itself writes into the version
    unwritten = (stop - first == 1) & ~changes_it
    why = np.zeros(len(stop), np.int64)
    # Of several reasons the one lowest in this list counts: each overwrites those above it.
    for code, refused in (
        (STATISTIC, any_of(accesses.statistic)),
        (COPY, any_of(obstacles.copy)),
        (SOURCE, exists & (obstacles.takes_unseen_data[made_at] | (obstacles.nobody[made_at] & unwritten))),
        (OVER_BOUNDARY, ~exists & accesses.old),
        (NO_WHOLE, ~exists & ~accesses.old),
        (LASTING, obstacles.lasting),
    ):
        why[refused] = code
    return Versions(first, stop, why)


def _lasts(trace: Trace, accesses: _Accesses) -> tuple[I64, Bool]:
    """The last place that finds what each access finds, and whether it is the last because the lifetime ends."""
    table, ops, count = trace.buffers, trace.n, len(accesses.op)
    death_place = np.where(trace.eternal, ops, table.end - 1)[accesses.buffer]
    death_place[accesses.old & ~trace.eternal[accesses.buffer]] -= ops  # it lies in this iteration, not the next
    write_op = np.append(accesses.op[accesses.writes], ops)  # the last is behind all of them
    is_final = (
        np.append(accesses.life_access[1:] != accesses.life_access[:-1], True) if count else np.zeros(0, np.bool_)
    )
    final_of = np.searchsorted(np.flatnonzero(is_final), np.arange(count))
    through = accesses.writes_through[is_final][final_of]  # write rows through the end of the lifetime
    dies = accesses.writes_before == through  # no write comes before that
    return np.where(
        table.host[accesses.buffer], -1, np.where(dies, death_place, write_op[accesses.writes_before])
    ), dies
