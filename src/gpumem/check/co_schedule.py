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
def together(  # noqa: PLR0917  the columns of a round, in the order in which a round has them
    jobs: Sequence[Trace], trace: Trace, job: I64, turn: I64, op: I64, lag: I64, slot: I64
) -> None:
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
    for number, alone in enumerate(jobs):
        where: list[dict[int, int]] = []  # of each iteration of the job: op -> op of the round
        for one_turn in sorted({int(row) for row in turn[job == number]}):
            own = np.flatnonzero(turn == one_turn)
            if sorted(op[own].tolist()) != list(range(alone.n)):
                raise CheckError(
                    "ops", f"job {number}: its iteration has {len(own)} ops that are not its {alone.n}, each once"
                )
            where.append({int(op[row]): int(row) for row in own})
        if not where:
            raise CheckError("ops", f"job {number}: it does not run")
        check = _Job(number, alone, trace, where=where, position=position)
        check.check()
        images |= {*check.image.values()}
        untouched += check.untouched()
    buffers = trace.buffers
    others = [image for image in range(len(buffers)) if image not in images and buffers.size[image]]
    if (
        Counter(_held(trace, image, int(buffers.start[image]), int(buffers.end[image])) for image in others)
        != untouched
    ):
        raise CheckError("held", f"buffers {others!r:.60}: not those that no op of the jobs touches", buffers=others)
    _groups(trace, turn, slot)
    _slots(trace, slot)


def _held(trace: Trace, buffer: int, start: int, end: int) -> Held:
    table = trace.buffers
    return int(table.size[buffer]), bool(table.host[buffer]), table.kind[buffer], start, end


def _cell(ops: Ops, column: str, op: int) -> Any:
    """Return a column's entry for an op, None where there is no such column."""
    values = getattr(ops, column)
    return None if values is None else values[op]


class _Job:
    """One job: its trace alone, the trace of the round, and where its ops are in that, iteration by iteration."""

    def __init__(self, number: int, alone: Trace, trace: Trace, where: list[dict[int, int]], position: I64) -> None:
        self.number, self.alone, self.trace, self.where, self.position = number, alone, trace, where, position
        self.rows = {what: tuple(_rows(of, what) for of in (alone, trace)) for what in TOUCHES}
        self.image: dict[tuple[int, int], int] = {}  # buffer and the iteration in which it began -> buffer of the round

    def check(self) -> None:
        for iteration, rows in enumerate(self.where):
            for op, row in rows.items():
                self.check_op(op, row)
                for what in TOUCHES:
                    self.check_touches(iteration, op, row, what)
        if len(set(self.image.values())) < len(self.image):
            raise CheckError("value", f"job {self.number}: two of its buffers are one")
        for (buffer, iteration), image in self.image.items():
            self.check_lifetime(buffer, iteration, image)
        self.check_order()

    def check_op(self, op: int, row: int) -> None:
        """An op is what it is alone."""
        for column in SAME:
            alone, side_by_side = _cell(self.alone.ops, column, op), _cell(self.trace.ops, column, row)
            if alone != side_by_side and (
                alone or side_by_side
            ):  # a column that is left out tells as much as an empty one
                raise CheckError(
                    "ops",
                    f"op {row}: {column} is {side_by_side}, that of op {op} of job {self.number} is {alone}",
                    ops=[row],
                )

    def check_touches(self, iteration: int, op: int, row: int, what: str) -> None:
        """It touches the images of what it touches alone; one buffer has one image."""
        alone, side_by_side = (rows[at].tolist() for rows, at in zip(self.rows[what], (op, row)))
        if len(alone) != len(side_by_side):
            raise CheckError(
                "value",
                f"op {row}: {what} {len(side_by_side)} buffers, op {op} of job {self.number} {len(alone)}",
                ops=[row],
            )
        buffers = self.alone.buffers
        for buffer, image in zip(alone, side_by_side):
            began = 0 if self.lives_forever(buffer) else (iteration - (op < buffers.start[buffer])) % len(self.where)
            if self.image.setdefault((buffer, began), image) != image:
                raise CheckError(
                    "value", f"op {row}: {what} buffer {image}, which is not {buffer} of job {self.number}", ops=[row]
                )

    def check_lifetime(self, buffer: int, iteration: int, image: int) -> None:
        """An image is as large as its original, and lives from the op that starts it through the one that ends it."""
        old, new, steps = self.alone.buffers, self.trace.buffers, self.trace.n
        for column in KEPT:
            if getattr(old, column)[buffer] != getattr(new, column)[image]:
                raise CheckError(
                    "held",
                    f"buffer {image}: its {column} is not that of buffer {buffer} of job {self.number}",
                    buffers=[image],
                )
        if self.lives_forever(buffer):
            if not (new.persistent[image] and new.end[image] - new.start[image] == steps):
                raise CheckError(
                    "held",
                    f"buffer {image}: does not live for ever as {buffer} of job {self.number} does",
                    buffers=[image],
                )
            return
        first, last = self.lifetime(buffer, iteration)
        if (new.start[image], new.end[image] - new.start[image]) != (first % steps, last + 1 - first):
            reason = f"lives during [{new.start[image]}, {new.end[image]}), its ops are {first} to {last}"
            raise CheckError("held", f"buffer {image}: {reason}", buffers=[image])
        if bool(new.persistent[image]) != bool(
            old.persistent[buffer] and new.end[image] > steps and not self.is_made_anew(buffer, iteration)
        ):
            reason = "not so if its value crosses the round's boundary as that of"
            raise CheckError(
                "held",
                f"buffer {image}: persistent, {reason} {buffer} of job {self.number}, or the reverse",
                buffers=[image],
            )

    def is_made_anew(self, buffer: int, iteration: int) -> bool:
        """Whether the op behind its last one starts it anew; were it persistent, it would live for ever."""
        table, steps = self.alone.buffers, self.alone.n
        last, first = (
            self.place_of(iteration, int(table.end[buffer] - 1) % steps),
            self.place_of(iteration, int(table.start[buffer])),
        )
        return not any(last < self.place_of(iteration, op) < first for op in self.where[iteration])

    def untouched(self) -> Counter[Held]:
        """Where buffers are held that no op touches: nothing says which is whose image."""
        held, steps, buffers = Counter[Held](), self.trace.n, self.alone.buffers
        for buffer in sorted({*np.flatnonzero(buffers.size).tolist()} - {buffer for buffer, _ in self.image}):
            if self.lives_forever(buffer):
                held[_held(self.alone, buffer, 0, steps)] += 1
                continue
            for iteration in range(len(self.where)):
                first, last = self.lifetime(buffer, iteration)
                held[_held(self.alone, buffer, first % steps, first % steps + last + 1 - first)] += 1
        return held

    def lives_forever(self, buffer: int) -> bool:
        """Whether a buffer has the same bytes in every iteration."""
        table = self.alone.buffers
        return bool(table.persistent[buffer] and table.end[buffer] - table.start[buffer] == self.alone.n)

    def lifetime(self, buffer: int, iteration: int) -> tuple[int, int]:
        """The ops with which the lifetime in an iteration of a buffer begins and ends, as `place_of` counts."""
        table, steps = self.alone.buffers, self.alone.n
        return self.place_of(iteration, int(table.start[buffer])), self.place_of(
            iteration + int(table.end[buffer] > steps), int(table.end[buffer] - 1) % steps
        )

    def place_of(self, iteration: int, op: int) -> int:
        """Where op `op` of the job's k-th iteration comes, those behind its last one in a round included."""
        turn, iteration = divmod(iteration, len(self.where))
        return int(self.position[self.where[iteration][op]]) + turn * self.trace.n

    def check_order(self) -> None:
        """Of two ops that conflict the first stays first, also where it belongs to the iteration before."""
        touches: dict[int, list[tuple[int, bool]]] = {}
        for op in range(self.alone.n):
            written = set(self.alone.ops.writes[op].tolist())
            for buffer in written | set(self.alone.ops.reads[op].tolist()):
                touches.setdefault(buffer, []).append((op, buffer in written))
        for accesses in touches.values():
            for iteration in range(len(self.where)):
                row = [
                    (self.place_of(iteration + later, op), is_write) for later in (0, 1) for op, is_write in accesses
                ]
                for place, (position, writes) in enumerate(row[: len(accesses)]):
                    for later_position, too in row[place + 1 : place + len(accesses) + 1]:
                        if (writes or too) and later_position <= position:
                            steps = self.trace.n
                            raise CheckError(
                                "dependence",
                                f"ops {position % steps} and {later_position % steps}: change places",
                                ops=[position % steps, later_position % steps],
                            )


def _rows(trace: Trace, what: str) -> Csr:
    rows: Csr = trace.statistics if what == "statistics" else getattr(trace.ops, what)
    return rows


def _groups(trace: Trace, turn: I64, slot: I64) -> None:
    """Ops of one iteration and slot are on one stream; what belongs to no iteration takes no time."""
    stream: dict[tuple[int, int], int] = {}
    for op in range(trace.n):
        key, own_stream = (int(turn[op]), int(slot[op])), int(trace.ops.stream[op])
        if turn[op] >= 0 and stream.setdefault(key, own_stream) != own_stream:
            raise CheckError("slot", f"op {op}: on another stream than those of its iteration and slot", ops=[op])
        if turn[op] < 0 and (trace.ops.role[op] != SYNC or trace.ops.duration[op] > 0):
            raise CheckError("ops", f"op {op}: of no job, and yet it computes or takes time", ops=[op])


def _slots(trace: Trace, slot: I64) -> None:
    """Each op comes after all of earlier slots, on every stream: by its own stream, or by what it touches."""
    streams = len(trace.ops.streams)
    last, before = [-1] * streams, [-1] * streams  # of each stream: its last op so far, and that of earlier slots
    known: list[list[int]] = []  # of each op: the last op of each stream that has ended when it ends
    wrote: dict[int, int] = {}
    read: dict[int, list[int]] = {}
    for at in range(2 * trace.n):  # a second round, which waits for the first
        op = at % trace.n
        if op and slot[op] < slot[op - 1]:
            raise CheckError("slot", f"op {op}: of slot {slot[op]}, behind one of slot {slot[op - 1]}", ops=[op])
        if op == 0 or slot[op] > slot[op - 1]:
            before = [*last]
        own, written = int(trace.ops.stream[op]), trace.ops.writes[op].tolist()
        waits = [last[own]] if last[own] >= 0 else []
        for buffer in {*trace.ops.reads[op].tolist(), *written}:
            waits += [wrote[buffer]] if buffer in wrote else []
            waits += read.get(buffer, []) if buffer in written else []
        has = [max([known[waited][stream] for waited in waits], default=-1) for stream in range(streams)]
        if trace.ops.role[op] == 0 and any(has[stream] < before[stream] for stream in range(streams)):
            raise CheckError("slot", f"op {op}: does not wait for all of the slots before {slot[op]}", ops=[op])
        has[own] = at
        known.append(has)
        last[own] = at
        for buffer in written:
            wrote[buffer], read[buffer] = at, []
        for buffer in trace.ops.reads[op].tolist():
            read.setdefault(buffer, []).append(at)
