"""Reruns at one place: which ops run again there, and where each of them reads and writes.

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

ON_DEVICE, HELD = -1, -2
FREE, DEAR, CHANGED = -1, -2, -3  # nothing stops a closure; it takes too much time; it changes what it should leave
DENSE = 32  # ops for each marked one, up to which marks are read in order


class Refused(ValueError):
    """Values cannot be made again; the message names the obstacle, and why: the text in `REASONS` at index `why`."""

    def __init__(self, what: str, why: int) -> None:
        super().__init__(f"{what}: {REASONS[why]}")


class Value(NamedTuple):
    """A value by its buffer and its whole write; or the one that is there at the place, in the buffer or held."""

    buffer: int
    whole: int


@dataclass(frozen=True, slots=True)
class Rerun:
    """An op that runs again, and the values that it reads and writes."""

    op: int
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]


class Touches(NamedTuple):
    """Which of the reruns of a place write a value first and last, and which touches it last."""

    write: int
    last_write: int
    touch: int


@dataclass(frozen=True, slots=True)
class Replay:
    """All that runs again right before op `place`, and the values that come back to their buffers there."""

    place: int
    wanted: frozenset[Value]
    held: Mapping[Value, int]  # what stays beside them, and before which op that ends
    reruns: tuple[Rerun, ...]
    spans: Mapping[Value, Touches]  # of each value made here: which of the reruns touch it

    @property
    def sources(self) -> frozenset[int]:
        """The buffers that are read on the device as they are there."""
        return frozenset(v.buffer for rerun in self.reruns for v in rerun.reads if v.whole == ON_DEVICE)


def _spans(reruns: Iterable[Rerun]) -> dict[Value, Touches]:
    found: dict[Value, Touches] = {}
    for k, rerun in enumerate(reruns):
        for value in rerun.reads:
            if value.whole >= 0:
                found[value] = found[value]._replace(touch=k)
        for value in rerun.writes:
            found[value] = Touches(found[value].write if value in found else k, k, k)
    return found


class Present(NamedTuple):
    """What of all buffers is on the device at the place before an op; the last two are -1 where there is none."""

    absent: Bool  # B: away by a decision, or yet to be brought back
    until: I64  # B: the last place at which one that is dead is still there
    kept: I64  # B: the version that is held beside it, by where its chain stops in `Origins.writer`


class Device:
    """What a plan leaves on the device at the place before an op: its copies have been issued, no rerun has run."""

    def __init__(self, trace: Trace, values: Origins, decisions: Iterable[Swap | Recompute | Hold] = ()) -> None:
        self.n, self.name, self.values = trace.n, trace.ops.name, values
        self.end = trace.buffers.end
        self.away = np.zeros((3, 0), np.int64)  # buffer; the first place where it is absent, and at how many
        self.until = np.zeros(len(trace.buffers), np.int64)
        self.pieces = np.zeros((4, 0), np.int64)  # buffer, version, made before which op, until
        self.decide(decisions)

    def decide(self, decisions: Iterable[Swap | Recompute | Hold]) -> None:
        """Carry out more decisions; a `Hold` between two accesses comes with the `Recompute` that drops it."""
        spans, pieces, given, left = [], [], list(decisions), self.values.left
        later = {(d.buffer, d.after): d.until for d in given if isinstance(d, Hold) and d.at < 0}
        for d in given:
            if isinstance(d, Swap):
                spans.append((d.buffer, d.release, d.prefetch - d.release))
            elif isinstance(d, Recompute):
                first = later.get((d.buffer, d.after), d.after) + 1
                spans.append((d.buffer, first, d.at - first))
            elif d.at >= 0:
                pieces.append((d.buffer, int(left.stop[self.values.after(d.buffer, d.after)]), d.at, d.until))
            elif self.is_last(d):
                self.until[d.buffer] = d.until
                end = int(self.end[d.buffer])
                if d.until < end:
                    spans.append((d.buffer, d.until + 1, end - 1 - d.until))
        self.away = np.append(self.away, np.array(spans, np.int64).reshape(len(spans), 3).T, axis=1)
        self.pieces = np.append(self.pieces, np.array(pieces, np.int64).reshape(len(pieces), 4).T, axis=1)

    def is_last(self, d: Hold) -> bool:
        """Whether a buffer is held from the last access of its lifetime on."""
        return d.after in (-1, self.values.last_access(d.buffer))

    def called(self, op: int) -> str:
        """Return the name of an op in brackets, if it has one."""
        return f" ({self.name[op]})" if self.name[op] else ""

    def present(self, place: int, wanted: Iterable[int]) -> Present:
        """Return what is there, the buffers apart that are yet to be brought back."""
        away, kept = np.zeros(len(self.until), np.bool_), np.full(len(self.until), -1, np.int64)
        buffer, first, length = self.away
        away[buffer[(place - first) % self.n < length]] = True
        away[list(wanted)] = True
        buffer, version, at, until = self.pieces
        mine = (at < place) & (place <= until)
        kept[buffer[mine]] = version[mine]
        return Present(away, self.until, kept)

    def closure(self, wanted: Sequence[Recompute | Hold], place: int) -> tuple[I64, Present]:
        """Return the ops that run again, ascending, and what is there; raise `Refused` where there is no way."""
        v, there = self.values, self.present(place, [d.buffer for d in wanted if isinstance(d, Recompute)])
        rows = np.array([v.after(d.buffer, d.after) for d in wanted], np.int64)
        for d, row in zip(wanted, rows.tolist()):
            if v.left.why[row] != FINE:
                raise Refused(f"what buffer {d.buffer} holds after op {d.after}{self.called(d.after)}", v.left.why[row])
        again = np.zeros(self.n, np.bool_)
        stuck, op = closure(v, v.left.first[rows], v.left.stop[rows], place, *there, again)
        if stuck == CHANGED:
            what = f"what buffer {wanted[op].buffer} holds after op {wanted[op].after}{self.called(wanted[op].after)}"
            raise Refused(what, NOT_LEFT)
        if stuck >= 0:
            b, why = int(v.read[stuck]), int(v.found.why[stuck])
            what = f"op {op}{self.called(op)} needs buffer {b} as it was, which is gone or changed by then"
            raise Refused(what, why)
        return np.flatnonzero(again), there


class Closure(NamedTuple):
    """What a closure has marked so far; lists beside the marks, so that nobody clears or scans all ops for a few."""

    again: Bool  # n: the op runs again
    op: I64  # n: the marked ops, in the order of marking; used[0] of them
    todo: I64  # n: those whose reads are to be looked at; used[1] of them
    reach: I64  # as `Origins.writer`: how far the chain that begins there is marked
    begun: I64  # where marked chains begin; used[2] of them
    used: I64  # 5: the fourth is the time of the marked ops; the fifth counts what was looked at, for tests
    place: I64  # 2: to where a closure has sunk, and the first read that made it


@inner
def marks(again: Bool, writers: int) -> Closure:
    """Return room for a closure; `again` is False everywhere."""
    n = len(again)
    op, todo, used = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(5, np.int64)
    return Closure(
        again, op, todo, np.zeros(writers, np.int64), np.empty(writers, np.int64), used, np.zeros(2, np.int64)
    )


@inner
def clear(m: Closure) -> None:
    """Forget what is marked, in as many steps as there are marks."""
    for k in range(m.used[0]):
        m.again[m.op[k]] = False
    for k in range(m.used[2]):
        m.reach[m.begun[k]] = 0
    m.used[:4] = 0


@inner
def ascending(m: Closure) -> I64:
    """The marked ops, in order: few are sorted; of many that lie together the marks are read, which is quicker."""
    mine = m.op[: m.used[0]]
    if len(mine) == 0:
        return mine
    low, high = mine.min(), mine.max() + 1
    if high - low > DENSE * len(mine):
        return np.sort(mine)
    read: I64 = low + np.flatnonzero(m.again[low:high])
    return read


@jit
def closure(
    v: Origins, first: I64, stop: I64, place: int, absent: Bool, until: I64, kept: I64, again: Bool
) -> tuple[int, int]:
    """Mark in `again` what makes the versions `writer[first[k]:stop[k]]`, and all that is needed for it.

    `absent`, `until`, `kept`: of `Present`. Return `FREE` twice; the read, and its op, of what is neither there nor can
    be made; or `CHANGED` and which version does not stay as it should, since a later one is made of it there.
    """
    m, free = marks(again, len(v.writer)), np.zeros(len(again), np.int64)
    return chase(v, first, stop, place, place, absent, until, kept, m, free, 0)


@inner
def chase(
    v: Origins,
    first: I64,
    stop: I64,
    place: int,
    least: int,
    absent: Bool,
    until: I64,
    kept: I64,
    m: Closure,
    duration: I64,
    most: int,
) -> tuple[int, int]:
    """As `closure`; `DEAR` twice where the ops take more than `most` ns, however many more there are.

    What is not there sinks `place` as far as it is there, down to `least`. The marks are then those of higher places,
    which will do for the lower: it has all on the device that these have.
    """
    m.place[0], m.place[1] = place, FREE
    read_ptr, read, last, dies = v.read_ptr, v.read, v.last, v.dies
    found_first, found_stop, why = v.found.first, v.found.stop, v.found.why
    for k in range(len(first)):
        _mark(v.writer, first[k], stop[k], m, duration, most)
    while m.used[1] > 0 and m.used[3] <= most:
        m.used[1] -= 1
        x = m.todo[m.used[1]]
        m.used[4] += read_ptr[x + 1] - read_ptr[x] + 1
        for k in range(read_ptr[x], read_ptr[x + 1]):
            b = read[k]
            if is_there(place, last[k], dies[k], absent[b], until[b]):
                continue
            if is_kept(x, last[k], dies[k], found_stop[k], kept[b]):
                continue
            if why[k] != 0:
                sunk = -1 if absent[b] else last[k]
                if sunk < least:
                    return k, x
                if m.place[1] == FREE:
                    m.place[1] = k
                m.place[0] = place = min(place, sunk)
                continue
            _mark(v.writer, found_first[k], found_stop[k], m, duration, most)
    if m.used[3] > most:
        return DEAR, DEAR
    for k in range(len(first)):
        if m.reach[first[k]] > stop[k]:
            return CHANGED, k
        after = stop[k]  # an op that runs again for another result changes it too, though nobody wants what it leaves
        if after < len(v.writer) and v.goes_on[after] and m.again[v.writer[after]]:
            return CHANGED, k
    return FREE, FREE


@inner
def _mark(writer: I64, first: int, stop: int, m: Closure, duration: I64, most: int) -> None:
    """Mark the ops of a chain; of one that begins with the same op only what is longer, or long ones cost a square."""
    if m.reach[first] == 0:
        m.begun[m.used[2]] = first
        m.used[2] += 1
    for k in range(max(first, m.reach[first]), stop):
        if m.used[3] > most:
            return
        x = writer[k]
        m.used[4] += 1
        if not m.again[x]:
            m.again[x] = True
            m.op[m.used[0]] = m.todo[m.used[1]] = x
            m.used[0] += 1
            m.used[1] += 1
            m.used[3] += duration[x]
    m.reach[first] = max(m.reach[first], stop)


@jit
def is_there(place: int, last: int, dies: bool, absent: bool, until: int) -> bool:
    """Whether a read finds at `place` on the device what it found before."""
    return not absent and (place <= last or (dies and place <= until))


@jit
def is_kept(op: int, last: int, dies: bool, stop: int, kept: int) -> bool:
    """Whether a read of `op` finds its version held beside its buffer; what it changes in place it has to make."""
    return kept == stop and (dies or last > op)


@jit
def sources(v: Origins, ops: I64, place: int, absent: Bool, until: I64, kept: I64) -> tuple[I64, I64, I64]:
    """The values that `ops` read when they run again: rows of buffers and of whole writes, `ON_DEVICE`, or `HELD`."""
    ptr = np.zeros(len(ops) + 1, np.int64)
    for i in range(len(ops)):
        ptr[i + 1] = ptr[i] + v.read_ptr[ops[i] + 1] - v.read_ptr[ops[i]]
    buffer, whole = np.empty(ptr[-1], np.int64), np.full(ptr[-1], ON_DEVICE)
    for i in range(len(ops)):
        for j in range(ptr[i + 1] - ptr[i]):
            k = v.read_ptr[ops[i]] + j
            b = buffer[ptr[i] + j] = v.read[k]
            if is_there(place, v.last[k], v.dies[k], absent[b], until[b]):
                continue
            held = is_kept(ops[i], v.last[k], v.dies[k], v.found.stop[k], kept[b])
            whole[ptr[i] + j] = HELD if held else v.writer[v.found.first[k]]
    return ptr, buffer, whole


def replay(device: Device, wanted: Sequence[Recompute | Hold], place: int) -> Replay:
    """Return what runs again right before op `place`, in order.

    Parameters
    ----------
    device : Device
        With all decisions of the plan.
    wanted : sequence of Recompute or Hold
        Whose values are made again here.
    place : int

    Raises
    ------
    Refused
        A value that is needed is not there and cannot be made again.

    Notes
    -----
    A worklist: O(ops and reads of the closure + decisions).
    """
    v, (ops, there) = device.values, device.closure(wanted, place)
    value = {d: Value(d.buffer, int(v.writer[v.left.first[v.after(d.buffer, d.after)]])) for d in wanted}
    back = frozenset(value[d] for d in wanted if isinstance(d, Recompute))
    held = {value[d]: d.until for d in wanted if isinstance(d, Hold)}
    for twice in back & held.keys():
        raise Refused(f"what buffer {twice.buffer} holds is to stay beside it from op {place} on", ANYWAY)
    ptr, buffer, whole = sources(v, ops, place, *there)
    reads = list(map(Value, buffer.tolist(), whole.tolist()))
    reruns = []
    for x, first, stop in zip(ops.tolist(), ptr[:-1].tolist(), ptr[1:].tolist()):
        wrote = slice(v.write_ptr[x], v.write_ptr[x + 1])
        writes = map(Value, v.write[wrote].tolist(), v.made[wrote].tolist())
        reruns.append(Rerun(x, tuple(reads[first:stop]), tuple(writes)))
    return Replay(place, back, held, tuple(reruns), _spans(reruns))


def replays(device: Device, wanted: Iterable[Recompute | Hold]) -> list[Replay]:
    """Return what runs again at each place; `device` has these decisions and all others. It raises `Refused`."""
    by_place: dict[int, list[Recompute | Hold]] = {}
    for d in wanted:
        by_place.setdefault(d.at, []).append(d)
    return [replay(device, by_place[at], at) for at in sorted(by_place)]
