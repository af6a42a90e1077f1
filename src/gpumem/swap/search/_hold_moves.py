"""Steps over what stays for reruns: what one replay makes, or what dies or is dropped, until another one reads it.

`r`, `d` as in `_moves`.
"""

from __future__ import annotations

from gpumem.base.jit import inner, jit
from gpumem.swap.search._copy_orders import draw
from gpumem.swap.search._recompute_changes import hold, let_go, linger, outlive, present, reruns
from gpumem.swap.search._recompute_state import MARKS, Drops, Replays
from gpumem.trace import I64

NEXT = 4  # replays ahead that something is kept for, at most; not tuned


@jit
def hold_step(r: Replays, d: Drops, seed: I64) -> bool:
    """Keep something for a replay, for longer or shorter, or no longer; False as the changes say it."""
    kind = draw(seed, 8)
    if not len(r.can):
        return False
    if kind == 0:
        return _end_one(r, d, seed)
    if kind == 1 and d.c.pieces[0]:
        return _other_end(r, d, draw(seed, d.c.pieces[0]), seed)
    place = some_replay(d, draw(seed, len(d.added)))
    if place < 0:
        return False
    value = some_made(r, d, place, seed)
    if value < 0:
        return False
    return keep_for_later(r, d, value, place, seed) if draw(seed, 2) else keep_from_before(r, d, value, place)


@inner
def some_replay(d: Drops, place: int) -> int:
    """The next place from one on where something runs again, -1 where there is none."""
    for _ in range(len(d.wanted)):
        if d.wanted[place]:
            return place
        place = (place + 1) % len(d.wanted)
    return -1


@inner
def some_made(r: Replays, d: Drops, place: int, seed: I64) -> int:
    """Draw a value that is made at a place; -1 for one that cannot stay."""
    m, v = r.made, r.made.origins
    absent, kept = present(r, d.c, place)
    ops, _ = reruns(r, d, place, absent, kept)
    if not len(ops):
        return -1
    x = ops[draw(seed, len(ops))]
    count = v.write_ptr[x + 1] - v.write_ptr[x]
    if not count:
        return -1
    value = m.write_value[v.write_ptr[x] + draw(seed, count)]
    return int(value) if m.begins[value] >= 0 else -1


@inner
def keep_for_later(r: Replays, d: Drops, value: int, place: int, seed: I64) -> bool:
    """Let what is made at a place stay until one of the next replays that touch its buffer."""
    b, skip = r.made.holder[value], draw(seed, NEXT)
    stop = later_use(d, b, place)
    while skip and stop > 0:
        further = later_use(d, b, stop)
        if further < 0:
            break
        stop, skip = further, skip - 1
    return stop > 0 and hold(r, d, value, place, stop)


@inner
def later_use(d: Drops, b: int, place: int) -> int:
    """The next replay behind a place that touches a buffer, -1 where there is none."""
    for q in range(place + 1, len(d.wanted)):
        if d.wanted[q] and d.marks[q, b % MARKS]:
            return q
    return -1


@inner
def keep_from_before(r: Replays, d: Drops, value: int, place: int) -> bool:
    """Let what was there before a place stay until its replay: after a death, a drop, or as a piece."""
    m, c, b = r.made, d.c, r.made.holder[value]
    for g in range(r.first[b], r.stop[b]):
        if m.after[g] < place < c.at[g] and m.value[g] == value:
            return linger(r, d, g, place)
    for k in range(c.pieces[0]):
        if c.value[k] == value and c.stop[k] < place:
            start = c.start[k]
            return let_go(r, d, k) and hold(r, d, value, start, place)
    return m.end[b] <= place and outlive(r, d, b, place)


@inner
def _end_one(r: Replays, d: Drops, seed: I64) -> bool:
    """Keep one thing less, drawn: a piece, a dead buffer, or a dropped one."""
    c, kind = d.c, draw(seed, 3)
    if kind == 0 and c.pieces[0]:
        return let_go(r, d, draw(seed, c.pieces[0]))
    if kind == 1:
        b = draw(seed, len(c.until))
        for _ in range(len(c.until)):
            if c.until[b] >= 0:
                return outlive(r, d, b, -1)
            b = (b + 1) % len(c.until)
    k = draw(seed, len(r.can))
    for _ in range(len(r.can)):
        if c.later[r.can[k]]:
            return linger(r, d, r.can[k], 0)
        k = (k + 1) % len(r.can)
    return False


@inner
def _other_end(r: Replays, d: Drops, k: int, seed: I64) -> bool:
    """Let a piece stay until another replay: one after its start, drawn among the next."""
    value, start = d.c.value[k], d.c.start[k]
    return let_go(r, d, k) and keep_for_later(r, d, value, start, seed)
