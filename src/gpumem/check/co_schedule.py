"""Several jobs in one trace: each runs as it does alone, and no slot begins before the one before has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.trace import I64, SYNC, Csr, Ops, Trace

SAME = ("name", "duration", "flops", "moved", "role", "rng", "blocking", "attributes", "module")  # of an op
KEPT = ("size", "host", "kind")  # of a buffer
TOUCHES = ("reads", "writes", "statistics")
Held = tuple[int, bool, str, int, int]  # size, whether on the host, kind, start and end


@strict
def together(jobs: Sequence[Trace], trace: Trace, job: I64, turn: I64, op: I64, lag: I64, slot: I64) -> None:
    """Check one trace made of several jobs' iterations that run side by side in slots.

    Parameters
    ----------
    jobs : sequence of Trace
        Each as it runs alone.
    trace : Trace
        One round of all of them.
    job, turn, op : int64[n]
        Of each of its ops: the job, the iteration (a round may have several of a job; all are numbered, those of a
        job in turn), and the op in the job's trace. -1 for what orders the streams and belongs to none.
    lag : int64[n]
        How many rounds ago the iteration began that the op belongs to.
    slot : int64[n]
        In which part of the round it runs.

    Raises
    ------
    CheckError
        `ops`: an iteration lacks an op, or has one twice; an op of no job does more than to order streams. `value`: an
        op touches other buffers than its original. `held`: a buffer that no job has, or a lifetime that is not that of
        the original. `dependence`: two ops of a job that conflict change places. `slot`: an op does not wait for all of
        an earlier slot, that of the round before included, or is on another stream than its iteration is in that slot.

    Notes
    -----
    O(n * streams + touches of a buffer squared).
    """
    images, untouched = set[int](), Counter[Held]()
    position = np.arange(trace.n) + lag * trace.n  # since the start of the round in which its iteration began
    for j, alone in enumerate(jobs):
        where: list[dict[int, int]] = []  # of each iteration of the job: op -> op of the round
        for t in sorted({int(x) for x in turn[job == j]}):
            mine = np.flatnonzero(turn == t)
            if sorted(op[mine].tolist()) != list(range(alone.n)):
                raise CheckError(
                    "ops", f"job {j}: its iteration has {len(mine)} ops that are not its {alone.n}, each once"
                )
            where.append({int(op[x]): int(x) for x in mine})
        if not where:
            raise CheckError("ops", f"job {j}: it does not run")
        one = _Job(j, alone, trace, where, position)
        one.check()
        images |= {*one.image.values()}
        untouched += one.untouched()
    b = trace.buffers
    others = [y for y in range(len(b)) if y not in images and b.size[y]]
    if Counter(_held(trace, y, int(b.start[y]), int(b.end[y])) for y in others) != untouched:
        raise CheckError("held", f"buffers {others!r:.60}: not those that no op of the jobs touches", buffers=others)
    _groups(trace, turn, slot)
    _slots(trace, slot)


def _held(trace: Trace, b: int, start: int, end: int) -> Held:
    table = trace.buffers
    return int(table.size[b]), bool(table.host[b]), table.kind[b], start, end


def _told(ops: Ops, column: str, i: int) -> Any:
    """What a column tells of an op, None where there is no such column."""
    values = getattr(ops, column)
    return None if values is None else values[i]


class _Job:
    def __init__(self, j: int, alone: Trace, trace: Trace, where: list[dict[int, int]], position: I64) -> None:
        self.j, self.alone, self.trace, self.where, self.position = j, alone, trace, where, position
        self.rows = {what: tuple(_rows(t, what) for t in (alone, trace)) for what in TOUCHES}
        self.image: dict[tuple[int, int], int] = {}  # buffer and the iteration in which it began -> buffer of the round

    def check(self) -> None:
        for k, found in enumerate(self.where):
            for i, x in found.items():
                self.same(i, x)
                for what in TOUCHES:
                    self.touches(k, i, x, what)
        if len(set(self.image.values())) < len(self.image):
            raise CheckError("value", f"job {self.j}: two of its buffers are one")
        for (b, k), y in self.image.items():
            self.lives(b, k, y)
        self.in_turn()

    def same(self, i: int, x: int) -> None:
        """An op is what it is alone."""
        for column in SAME:
            mine, theirs = _told(self.alone.ops, column, i), _told(self.trace.ops, column, x)
            if mine != theirs and (mine or theirs):  # a column that is left out tells as much as an empty one
                raise CheckError(
                    "ops", f"op {x}: {column} is {theirs}, that of op {i} of job {self.j} is {mine}", ops=[x]
                )

    def touches(self, k: int, i: int, x: int, what: str) -> None:
        """It touches the images of what it touches alone; one buffer has one image."""
        mine, theirs = (rows[at].tolist() for rows, at in zip(self.rows[what], (i, x)))
        if len(mine) != len(theirs):
            raise CheckError(
                "value", f"op {x}: {what} {len(theirs)} buffers, op {i} of job {self.j} {len(mine)}", ops=[x]
            )
        b = self.alone.buffers
        for buffer, image in zip(mine, theirs):
            began = 0 if self.forever(buffer) else (k - (i < b.start[buffer])) % len(self.where)
            if self.image.setdefault((buffer, began), image) != image:
                raise CheckError(
                    "value", f"op {x}: {what} buffer {image}, which is not {buffer} of job {self.j}", ops=[x]
                )

    def lives(self, b: int, k: int, y: int) -> None:
        """An image is as large as its original, and lives from the op that starts it through the one that ends it."""
        old, new, n = self.alone.buffers, self.trace.buffers, self.trace.n
        for column in KEPT:
            if getattr(old, column)[b] != getattr(new, column)[y]:
                raise CheckError(
                    "held", f"buffer {y}: its {column} is not that of buffer {b} of job {self.j}", buffers=[y]
                )
        if self.forever(b):
            if not (new.persistent[y] and new.end[y] - new.start[y] == n):
                raise CheckError("held", f"buffer {y}: does not live for ever as {b} of job {self.j} does", buffers=[y])
            return
        first, last = self.lifetime(b, k)
        if (new.start[y], new.end[y] - new.start[y]) != (first % n, last + 1 - first):
            told = f"lives during [{new.start[y]}, {new.end[y]}), its ops are {first} to {last}"
            raise CheckError("held", f"buffer {y}: {told}", buffers=[y])
        if bool(new.persistent[y]) != bool(old.persistent[b] and new.end[y] > n and not self.closed(b, k)):
            told = "not so if its value crosses the round's boundary as that of"
            raise CheckError("held", f"buffer {y}: persistent, {told} {b} of job {self.j}, or the reverse", buffers=[y])

    def closed(self, b: int, k: int) -> bool:
        """Whether the op behind its last one starts it anew; were it persistent, it would live for ever."""
        table, n = self.alone.buffers, self.alone.n
        last, first = self.at(k, int(table.end[b] - 1) % n), self.at(k, int(table.start[b]))
        return not any(last < self.at(k, i) < first for i in self.where[k])

    def untouched(self) -> Counter[Held]:
        """Where buffers are held that no op touches: nothing says which is whose image."""
        found, n, b = Counter[Held](), self.trace.n, self.alone.buffers
        for i in sorted({*np.flatnonzero(b.size).tolist()} - {buffer for buffer, _ in self.image}):
            if self.forever(i):
                found[_held(self.alone, i, 0, n)] += 1
                continue
            for k in range(len(self.where)):
                first, last = self.lifetime(i, k)
                found[_held(self.alone, i, first % n, first % n + last + 1 - first)] += 1
        return found

    def forever(self, b: int) -> bool:
        """Whether a buffer has the same bytes in every iteration."""
        table = self.alone.buffers
        return bool(table.persistent[b] and table.end[b] - table.start[b] == self.alone.n)

    def lifetime(self, b: int, k: int) -> tuple[int, int]:
        """The ops with which the k-th lifetime of a buffer begins and ends, as `at` counts."""
        table, n = self.alone.buffers, self.alone.n
        return self.at(k, int(table.start[b])), self.at(k + int(table.end[b] > n), int(table.end[b] - 1) % n)

    def at(self, k: int, i: int) -> int:
        """Where op `i` of the job's k-th iteration comes, those behind its last one in a round included."""
        turn, k = divmod(k, len(self.where))
        return int(self.position[self.where[k][i]]) + turn * self.trace.n

    def in_turn(self) -> None:
        """Of two ops that conflict the first stays first, also where it belongs to the iteration before."""
        touches: dict[int, list[tuple[int, bool]]] = {}
        for i in range(self.alone.n):
            written = set(self.alone.ops.writes[i].tolist())
            for b in written | set(self.alone.ops.reads[i].tolist()):
                touches.setdefault(b, []).append((i, b in written))
        for found in touches.values():
            for k in range(len(self.where)):
                row = [(self.at(k + later, i), w) for later in (0, 1) for i, w in found]
                for p, (x, writes) in enumerate(row[: len(found)]):
                    for y, too in row[p + 1 : p + len(found) + 1]:
                        if (writes or too) and y <= x:
                            n = self.trace.n
                            raise CheckError(
                                "dependence", f"ops {x % n} and {y % n}: change places", ops=[x % n, y % n]
                            )


def _rows(trace: Trace, what: str) -> Csr:
    found: Csr = trace.statistics if what == "statistics" else getattr(trace.ops, what)
    return found


def _groups(trace: Trace, turn: I64, slot: I64) -> None:
    """Ops of one iteration and slot are on one stream; what belongs to no iteration takes no time."""
    stream: dict[tuple[int, int], int] = {}
    for x in range(trace.n):
        key, mine = (int(turn[x]), int(slot[x])), int(trace.ops.stream[x])
        if turn[x] >= 0 and stream.setdefault(key, mine) != mine:
            raise CheckError("slot", f"op {x}: on another stream than those of its iteration and slot", ops=[x])
        if turn[x] < 0 and (trace.ops.role[x] != SYNC or trace.ops.duration[x] > 0):
            raise CheckError("ops", f"op {x}: of no job, and yet it computes or takes time", ops=[x])


def _slots(trace: Trace, slot: I64) -> None:
    """Each op comes after all of earlier slots, on every stream: by its own stream, or by what it touches."""
    streams = len(trace.ops.streams)
    last, before = [-1] * streams, [-1] * streams  # of each stream: its last op so far, and that of earlier slots
    known: list[list[int]] = []  # of each op: the last op of each stream that has ended when it ends
    wrote: dict[int, int] = {}
    read: dict[int, list[int]] = {}
    for at in range(2 * trace.n):  # a second round, which waits for the first
        x = at % trace.n
        if x and slot[x] < slot[x - 1]:
            raise CheckError("slot", f"op {x}: of slot {slot[x]}, behind one of slot {slot[x - 1]}", ops=[x])
        if x == 0 or slot[x] > slot[x - 1]:
            before = [*last]
        mine, written = int(trace.ops.stream[x]), trace.ops.writes[x].tolist()
        waits = [last[mine]] if last[mine] >= 0 else []
        for b in {*trace.ops.reads[x].tolist(), *written}:
            waits += [wrote[b]] if b in wrote else []
            waits += read.get(b, []) if b in written else []
        has = [max([known[y][s] for y in waits], default=-1) for s in range(streams)]
        if trace.ops.role[x] == 0 and any(has[s] < before[s] for s in range(streams)):
            raise CheckError("slot", f"op {x}: does not wait for all of the slots before {slot[x]}", ops=[x])
        has[mine] = at
        known.append(has)
        last[mine] = at
        for b in written:
            wrote[b], read[b] = at, []
        for b in trace.ops.reads[x].tolist():
            read.setdefault(b, []).append(at)
