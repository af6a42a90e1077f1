"""What is swapped, in which order each engine copies, and draws; `p`, `d`, `s` as in `_moves`."""

from __future__ import annotations

from gpumem.base.jit import inner, jit
from gpumem.swap.search._evaluate import SwapProblem, SwapState
from gpumem.swap.search._recompute_state import Drops
from gpumem.trace import I64

MODULUS, FACTOR = 2**31 - 1, 48271  # Lehmer's generator: the same draws with and without the compiler


@inner
def draw(seed: I64, below: int) -> int:
    """Return a random integer in [0, below)."""
    seed[0] = seed[0] * FACTOR % MODULUS
    drawn: int = seed[0] % below
    return drawn


@jit
def toggle(p: SwapProblem, d: Drops, s: SwapState, g: int) -> None:
    """Select gap `g`, or drop it; the first selected gap of a value pays for its copy-out."""
    v = p.value[g]
    before = _payer(p, s, v)
    s.selected[g] = not s.selected[g]
    payer = _payer(p, s, v)
    if payer != before:
        if before >= 0:
            s.used[0] = remove(s.outs, s.used[0], before)
        if payer >= 0:
            s.used[0] = insert(s.outs, s.used[0], payer, p.end, p.after, 1)
        for k in range(p.first[v], p.last[v]):
            s.payer[k] = payer
    if s.selected[g]:
        s.used[1] = insert(s.ins, s.used[1], g, p.begin, d.due, 2)
    else:
        s.used[1] = remove(s.ins, s.used[1], g)


@inner
def _payer(p: SwapProblem, s: SwapState, v: int) -> int:
    for g in range(p.first[v], p.last[v]):
        if s.selected[g]:
            return g if p.out_ns[g] > 0 else -1
    return -1


@inner
def remove(order: I64, count: int, g: int) -> int:
    kept = 0
    for q in range(count):
        if order[q] != g:
            order[kept] = order[q]
            kept += 1
    return kept


@inner
def insert(order: I64, count: int, g: int, time: I64, op: I64, per: int) -> int:
    """Put `g` behind the last one whose time, that of `op[g] // per`, is earlier, ties by index."""
    q, key = count, time[op[g] // per]
    while q > 0:
        other = time[op[order[q - 1]] // per]
        if other < key or (other == key and order[q - 1] < g):
            break
        order[q] = order[q - 1]
        q -= 1
    order[q] = g
    return count + 1


@inner
def shift(order: I64, count: int, seed: I64) -> None:
    """Move one copy by up to three places."""
    if count < 2:
        return
    a = draw(seed, count)
    b = min(max(a + (1 + draw(seed, 3)) * (1 if draw(seed, 2) else -1), 0), count - 1)
    g = order[a]
    while a != b:
        step = 1 if b > a else -1
        order[a] = order[a + step]
        a += step
    order[b] = g
