"""Recomputations at one place: which ops are recomputed there, and where each of them reads and writes.

All decisions with the same `at` are united: each op runs once, in recorded order, so that every read finds the version
it found before. What is on the device unchanged is read there; whatever else is needed is made in scratch first::

    before op `at`   [copies out][copies in][ w  c  c'  x  y ]
                                              |__scratch_|        from its first write to its last reader
                                                       |=======   the wanted buffer, from its first write on
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.plan.decisions import Hold, Recompute, Swap
from gpumem.swap.plan.values import ANYWAY, FINE, NOT_LEFT, REASONS, Origins
from gpumem.trace import I64, Bool, Trace

# In place of a value's whole write, an op from 0 on: it is read in its buffer, or in the piece held beside it.
ON_DEVICE, HELD = -1, -2
# How a closure ends, in place of the read from 0 on that is in the way: nothing is; its ops take longer than allowed;
# it changes a version that it should leave.
FREE, DEAR, CHANGED = -1, -2, -3
# Marks are read in order where they span at most so many ops for each marked one, else the marked ops are sorted.
# Not tuned: either way gives the same ops.
DENSE = 32
# The columns of `Closure.used`, and of `Closure.place`.
MARKED, PENDING, CHAINS, TIME, LOOKED_AT = range(5)
SUNK, CAUSE = range(2)


class Refused(ValueError):
    """Values cannot be recomputed; the message names the obstacle, and why: the text in `REASONS` at index `why`."""

    def __init__(self, what: str, why: int) -> None:
        super().__init__(f"{what}: {REASONS[why]}")


class Value(NamedTuple):
    """A value by its buffer and its whole write; or the one that is there at the place, in the buffer or held."""

    buffer: int
    whole: int


@dataclass(frozen=True, slots=True)
class RecomputedOp:
    """An op that is recomputed, and the values that it reads and writes."""

    op: int
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


class Touches(NamedTuple):
    """Which of the recomputations of a place write a value first and last, and which touches it last."""

    write: int
    last_write: int
    touch: int


@dataclass(frozen=True, slots=True)
class Replay:
    """All that is recomputed right before op `place`, and the values that come back to their buffers there."""

    place: int
    wanted: frozenset[Value]
    held: Mapping[Value, int]  # what stays beside them, and before which op that ends
    recomputed_ops: tuple[RecomputedOp, ...]
    spans: Mapping[Value, Touches]  # of each value made here: which of the recomputations touch it

    @property
    def sources(self) -> frozenset[int]:
        """The buffers that are read on the device as they are there."""
        return frozenset(
            value.buffer for step in self.recomputed_ops for value in step.reads if value.whole == ON_DEVICE
        )


def _spans(recomputed_ops: Iterable[RecomputedOp]) -> dict[Value, Touches]:
    touches: dict[Value, Touches] = {}
    for row, step in enumerate(recomputed_ops):
        for value in step.reads:
            if value.whole >= 0:
                touches[value] = touches[value]._replace(touch=row)
        for value in step.writes:
            touches[value] = Touches(touches[value].write if value in touches else row, row, row)
    return touches


class Present(NamedTuple):
    """What of all buffers is on the device at the place before an op; the last two are -1 where there is none."""

    absent: Bool  # B: away by a decision, or yet to be brought back
    until: I64  # B: the last place at which one that is dead is still there
    kept: I64  # B: the version that is held beside it, by where its chain stops in `Origins.writer`


class Device:
    """What a plan leaves on the device at the place before an op: after its copies, before its recomputations."""

    def __init__(self, trace: Trace, values: Origins, decisions: Iterable[Swap | Recompute | Hold] = ()) -> None:
        self.n, self.name, self.values = trace.n, trace.ops.name, values
        self.end = trace.buffers.end
        self.absent = np.zeros((3, 0), np.int64)  # buffer; the first place where it is absent, and at how many
        self.until = np.zeros(len(trace.buffers), np.int64)
        self.pieces = np.zeros((4, 0), np.int64)  # buffer, version, made before which op, until
        self.decide(decisions)

    def decide(self, decisions: Iterable[Swap | Recompute | Hold]) -> None:
        """Carry out more decisions; a `Hold` between two accesses comes with the `Recompute` that drops it."""
        spans, pieces, decisions = [], [], list(decisions)
        holds = (decision for decision in decisions if isinstance(decision, Hold))
        later = {(hold.buffer, hold.after): hold.until for hold in holds if hold.at < 0}
        for decision in decisions:
            if isinstance(decision, Swap):
                spans.append((decision.buffer, decision.release, decision.prefetch - decision.release))
            elif isinstance(decision, Recompute):
                first = later.get((decision.buffer, decision.after), decision.after) + 1
                spans.append((decision.buffer, first, decision.at - first))
            elif decision.at >= 0:
                version = int(self.values.left.stop[self.values.after(decision.buffer, decision.after)])
                pieces.append((decision.buffer, version, decision.at, decision.until))
            elif self.is_last(decision):
                self.until[decision.buffer] = decision.until
                end = int(self.end[decision.buffer])
                if decision.until < end:
                    spans.append((decision.buffer, decision.until + 1, end - 1 - decision.until))
        self.absent = np.append(self.absent, np.array(spans, np.int64).reshape(len(spans), 3).T, axis=1)
        self.pieces = np.append(self.pieces, np.array(pieces, np.int64).reshape(len(pieces), 4).T, axis=1)

    def is_last(self, hold: Hold) -> bool:
        """Whether a buffer is held from the last access of its lifetime on."""
        return hold.after in (-1, self.values.last_access(hold.buffer))

    def called(self, op: int) -> str:
        """Return the name of an op in brackets, if it has one."""
        return f" ({self.name[op]})" if self.name[op] else ""

    def present(self, place: int, wanted: Iterable[int]) -> Present:
        """Return what is there, the buffers apart that are yet to be brought back."""
        absent, kept = np.zeros(len(self.until), np.bool_), np.full(len(self.until), -1, np.int64)
        buffer, first, length = self.absent
        absent[buffer[(place - first) % self.n < length]] = True
        absent[list(wanted)] = True
        buffer, version, at, until = self.pieces
        is_held = (at < place) & (place <= until)
        kept[buffer[is_held]] = version[is_held]
        return Present(absent, self.until, kept)

    def closure(self, wanted: Sequence[Recompute | Hold], place: int) -> tuple[I64, Present]:
        """Return the ops to recompute, ascending, and what is there; raise `Refused` where that is impossible."""
        values, there = (
            self.values,
            self.present(place, [decision.buffer for decision in wanted if isinstance(decision, Recompute)]),
        )
        rows = np.array([values.after(decision.buffer, decision.after) for decision in wanted], np.int64)
        for decision, row in zip(wanted, rows.tolist()):
            if values.left.why[row] != FINE:
                raise Refused(
                    f"what buffer {decision.buffer} holds after op {decision.after}{self.called(decision.after)}",
                    values.left.why[row],
                )
        recomputed = np.zeros(self.n, np.bool_)
        obstacle, op = closure(values, values.left.first[rows], values.left.stop[rows], place, *there, recomputed)
        if obstacle == CHANGED:
            value = f"what buffer {wanted[op].buffer} holds after op {wanted[op].after}{self.called(wanted[op].after)}"
            raise Refused(value, NOT_LEFT)
        if obstacle >= 0:
            buffer, why = int(values.read[obstacle]), int(values.finds.why[obstacle])
            value = (
                f"op {op}{self.called(op)} needs buffer {buffer} as it was, which is off the device or changed by then"
            )
            raise Refused(value, why)
        return np.flatnonzero(recomputed), there


class Closure(NamedTuple):
    """What a closure has marked so far; lists beside the marks, so that nobody clears or scans all ops for a few."""

    recomputed: Bool  # n: the op is recomputed
    op: I64  # n: the marked ops, in the order of marking; used[MARKED] of them
    todo: I64  # n: those whose reads are to be looked at; used[PENDING] of them
    reach: I64  # as `Origins.writer`: how far the chain that begins there is marked
    begun: I64  # where marked chains begin; used[CHAINS] of them
    used: I64  # counts of marked and of pending ops, and of chains; ns of the marked ops; steps taken, for tests
    place: I64  # to where a closure has sunk, and the first read that made it


@inner
def marks(recomputed: Bool, writers: int) -> Closure:
    """Return room for a closure; `recomputed` is False everywhere."""
    ops = len(recomputed)
    marked, todo, counts = np.empty(ops, np.int64), np.empty(ops, np.int64), np.zeros(5, np.int64)
    return Closure(
        recomputed,
        marked,
        todo,
        np.zeros(writers, np.int64),
        np.empty(writers, np.int64),
        counts,
        np.zeros(2, np.int64),
    )


@inner
def clear(marked: Closure) -> None:
    """Forget what is marked, in as many steps as there are marks."""
    for row in range(marked.used[MARKED]):
        marked.recomputed[marked.op[row]] = False
    for row in range(marked.used[CHAINS]):
        marked.reach[marked.begun[row]] = 0
    marked.used[: TIME + 1] = 0


@inner
def ascending(marked: Closure) -> I64:
    """The marked ops, in order: few are sorted; of many that lie together the marks are read, which is quicker."""
    ops = marked.op[: marked.used[MARKED]]
    if len(ops) == 0:
        return ops
    low, high = ops.min(), ops.max() + 1
    if high - low > DENSE * len(ops):
        return np.sort(ops)
    read: I64 = low + np.flatnonzero(marked.recomputed[low:high])
    return read


@jit
def closure(  # noqa: PLR0917  compiled: no keyword-only parameters
    origins: Origins, first: I64, stop: I64, place: int, absent: Bool, until: I64, kept: I64, recomputed: Bool
) -> tuple[int, int]:
    """Mark in `recomputed` what makes the versions `writer[first[k]:stop[k]]`, and all that is needed for it.

    `absent`, `until`, `kept`: of `Present`. Return `FREE` twice; the read, and its op, of what is neither there nor can
    be made; or `CHANGED` and which version does not stay as it should, since a later one is made of it there.
    """
    marked, no_time = marks(recomputed, len(origins.writer)), np.zeros(len(recomputed), np.int64)
    return chase(origins, first, stop, place, place, absent, until, kept, marked, no_time, 0)


@inner
def chase(  # noqa: C901, PLR0913, PLR0917  compiled: columns of a record are looked up at each use, and cost time
    origins: Origins,
    first: I64,
    stop: I64,
    place: int,
    least: int,
    absent: Bool,
    until: I64,
    kept: I64,
    marked: Closure,
    duration: I64,
    most: int,
) -> tuple[int, int]:
    """As `closure`; `DEAR` twice where the ops take more than `most` ns, however many more there are.

    What is not there sinks `place` as far as it is there, down to `least`. The marks are then those of higher places,
    which will do for the lower: it has all on the device that these have.
    """
    marked.place[SUNK], marked.place[CAUSE] = place, FREE
    read_ptr, read, last, dies = origins.read_ptr, origins.read, origins.last, origins.dies
    chain_first, chain_stop, why = origins.finds.first, origins.finds.stop, origins.finds.why
    for row in range(len(first)):
        _mark(origins.writer, first[row], stop[row], marked, duration=duration, most=most)
    while marked.used[PENDING] > 0 and marked.used[TIME] <= most:
        marked.used[PENDING] -= 1
        op = marked.todo[marked.used[PENDING]]
        marked.used[LOOKED_AT] += read_ptr[op + 1] - read_ptr[op] + 1
        for row in range(read_ptr[op], read_ptr[op + 1]):
            buffer = read[row]
            if is_there(place, last[row], dies=dies[row], absent=absent[buffer], until=until[buffer]):
                continue
            if is_kept(op, last[row], dies=dies[row], stop=chain_stop[row], kept=kept[buffer]):
                continue
            if why[row] != 0:
                sunk = -1 if absent[buffer] else last[row]
                if sunk < least:
                    return row, op
                if marked.place[CAUSE] == FREE:
                    marked.place[CAUSE] = row
                marked.place[SUNK] = place = min(place, sunk)
                continue
            _mark(origins.writer, chain_first[row], chain_stop[row], marked, duration=duration, most=most)
    if marked.used[TIME] > most:
        return DEAR, DEAR
    for row in range(len(first)):
        if marked.reach[first[row]] > stop[row]:
            return CHANGED, row
        # An op recomputed for another of its results changes this version too, wanted or not.
        after = stop[row]
        if after < len(origins.writer) and origins.goes_on[after] and marked.recomputed[origins.writer[after]]:
            return CHANGED, row
    return FREE, FREE


@inner
def _mark(  # noqa: PLR0917  compiled: no keyword-only parameters
    writer: I64, first: int, stop: int, marked: Closure, duration: I64, most: int
) -> None:
    """Mark the ops of a chain; of one that begins with the same op only what is longer, or long ones cost a square."""
    if marked.reach[first] == 0:
        marked.begun[marked.used[CHAINS]] = first
        marked.used[CHAINS] += 1
    for row in range(max(first, marked.reach[first]), stop):
        if marked.used[TIME] > most:
            return
        op = writer[row]
        marked.used[LOOKED_AT] += 1
        if not marked.recomputed[op]:
            marked.recomputed[op] = True
            marked.op[marked.used[MARKED]] = marked.todo[marked.used[PENDING]] = op
            marked.used[MARKED] += 1
            marked.used[PENDING] += 1
            marked.used[TIME] += duration[op]
    marked.reach[first] = max(marked.reach[first], stop)


@jit
def is_there(place: int, last: int, dies: bool, absent: bool, until: int) -> bool:
    """Whether a read finds at `place` on the device what it found before."""
    return not absent and (place <= last or (dies and place <= until))


@jit
def is_kept(op: int, last: int, dies: bool, stop: int, kept: int) -> bool:
    """Whether a read of `op` finds its version held beside its buffer; what it changes in place it has to make."""
    return kept == stop and (dies or last > op)


@jit
def sources(  # noqa: PLR0917  compiled: no keyword-only parameters
    origins: Origins, ops: I64, place: int, absent: Bool, until: I64, kept: I64
) -> tuple[I64, I64, I64]:
    """The values that `ops` read when recomputed: rows of buffers and of whole writes, `ON_DEVICE`, or `HELD`."""
    ptr = np.zeros(len(ops) + 1, np.int64)
    for row in range(len(ops)):
        ptr[row + 1] = ptr[row] + origins.read_ptr[ops[row] + 1] - origins.read_ptr[ops[row]]
    buffer, whole = np.empty(ptr[-1], np.int64), np.full(ptr[-1], ON_DEVICE)
    for row in range(len(ops)):
        for step in range(ptr[row + 1] - ptr[row]):
            read = origins.read_ptr[ops[row]] + step
            source = buffer[ptr[row] + step] = origins.read[read]
            if is_there(place, origins.last[read], dies=origins.dies[read], absent=absent[source], until=until[source]):
                continue
            held = is_kept(ops[row], origins.last[read], origins.dies[read], origins.finds.stop[read], kept[source])
            whole[ptr[row] + step] = HELD if held else origins.writer[origins.finds.first[read]]
    return ptr, buffer, whole


def replay(device: Device, wanted: Sequence[Recompute | Hold], place: int) -> Replay:
    """Return what is recomputed right before op `place`, in order.

    Parameters
    ----------
    device : Device
        With all decisions of the plan.
    wanted : sequence of Recompute or Hold
        Whose values are recomputed here.
    place : int

    Raises
    ------
    Refused
        A value that is needed is not there and cannot be recomputed.

    Notes
    -----
    A worklist: O(ops and reads of the closure + decisions).
    """
    origins, (ops, there) = device.values, device.closure(wanted, place)
    value = {
        decision: Value(
            decision.buffer, int(origins.writer[origins.left.first[origins.after(decision.buffer, decision.after)]])
        )
        for decision in wanted
    }
    back = frozenset(value[decision] for decision in wanted if isinstance(decision, Recompute))
    held = {value[decision]: decision.until for decision in wanted if isinstance(decision, Hold)}
    for twice in back & held.keys():
        raise Refused(f"what buffer {twice.buffer} holds is to stay beside it from op {place} on", ANYWAY)
    ptr, buffer, whole = sources(origins, ops, place, *there)
    reads = list(map(Value, buffer.tolist(), whole.tolist()))
    recomputed_ops = []
    for op, first, stop in zip(ops.tolist(), ptr[:-1].tolist(), ptr[1:].tolist()):
        wrote = slice(origins.write_ptr[op], origins.write_ptr[op + 1])
        writes = map(Value, origins.write[wrote].tolist(), origins.made[wrote].tolist())
        recomputed_ops.append(RecomputedOp(op, tuple(reads[first:stop]), tuple(writes)))
    return Replay(place, back, held, tuple(recomputed_ops), _spans(recomputed_ops))


def replays(device: Device, wanted: Iterable[Recompute | Hold]) -> list[Replay]:
    """Return what is recomputed at each place; `device` has these decisions and all others. It raises `Refused`."""
    by_place: dict[int, list[Recompute | Hold]] = {}
    for decision in wanted:
        by_place.setdefault(decision.at, []).append(decision)
    return [replay(device, by_place[at], at) for at in sorted(by_place)]
