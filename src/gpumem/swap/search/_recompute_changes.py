"""Changes of what is dropped, made again and held, one at a time; what follows is found anew where it can differ.

A change of what is there of a buffer from one place to another concerns the replays between them that touch the buffer,
no others; only these are made anew. So are those that run an op which takes another of its ways. Exact: loads and times
are those of the trace that `Plan.apply` makes.

Every change returns False, and all is half done, where some value cannot be made again then, or there is no room to
note it. After the last one `settle` has to follow.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import replayed
from gpumem.swap.plan.replay import FREE, ON_DEVICE, closure, sources
from gpumem.swap.search._recompute_state import MARKS, Decided, Drops, Replays, choose_all, make_room
from gpumem.trace import I64, Bool


@jit
def drop(r: Replays, d: Drops, g: int, at: int) -> bool:
    """Make the value of gap `g` again right before op `at`, or keep it if that is 0."""
    c, old, after = d.c, d.c.at[g], r.made.after[g]
    _count(r, d, g, 1)
    c.at[g] = at
    if c.later[g] >= at:
        c.later[g] = 0
    _count(r, d, g, -1)
    d.wanted[old] -= old > 0
    d.wanted[at] += at > 0
    return _redo(r, d, r.made.buffer[g], after, max(old, at), old, at)


@jit
def linger(r: Replays, d: Drops, g: int, later: int) -> bool:
    """Drop gap `g`, which is dropped, no earlier than before op `later`; right after its access if that is 0."""
    c, old = d.c, d.c.later[g]
    if later >= c.at[g]:
        return False
    _count(r, d, g, 1)
    c.later[g] = later
    _count(r, d, g, -1)
    return _redo(r, d, r.made.buffer[g], r.made.after[g], max(old, later), 0, 0)


@jit
def outlive(r: Replays, d: Drops, b: int, until: int) -> bool:
    """Hold buffer `b` after its death until op `until`; not at all if that is -1."""
    n, end, old = len(d.added), r.made.end[b], d.c.until[b]
    if until >= 0 and not (end <= until <= n and r.made.lives[b]):
        return False
    _stay(d, b, end, old, -1)
    _stay(d, b, end, until, 1)
    d.c.until[b] = until
    return _redo(r, d, b, end - 1, max(old, until), 0, 0)


@jit
def hold(r: Replays, d: Drops, value: int, start: int, stop: int) -> bool:
    """Make a value again right before op `start` and let it stay until op `stop`."""
    m, c, k = r.made, d.c, d.c.pieces[0]
    b = m.holder[value]
    born = m.origins.writer[m.ends[value] - 1]
    if m.begins[value] < 0 or not born < start < stop <= len(d.added) or k == len(c.value) or m.size[b] == 0:
        return False
    for j in range(k):
        if m.holder[c.value[j]] == b and c.start[j] < stop and start < c.stop[j]:
            return False
    c.value[k], c.start[k], c.stop[k], c.pieces[0] = value, start, stop, k + 1
    _stay(d, b, start, stop, 1)
    d.wanted[start] += 1
    return _redo(r, d, b, start - 1, stop, start, 0)


@jit
def let_go(r: Replays, d: Drops, k: int) -> bool:
    """Hold piece `k` no longer; the last one takes its number."""
    c, last = d.c, d.c.pieces[0] - 1
    b, start, stop = r.made.holder[c.value[k]], c.start[k], c.stop[k]
    c.value[k], c.start[k], c.stop[k], c.pieces[0] = c.value[last], c.start[last], c.stop[last], last
    _stay(d, b, start, stop, -1)
    d.wanted[start] -= 1
    return _redo(r, d, b, start - 1, stop, start, 0)


@jit
def choose(r: Replays, d: Drops, k: int, way: int) -> bool:
    """Run the op of row `k` of `r.ways` by another way, in replays too."""
    op, own = r.ways.op[k], r.ways.own[k]
    _run_by(r, d, k, way)
    return _redo(r, d, own, op, len(d.added), 0, 0)


@inner
def _count(r: Replays, d: Drops, g: int, sign: int) -> None:
    """Count the bytes of a dropped gap where it is absent."""
    at, later = d.c.at[g], d.c.later[g]
    for q in range(2 * later + 1 if later else 2 * r.made.after[g] + 2, 2 * at):
        d.load[q] += sign * d.size[r.made.buffer[g]]


@inner
def _stay(d: Drops, b: int, start: int, stop: int, sign: int) -> None:
    """Count the bytes of what stays from op `start` on through the reruns before op `stop`; none where that is -1."""
    for q in range(2 * start, min(2 * stop + 1, len(d.load))):
        d.load[q] += sign * d.size[b]


@inner
def _redo(r: Replays, d: Drops, b: int, after: int, last: int, one: int, other: int) -> bool:
    """Find out anew what runs at places behind `after` through `last` that touch a buffer, and at two more."""
    for q in range(after + 1, min(last + 1, len(d.added))):
        if d.wanted[q] == 0:
            if q in (one, other):
                d.added[q] = d.beside[q] = d.length[q] = 0
        elif (q in (one, other) or d.marks[q, b % MARKS]) and not _replay(r, d, q):
            return False
    return True


@inner
def _run_by(r: Replays, d: Drops, k: int, way: int) -> None:
    """Let the op of a row run by another way, and say nothing yet of its reruns."""
    op, own, longer, size = r.ways.op[k], r.ways.own[k], r.ways.longer[way], r.ways.size[way]
    d.load[2 * op + 1] += size - d.size[own]
    d.duration[op] += longer - d.longer[op]
    d.c.by[k], d.longer[op], d.size[own] = way, longer, size


@inner
def present(r: Replays, c: Decided, place: int) -> tuple[Bool, I64]:
    """What is absent at a place, yet to be brought back or not, and what is held there; see `replay.Present`."""
    m = r.made
    absent, kept = np.zeros(len(m.size), np.bool_), np.full(len(m.size), -1)
    after, buffer, at, later = m.after, m.buffer, c.at, c.later
    for g in range(len(at)):
        if after[g] < place <= at[g] and later[g] < place:
            absent[buffer[g]] = True
    for k in range(c.pieces[0]):
        if c.start[k] < place <= c.stop[k]:
            kept[m.holder[c.value[k]]] = m.ends[c.value[k]]
    return absent, kept


@inner
def _wanted(r: Replays, d: Drops, place: int) -> tuple[I64, I64, I64]:
    """The values that come back or are to stay at a place, and their chains; no value twice, or none at all."""
    m, c, k = r.made, d.c, 0
    value, first, stop = np.zeros((3, d.wanted[place]), np.int64)
    for g in range(len(c.at)):
        if c.at[g] == place:
            value[k], first[k], stop[k] = m.value[g], m.first[g], m.stop[g]
            k += 1
    gaps = k
    for j in range(c.pieces[0]):
        if c.start[j] == place:
            for i in range(gaps):
                if value[i] == c.value[j]:
                    return value[:0], first[:0], stop[:0]
            value[k], first[k], stop[k] = c.value[j], m.begins[c.value[j]], m.ends[c.value[j]]
            k += 1
    return value, first, stop


@inner
def reruns(r: Replays, d: Drops, place: int, absent: Bool, kept: I64) -> tuple[I64, I64]:
    """The ops that run again at a place, and the values that stay; none where that cannot be."""
    stay, first, stop = _wanted(r, d, place)
    again = np.zeros(len(d.added), np.bool_)
    if len(stay) and closure(r.made.origins, first, stop, place, absent, d.c.until, kept, again)[0] != FREE:
        stay = stay[:0]
    return np.flatnonzero(again[:place]), stay


@inner
def _replay(r: Replays, d: Drops, place: int) -> bool:
    """Find out what runs again at a place."""
    m, v, until = r.made, r.made.origins, d.c.until
    absent, kept = present(r, d.c, place)
    ops, stay = reruns(r, d, place, absent, kept)
    if not len(stay):
        return False
    first, last = np.full(len(m.holder), -1), np.full(len(m.holder), -1)
    scratch = np.ones(len(m.holder), np.bool_)
    d.beside[place], d.added[place] = replayed(
        m, d.size, d.duration, stay, place, absent, until, kept, ops, first, last, scratch
    )
    _, read, whole = sources(v, ops, place, absent, until, kept)
    return _note(r, d, place, ops, read, whole)


@inner
def _note(r: Replays, d: Drops, place: int, ops: I64, read: I64, whole: I64) -> bool:
    """Note what a replay touches, and what it reads on the device; False where there is no room for that.

    Of what it writes, the workspaces of ops with a choice are marked.
    """
    d.marks[place] = False
    d.start[place], d.length[place] = d.used[1], 0  # also where there is no room: nobody may read beyond it
    for op in ops:
        if r.ways.row[op] >= 0:
            d.marks[place, r.ways.own[r.ways.row[op]] % MARKS] = True
    if d.used[1] + len(read) > len(d.read):
        return False
    for k in range(len(read)):
        d.marks[place, read[k] % MARKS] = True
        if whole[k] == ON_DEVICE:
            d.read[d.used[1]] = read[k]
            d.used[1] += 1
    d.length[place] = d.used[1] - d.start[place]
    return True


@jit
def settle(r: Replays, d: Drops) -> None:
    """Find what follows for the load and for swapped gaps."""
    n = len(d.added)
    for g in range(len(d.due)):
        d.due[g], d.due_turn[g] = 2 * (r.made.before[g] % n) + 1, (r.after[g] + _length(r, g)) // n
    for place in range(n):
        if d.wanted[place]:
            for k in range(d.start[place], d.start[place] + d.length[place]):
                _needed(r, d, d.read[k], place)
    _points(r, d)


@inner
def _needed(r: Replays, d: Drops, b: int, place: int) -> None:
    """Let buffer `b` be back before the reruns of a place."""
    n = len(d.added)
    for g in range(r.first[b], r.stop[b]):
        after = r.made.after[g] % n
        length = (d.due[g] // 2 - after - 1) % n + 1
        far = (place - after - 1) % n + 1
        if far < length or (far == length and d.due[g] % 2):
            d.due[g], d.due_turn[g] = 2 * place, (r.after[g] + far) // n


@inner
def _length(r: Replays, g: int) -> int:
    return int(r.made.before[g] - r.made.after[g])


@inner
def _points(r: Replays, d: Drops) -> None:
    """Find the positions at which the load can be too high, and the next ones, where copies end and begin."""
    n, count = len(d.added), 0
    for q in range(2 * n):
        d.held[q] = d.load[q] + (d.beside[q // 2] if q % 2 == 0 else 0)
    high = d.held[2 * n - 1] > r.goal
    for q in range(2 * n):
        d.next_point[q] = count
        if q % 2 or d.wanted[q // 2]:
            now = d.held[q] > r.goal
            if now or high:
                d.points[count] = q
                count += 1
            high = now
    d.next_point[2 * n] = d.used[0] = count


@jit
def prune(r: Replays, d: Drops) -> bool:
    """Hold dead buffers, and what is dropped, no longer than replays read them: they take what they took.

    False, and all is half done, where there is no room to note what is read.
    """
    c, fine = d.c, True
    for b in range(len(c.until)):
        if fine and c.until[b] >= 0:
            make_room(d)
            fine = outlive(r, d, b, _last_read(d, b, r.made.end[b] - 1, c.until[b]))
    for g in range(len(c.later)):
        if fine and c.later[g]:
            make_room(d)
            last = _last_read(d, r.made.buffer[g], r.made.after[g], c.later[g])
            fine = linger(r, d, g, max(last, 0))
    return fine


@inner
def _last_read(d: Drops, b: int, after: int, last: int) -> int:
    """The last replay behind `after` through `last` that reads a buffer where it is, -1 where there is none."""
    for q in range(min(last, len(d.wanted) - 1), after, -1):
        if d.wanted[q] and d.marks[q, b % MARKS]:
            for k in range(d.start[q], d.start[q] + d.length[q]):
                if d.read[k] == b:
                    return q
    return -1


@jit
def fill(r: Replays, d: Drops, chosen: Decided) -> bool:
    """Choose just that; False, and all is half done, where that cannot be."""
    fine, m, c = True, r.made, d.c
    d.wanted[:], d.added[:], d.beside[:], d.length[:], d.used[1] = 0, 0, 0, 0, 0
    for q in range(len(d.load)):
        d.load[q] = r.load[q]
    for k in range(len(chosen.by)):
        d.size[r.ways.own[k]] = m.size[r.ways.own[k]]
        _run_by(r, d, k, chosen.by[k])
    choose_all(c, chosen)
    for g in range(len(c.at)):
        d.wanted[c.at[g]] += c.at[g] > 0
        _count(r, d, g, -1)
    for k in range(c.pieces[0]):
        d.wanted[c.start[k]] += 1
        _stay(d, m.holder[c.value[k]], c.start[k], c.stop[k], 1)
    for b in range(len(c.until)):
        _stay(d, b, m.end[b], c.until[b], 1)
    for place in range(len(d.added)):
        if d.wanted[place]:
            fine = fine and _replay(r, d, place)
    settle(r, d)
    return fine
