"""Steps over what is dropped: a value made again, kept, swapped instead, or made elsewhere; an op by another way.

`p`, `r`, `d`, `s`, `x` as in `_moves`.
"""

from __future__ import annotations

from gpumem.base.jit import inner
from gpumem.swap.search._copy_orders import draw, insert, remove, toggle
from gpumem.swap.search._evaluate import Evaluation, SwapProblem, SwapState
from gpumem.swap.search._hold_moves import hold_step, some_replay
from gpumem.swap.search._recompute_changes import choose, drop, settle
from gpumem.swap.search._recompute_state import MARKS, Drops, Replays, make_room, remember
from gpumem.trace import I64

CHOOSING = 30  # of a hundred steps over drops, how many change the way of an op, where ops have a choice
HOLDING = 25  # of the others, how many change what stays for reruns; not tuned
LOOKS = 16  # gaps drawn until one is around the point in question


@inner
def drop_step(p: SwapProblem, r: Replays, d: Drops, was: Drops, s: SwapState, x: Evaluation, seed: I64) -> bool:
    """Change what is dropped, or how an op runs, at random; False where something could not be made again then."""
    if make_room(d):
        remember(r, was, d)
    if len(r.ways.op) and (not len(r.can) or draw(seed, 100) < CHOOSING):
        fine = _choose_some(r, d, x, seed)
        settle(r, d)
        return fine
    if draw(seed, 100) < HOLDING and some_replay(d, 0) >= 0:
        fine = hold_step(r, d, seed)
    else:
        fine = _drop_some(p, r, d, s, x, seed)
    if fine:
        settle(r, d)
        for h in range(len(d.due)):
            if s.selected[h] and d.due[h] != was.due[h]:
                s.used[1] = insert(s.ins, remove(s.ins, s.used[1], h), h, p.begin, d.due, 2)
    return fine


@inner
def _drop_some(p: SwapProblem, r: Replays, d: Drops, s: SwapState, x: Evaluation, seed: I64) -> bool:
    """Drop another gap, none, or elsewhere."""
    g, kind = _some_gap(r, d, x, seed), draw(seed, 4)
    if d.c.at[g]:
        at = _some_place(r, d, g, seed) if kind == 2 else 0
        fine = at != d.c.at[g] and drop(r, d, g, at)
        if kind == 0:
            toggle(p, d, s, g)
        elif kind == 3 and fine:
            fine = _drop_too(p, r, d, s, _some_gap(r, d, x, seed), g, seed)
    else:
        if kind == 0:
            fine = _keep_one(r, d, g, seed)
        elif kind == 1 and s.used[1]:
            toggle(p, d, s, s.ins[draw(seed, s.used[1])])
            fine = True
        else:
            fine = True
        fine = fine and _drop_too(p, r, d, s, g, -1, seed)
    return fine


@inner
def _some_gap(r: Replays, d: Drops, x: Evaluation, seed: I64) -> int:
    """Draw a gap that can be dropped, most often one around the point where the load is too high by most."""
    g, q = r.can[draw(seed, len(r.can))], d.points[min(x.worst[0], max(d.used[0] - 1, 0))]
    if draw(seed, 4):
        for _ in range(LOOKS):
            if 2 * r.made.after[g] + 1 < q < 2 * r.made.before[g]:
                break
            g = r.can[draw(seed, len(r.can))]
    return int(g)


@inner
def _some_place(r: Replays, d: Drops, g: int, seed: I64) -> int:
    """Draw where to make a gap's value again: where it ends, or with others that are made inside it."""
    after, last, chosen, seen = r.made.after[g], r.lasts[g], r.lasts[g], 0
    if draw(seed, 2):
        mark = r.made.buffer[g] % MARKS
        for q in range(after + 1, last + 1):
            if d.wanted[q] and d.marks[q, mark]:
                seen += 1
                if not draw(seed, seen):
                    chosen = q
    return int(chosen)


@inner
def _drop_too(p: SwapProblem, r: Replays, d: Drops, s: SwapState, g: int, other: int, seed: I64) -> bool:
    """Drop a gap that is not dropped yet, and is not the other one."""
    if g == other or d.c.at[g]:
        return False
    if s.selected[g]:
        toggle(p, d, s, g)
    return drop(r, d, g, _some_place(r, d, g, seed))


@inner
def _keep_one(r: Replays, d: Drops, g: int, seed: I64) -> bool:
    """Keep one of the dropped values, the next one after a random gap."""
    k = draw(seed, len(r.can))
    for _ in range(len(r.can)):
        h = r.can[k]
        if d.c.at[h]:
            return drop(r, d, h, 0)
        k = (k + 1) % len(r.can)
    return True


@inner
def _choose_some(r: Replays, d: Drops, x: Evaluation, seed: I64) -> bool:
    """Draw another way for an op, often one that runs where the load is too high by most, or a quicker one."""
    w, kind, k = r.ways, draw(seed, 4), draw(seed, len(r.ways.op))
    if kind < 2:
        k = _some_op(r, d, x, k, seed)
    first, count = w.first[k], w.first[k + 1] - w.first[k]
    if kind == 2 and d.c.by[k] > first:
        count = d.c.by[k] - first + 1
    way = first + draw(seed, count - 1)
    return choose(r, d, k, way + (way >= d.c.by[k]))


@inner
def _some_op(r: Replays, d: Drops, x: Evaluation, k: int, seed: I64) -> int:
    """The op with a choice at the worst point, or one that runs again there; row `k` where there is none."""
    q = d.points[min(x.worst[0], max(d.used[0] - 1, 0))]
    if q % 2:
        return int(r.ways.row[q // 2] if r.ways.row[q // 2] >= 0 else k)
    for _ in range(LOOKS if d.wanted[q // 2] else 0):
        h = draw(seed, len(r.ways.op))
        if d.marks[q // 2, r.ways.own[h] % MARKS]:
            return h
    return k
