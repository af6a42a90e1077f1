"""One run through a trace within a limit: what has to go goes, what is needed comes back, with the rest in sight.

::

    op        0  1  2  3  4  5  6  7  8  9 ...
    A      ===x..............[A B]============      dropped at 2, since op 3 would be above the limit;
    B         ===x...........[A B]===               made again where it is read next: right before op 6,
    limit  ---------|                                and what is made on the way stays, where there is room

What goes is what takes least to make again, as things stand, for its bytes and for how long they are not needed. So
does DTR (Kirisame et al. 2021, section 2) without a look at what comes; a plan knows when each value is read next. A
program may have any number of forward and backward passes: nothing here asks for them.

A plan drops a value right after its access, so one that came back early and goes after all is taken back to when it
was dropped first: reruns that found it there make it in scratch. That is why a run is priced afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import MadeAgain, loads, replayed
from gpumem.swap.facts.union_find import join, root
from gpumem.swap.plan.replay import FREE, Closure, ascending, chase, clear, is_there, marks
from gpumem.trace import F64, I64, Bool

ACTIVE, WANTED, ENDS, BEGINS, RERUNS, STEPS = range(6)  # of `Rollout.counts`
FAR = 2.0**61  # ns that nothing takes


class DropRules(NamedTuple):
    """By what a run decides."""

    limit: int
    half_powers: int  # of the time until a value is needed, by which its worth is divided: of its root, 0 to 2
    children: float  # how much of what was dropped after it, and is made of it, counts to its time
    factor: F64  # m: what each gap's time is multiplied by
    reruns: int  # ops that run again at most,
    steps: int  # and steps of the run


class Facts(NamedTuple):
    """What all runs through a trace share. m gaps, n ops."""

    lasts: I64  # m: the last place at which a gap's value can be made again, whatever else is dropped; 0: none
    own: I64  # m: ns of the ops that make it, all else being there
    by_after: I64  # gaps, ascending
    by_last: I64
    reader_ptr: I64  # of each value the ops that read it
    reader: I64
    clock: I64  # n + 1: ns before each op

    @classmethod
    def of(cls, m: MadeAgain) -> Facts:
        """Look at all gaps: O(accesses log accesses + what all chains have)."""
        v, n = m.origins, len(m.duration)
        row = [v.after(*access) for access in zip(m.buffer.tolist(), m.after.tolist())]
        made = m.stop > m.first
        through = np.append(_expiries(m), 0)[np.where(made, m.stop - 1, -1)]
        fine = made & (v.left.why[np.array(row, np.int64)] == 0)
        lasts = np.where(fine, np.minimum(m.before, through), 0)
        lasts = np.where(lasts > m.after + 1, lasts, 0)
        ns = np.concatenate([[0], np.cumsum(m.duration[v.writer])])
        order = np.argsort(m.read_value, kind="stable")
        ptr = np.searchsorted(m.read_value[order], np.arange(len(m.holder) + 1)).astype(np.int64)
        return cls(
            lasts,
            ns[m.stop] - ns[m.first],
            np.argsort(m.after, kind="stable"),
            np.argsort(lasts, kind="stable"),
            ptr,
            np.repeat(np.arange(n), np.diff(v.read_ptr))[order],
            np.concatenate([[0], np.cumsum(m.duration)]),
        )


@jit
def _expiries(m: MadeAgain) -> I64:
    """Of each row of `writer` the last place at which the chain through it can run, whatever else is dropped.

    A parameter that is updated ends what was made of it, since that cannot be made again behind the update. So no plan
    drops it there: it is read where it is, as long as it lives.
    """
    v, n, row = m.origins, len(m.duration), 0
    begins = np.zeros(len(v.writer) + 1, np.bool_)
    for k in range(len(v.left.first)):
        begins[v.left.first[k]] = True
    through, order = np.full(len(v.writer), n), np.argsort(v.writer, kind="mergesort")
    for x in range(n):
        least = n
        for k in range(v.read_ptr[x], v.read_ptr[x + 1]):
            if v.found.why[k] != 0:
                least = min(least, v.last[k])
            elif v.found.stop[k] > v.found.first[k]:
                least = min(least, max(v.last[k], through[v.found.stop[k] - 1]))
        while row < len(order) and v.writer[order[row]] == x:
            r = order[row]
            through[r] = least if begins[r] or r == 0 else min(least, through[r - 1])
            row += 1
    return through


class Rollout(NamedTuple):
    """The state of a run. B buffers, v values."""

    at: I64  # m: right before which op each gap's value is made again; 0: it is kept
    held: I64  # 2 n: the load at each position, without scratch
    absent: Bool  # B
    until: I64  # B: as in `MadeAgain.costs`
    kept: I64  # B: -1, as nothing is held beside its buffer
    current: I64  # B: the gap that the run is in, -1 before the first
    active: I64  # the gaps that it is in and that can be dropped: so many as `counts` says
    where: I64  # m: where among those
    least: F64  # m: ns that a value takes at least to be made again as things stand
    reads: I64  # m: places whose reruns read it
    gone: Bool  # v: it is dropped
    up: I64  # v: dropped values that are made of one another: a forest of sets,
    weight: I64  # v: and the ns of each
    busy: I64  # B: the last place whose reruns read it on the device
    wanted: I64  # what comes back at the place at hand: so many as `counts` says
    marked: Closure
    first: I64  # v: as `replayed` lends them
    last: I64
    scratch: Bool
    counts: I64


@inner
def _begin(m: MadeAgain, until: I64) -> Rollout:
    n, count, gaps, values = len(m.duration), len(m.size), len(m.buffer), len(m.holder)
    return Rollout(
        np.zeros(gaps, np.int64),
        loads(m, np.zeros(gaps, np.int64), until),
        np.zeros(count, np.bool_),
        until,
        np.full(count, -1),
        np.full(count, -1),
        np.zeros(gaps, np.int64),
        np.full(gaps, -1),
        np.zeros(gaps, np.float64),
        np.zeros(gaps, np.int64),
        np.zeros(values, np.bool_),
        np.arange(values),
        np.zeros(values, np.int64),
        np.full(count, -1),
        np.zeros(gaps, np.int64),
        marks(np.zeros(n, np.bool_), len(m.origins.writer)),
        np.full(values, -1),
        np.full(values, -1),
        np.ones(values, np.bool_),
        np.zeros(6, np.int64),
    )


@jit
def rollout(m: MadeAgain, f: Facts, rules: DropRules, until: I64) -> tuple[I64, bool, int]:
    """Run through the trace: before which op each gap comes back (0: it is kept), whether it fits, and steps.

    `until`, int64[B]: until when a dead buffer is held, -1 where it is not.
    """
    s = _begin(m, until)
    for i in range(len(m.duration)):
        _end(f, s, i)
        if s.counts[WANTED] > 0 and not _return(m, f, rules, s, i):
            return s.at, False, s.counts[STEPS] + s.marked.used[4]
        while s.held[2 * i + 1] > rules.limit:
            if not _drop_one(m, f, rules, s, i):
                return s.at, False, s.counts[STEPS] + s.marked.used[4]
        _enter(m, f, s, i)
        if s.counts[STEPS] + s.marked.used[4] > rules.steps:
            return s.at, False, s.counts[STEPS] + s.marked.used[4]
    return s.at, True, s.counts[STEPS] + s.marked.used[4]


@inner
def _enter(m: MadeAgain, f: Facts, s: Rollout, i: int) -> None:
    """Enter the gaps that begin behind op `i`."""
    k = s.counts[BEGINS]
    while k < len(f.by_after) and m.after[f.by_after[k]] == i:
        g = f.by_after[k]
        s.current[m.buffer[g]] = g
        if f.lasts[g] > 0:
            s.active[s.counts[ACTIVE]], s.where[g], s.least[g] = g, s.counts[ACTIVE], f.own[g] + 1.0
            s.counts[ACTIVE] += 1
        k += 1
    s.counts[BEGINS] = k


@inner
def _end(f: Facts, s: Rollout, i: int) -> None:
    """Leave the gaps that op `i` is the last place of; what is dropped there is wanted."""
    s.counts[WANTED], k = 0, s.counts[ENDS]
    while k < len(f.by_last) and f.lasts[f.by_last[k]] <= i:
        g = f.by_last[k]
        if s.at[g] == i and i > 0:
            s.wanted[s.counts[WANTED]] = g
            s.counts[WANTED] += 1
        if s.where[g] >= 0:
            s.counts[ACTIVE] -= 1
            other = s.active[s.counts[ACTIVE]]
            s.active[s.where[g]], s.where[other] = other, s.where[g]
            s.where[g] = -1
        k += 1
    s.counts[ENDS] = k


@inner
def _return(m: MadeAgain, f: Facts, rules: DropRules, s: Rollout, i: int) -> bool:
    """Make again what is wanted right before op `i`, and keep what is made on the way; False where that cannot be."""
    least = s.counts[WANTED]
    extra, ops = _replay(m, s, i)
    while extra < 0 or s.held[2 * i] + extra > rules.limit:
        if extra < 0 or not _drop_one(m, f, rules, s, i):
            return False
        extra, ops = _replay(m, s, i)
    if _stay(m, rules, s, i, ops):
        extra, ops = _replay(m, s, i)
        while s.counts[WANTED] > least and (extra < 0 or s.held[2 * i] + extra > rules.limit):
            _leave(m, f, s, i, (s.counts[WANTED] - least + 1) // 2)
            extra, ops = _replay(m, s, i)
    s.counts[RERUNS] += len(ops)
    _settle(m, f, s, i, ops)
    return bool(s.counts[RERUNS] <= rules.reruns)


@inner
def _replay(m: MadeAgain, s: Rollout, i: int) -> tuple[int, I64]:
    """The bytes beside the load that making the wanted values takes, -1 where they cannot be made; and the ops."""
    v, wanted = m.origins, s.wanted[: s.counts[WANTED]]
    clear(s.marked)
    there = s.absent, s.until, s.kept
    stuck, _ = chase(v, m.first[wanted], m.stop[wanted], i, i, *there, s.marked, m.duration, 2**62)
    ops = ascending(s.marked)
    if stuck != FREE:
        return -1, ops
    s.counts[STEPS] += len(ops)
    for x in ops:
        for k in range(v.read_ptr[x], v.read_ptr[x + 1]):
            if is_there(i, v.last[k], v.dies[k], s.absent[v.read[k]], s.until[v.read[k]]):
                s.busy[v.read[k]] = i
    extra, _ = replayed(m, m.size, m.duration, m.value[wanted], i, *there, ops, s.first, s.last, s.scratch)
    return max(extra, 0), ops


@inner
def _stay(m: MadeAgain, rules: DropRules, s: Rollout, i: int, ops: I64) -> bool:
    """Let dropped values come back that `ops` make on the way, where there is room beside op `i`; whether any does.

    The last ones first: backward they are needed first, so that their room is free again for those before them.
    """
    v, some = m.origins, False
    for x in ops[::-1]:
        for k in range(v.write_ptr[x], v.write_ptr[x + 1]):
            g, size = s.current[v.write[k]], m.size[v.write[k]]
            if g < 0 or s.at[g] <= i or m.value[g] != m.write_value[k]:
                continue
            if max(s.held[2 * i], s.held[2 * i + 1]) + size <= rules.limit:
                s.counts[STEPS] += 2 * (s.at[g] - i)
                s.held[2 * i : 2 * s.at[g]] += size
                s.at[g], some = i, True
                s.wanted[s.counts[WANTED]] = g
                s.counts[WANTED] += 1
    return some


@inner
def _leave(m: MadeAgain, f: Facts, s: Rollout, i: int, count: int) -> None:
    """Let the last so many of those that came back with the others not come back here."""
    for _ in range(count):
        s.counts[WANTED] -= 1
        g = s.wanted[s.counts[WANTED]]
        s.at[g] = f.lasts[g]
        s.held[2 * i : 2 * s.at[g]] -= m.size[m.buffer[g]]


@inner
def _settle(m: MadeAgain, f: Facts, s: Rollout, i: int, ops: I64) -> None:
    """The wanted values are there; what others take to be made again may be less."""
    v = m.origins
    for g in s.wanted[: s.counts[WANTED]]:
        s.absent[m.buffer[g]] = s.gone[m.value[g]] = False
        s.weight[root(s.up, m.value[g])] -= f.own[g]
    for x in ops:
        for k in range(v.read_ptr[x], v.read_ptr[x + 1]):
            if s.busy[v.read[k]] == i and s.current[v.read[k]] >= 0:
                s.reads[s.current[v.read[k]]] += 1
    for g in s.active[: s.counts[ACTIVE]]:
        s.least[g] = f.own[g] + 1.0


@inner
def _drop_one(m: MadeAgain, f: Facts, rules: DropRules, s: Rollout, i: int) -> bool:
    """Drop what is worth least to keep over op `i`; False where there is nothing.

    What a value takes is at least what it took when that was looked at last, since only drops came in between: the
    first one that is still the least when it is looked at again is the least of all.
    """
    clock, size, buffer, after, lasts = f.clock, m.size, m.buffer, m.after, f.lasts
    at, absent, busy, least, reads, factor = s.at, s.absent, s.busy, s.least, s.reads, rules.factor
    while True:
        low, second, chosen, unit = np.inf, np.inf, -1, 1.0
        s.counts[STEPS] += s.counts[ACTIVE]
        for g in s.active[: s.counts[ACTIVE]]:
            b = buffer[g]
            if absent[b] or busy[b] == i or after[g] >= i or lasts[g] <= i or at[g] >= i:
                continue
            away = clock[lasts[g]] - clock[i] + 1.0
            away = 1.0 if rules.half_powers == 0 else np.sqrt(away) if rules.half_powers == 1 else away
            per = factor[g] * (1.0 + reads[g]) / (size[b] * away)
            worth = least[g] * per
            if worth < low:
                low, second, chosen, unit = worth, low, g, per
            elif worth < second:
                second = worth
        if chosen < 0:
            return False
        ns = _takes(m, f, rules, s, i, chosen, second / unit)
        if ns * unit <= second:
            _drop(m, f, s, chosen)
            return True
        s.least[chosen] = max(least[chosen], ns)


@inner
def _takes(m: MadeAgain, f: Facts, rules: DropRules, s: Rollout, i: int, g: int, most: float) -> float:
    """The ns of making a value again as things are, and a part of what hangs on it; not followed far above `most`."""
    v, b, seen, ns = m.origins, m.buffer[g], -1, 1.0
    for k in range(f.reader_ptr[m.value[g]], f.reader_ptr[m.value[g] + 1]):
        for j in range(v.write_ptr[f.reader[k]], v.write_ptr[f.reader[k] + 1]):
            if s.gone[m.write_value[j]]:
                mine = root(s.up, m.write_value[j])
                if mine != seen:  # most readers of a value are in one set
                    ns += rules.children * max(s.weight[mine], 0)
                seen = mine
    clear(s.marked)
    s.absent[b] = True
    far = int(min(max(most - ns, 0.0), FAR)) + 1
    chase(v, m.first[g : g + 1], m.stop[g : g + 1], i, i, s.absent, s.until, s.kept, s.marked, m.duration, far)
    s.absent[b] = False
    return float(ns + s.marked.used[3])


@inner
def _drop(m: MadeAgain, f: Facts, s: Rollout, g: int) -> None:
    """Drop a value from its last access on, until its next one."""
    v, b, value = m.origins, m.buffer[g], m.value[g]
    start = 2 * m.after[g] + 2 if s.at[g] == 0 else 2 * s.at[g]
    s.at[g] = f.lasts[g]
    s.held[start : 2 * s.at[g]] -= m.size[b]
    s.counts[STEPS] += 2 * s.at[g] - start
    s.absent[b] = s.gone[value] = True
    s.up[value], s.weight[value] = value, f.own[g]
    for r in range(m.first[g], m.stop[g]):
        for k in range(v.read_ptr[v.writer[r]], v.read_ptr[v.writer[r] + 1]):
            _join(s, value, m.read_value[k])
    for k in range(f.reader_ptr[value], f.reader_ptr[value + 1]):
        for j in range(v.write_ptr[f.reader[k]], v.write_ptr[f.reader[k] + 1]):
            _join(s, value, m.write_value[j])


@inner
def _join(s: Rollout, value: int, other: int) -> None:
    """Make one set of those of two values, if the other one is dropped as well."""
    if s.gone[other]:
        join(s.up, s.weight, other, value)
