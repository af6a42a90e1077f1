"""One pass through a trace that keeps to a limit: drop what is cheapest when short, recompute what is read next.

::

    op        0  1  2  3  4  5  6  7  8  9 ...
    A      ===x..............[A B]============      dropped at 2, since op 3 would exceed the limit;
    B         ===x...........[A B]===               recomputed where it is read next: right before op 6,
    limit  ---------|                                and what is recomputed on the way stays, if it fits

The victim is the value that is cheapest to recompute, as things stand, for its bytes and for how long they are not
read. So does DTR (Kirisame et al. 2021, section 2), which does not know the next reads; a plan does. The trace may hold
any number of forward and backward passes: nothing here asks for them.

A plan drops a value right after its access. So a value that was recomputed early and is dropped once more counts as
dropped since its first drop: recomputations that read it in between make it in scratch, which this pass has not
counted. That is why `_checkpoint_evict` prices a pass afterwards.
"""

from __future__ import annotations

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.baselines._checkpoint_state import (
    ACTIVE,
    BEGUN,
    ENDED,
    RECOMPUTED,
    STEPS,
    WANTED,
    DropRules,
    PassFacts,
    PassState,
    begin_state,
)
from gpumem.swap.facts.recompute_cost import RecomputableGaps, replayed
from gpumem.swap.facts.union_find import join, root
from gpumem.swap.plan.replay import FREE, ascending, chase, clear, is_there
from gpumem.trace import I64

CHAIN_NS, LOOKS = 3, 4  # indexes of `Closure.used`: ns of the marked ops; reads that were looked at
FAR = 2.0**61  # ns, more than any recomputation takes: keeps the conversion to int64 below from overflowing
NO_BOUND = 2**62  # ns: `chase` does not give up


@jit
def rollout(account: RecomputableGaps, facts: PassFacts, rules: DropRules, until: I64) -> tuple[I64, bool, int]:
    """Go through the trace: before which op each gap's value is recomputed (0: it is kept), whether that fits, steps.

    `until`, int64[B]: until when a dead buffer is held, -1 where it is not.
    """
    state, fits = begin_state(account, until), True
    for op in range(len(account.duration)):
        # Recompute what the op reads, drop values until the op fits, run it.
        _leave_gaps(facts, state, op)
        if state.counts[WANTED] > 0:
            fits = _return(account, facts, rules, state, op=op)
        while fits and state.live[2 * op + 1] > rules.limit:
            fits = _drop_one(account, facts, rules, state, op=op)
        _enter_gaps(account, facts, state, op)
        if not fits or state.counts[STEPS] + state.marked.used[LOOKS] > rules.steps:
            return state.at, False, state.counts[STEPS] + state.marked.used[LOOKS]
    return state.at, True, state.counts[STEPS] + state.marked.used[LOOKS]


@inner
def _enter_gaps(account: RecomputableGaps, facts: PassFacts, state: PassState, op: int) -> None:
    """Enter the gaps that begin behind op `op`; their values can be dropped from now on."""
    begun = state.counts[BEGUN]
    while begun < len(facts.by_after) and account.after[facts.by_after[begun]] == op:
        gap = facts.by_after[begun]
        state.current[account.buffer[gap]] = gap
        if facts.lasts[gap] > 0:
            state.active[state.counts[ACTIVE]], state.place[gap] = gap, state.counts[ACTIVE]
            state.least_ns[gap] = facts.own_ns[gap] + 1.0
            state.counts[ACTIVE] += 1
        begun += 1
    state.counts[BEGUN] = begun


@inner
def _leave_gaps(facts: PassFacts, state: PassState, op: int) -> None:
    """Leave the gaps whose values return before op `op` at the latest; what is dropped until there is wanted."""
    state.counts[WANTED], ended = 0, state.counts[ENDED]
    while ended < len(facts.by_last) and facts.lasts[facts.by_last[ended]] <= op:
        gap = facts.by_last[ended]
        if state.at[gap] == op and op > 0:
            state.wanted[state.counts[WANTED]] = gap
            state.counts[WANTED] += 1
        if state.place[gap] >= 0:  # the last active gap takes its place
            state.counts[ACTIVE] -= 1
            moved = state.active[state.counts[ACTIVE]]
            state.active[state.place[gap]], state.place[moved] = moved, state.place[gap]
            state.place[gap] = -1
        ended += 1
    state.counts[ENDED] = ended


@inner
def _return(account: RecomputableGaps, facts: PassFacts, rules: DropRules, state: PassState, op: int) -> bool:
    """Recompute the wanted values right before op `op`, and keep what is computed on the way; False: not possible."""
    due = state.counts[WANTED]
    extra, ops = _recompute(account, state, op)
    while extra < 0 or state.live[2 * op] + extra > rules.limit:
        if extra < 0 or not _drop_one(account, facts, rules, state, op=op):
            return False
        extra, ops = _recompute(account, state, op)
    if _keep_on_the_way(account, rules, state, op=op, ops=ops):
        extra, ops = _recompute(account, state, op)
        # With them the scratch may exceed the limit. Half of them are left out at a time (not tuned): each try follows
        # the whole closure, and there may be thousands.
        while state.counts[WANTED] > due and (extra < 0 or state.live[2 * op] + extra > rules.limit):
            _leave_out(account, facts, state, op, count=(state.counts[WANTED] - due + 1) // 2)
            extra, ops = _recompute(account, state, op)
    state.counts[RECOMPUTED] += len(ops)
    _commit_return(account, facts, state, op=op, ops=ops)
    return bool(state.counts[RECOMPUTED] <= rules.recomputed)


@inner
def _recompute(account: RecomputableGaps, state: PassState, op: int) -> tuple[int, I64]:
    """The bytes beside the live bytes that recomputing the wanted values takes, -1 if they cannot be; and the ops."""
    origins, wanted = account.origins, state.wanted[: state.counts[WANTED]]
    clear(state.marked)
    present = state.absent, state.until, state.kept
    first, stop = account.first[wanted], account.stop[wanted]
    stuck, _ = chase(origins, first, stop, op, op, *present, state.marked, account.duration, NO_BOUND)
    ops = ascending(state.marked)
    if stuck != FREE:
        return -1, ops
    state.counts[STEPS] += len(ops)
    for made in ops:
        for row in range(origins.read_ptr[made], origins.read_ptr[made + 1]):
            buffer = origins.read[row]
            if is_there(op, origins.last[row], origins.dies[row], state.absent[buffer], state.until[buffer]):
                state.read_at[buffer] = op
    stay, lent = account.value[wanted], (state.first, state.last, state.scratch)
    extra, _ = replayed(account, account.size, account.duration, stay, op, *present, ops, *lent)
    return max(extra, 0), ops


@inner
def _keep_on_the_way(account: RecomputableGaps, rules: DropRules, state: PassState, op: int, ops: I64) -> bool:
    """Let dropped values return that `ops` compute on the way, if they fit beside op `op`; whether any does.

    The last ones first: the backward pass reads them first, so that their bytes are free for those before them.
    """
    origins, any_stays = account.origins, False
    for made in ops[::-1]:
        for row in range(origins.write_ptr[made], origins.write_ptr[made + 1]):
            gap, size = state.current[origins.write[row]], account.size[origins.write[row]]
            # Not in a gap, not dropped beyond this op, or of another version of the buffer.
            if gap < 0 or state.at[gap] <= op or account.value[gap] != account.write_value[row]:
                continue
            if max(state.live[2 * op], state.live[2 * op + 1]) + size <= rules.limit:
                state.counts[STEPS] += 2 * (state.at[gap] - op)
                state.live[2 * op : 2 * state.at[gap]] += size
                state.at[gap], any_stays = op, True
                state.wanted[state.counts[WANTED]] = gap
                state.counts[WANTED] += 1
    return any_stays


@inner
def _leave_out(account: RecomputableGaps, facts: PassFacts, state: PassState, op: int, count: int) -> None:
    """Take back the last `count` values that were to return with the others before op `op`."""
    for _ in range(count):
        state.counts[WANTED] -= 1
        gap = state.wanted[state.counts[WANTED]]
        state.at[gap] = facts.lasts[gap]
        state.live[2 * op : 2 * state.at[gap]] -= account.size[account.buffer[gap]]


@inner
def _commit_return(account: RecomputableGaps, facts: PassFacts, state: PassState, op: int, ops: I64) -> None:
    """The wanted values are on the device; others may now be cheaper to recompute, so their bounds are reset."""
    origins = account.origins
    for gap in state.wanted[: state.counts[WANTED]]:
        state.absent[account.buffer[gap]] = state.dropped[account.value[gap]] = False
        state.set_ns[root(state.parent, account.value[gap])] -= facts.own_ns[gap]
    for made in ops:
        for row in range(origins.read_ptr[made], origins.read_ptr[made + 1]):
            buffer = origins.read[row]
            if state.read_at[buffer] == op and state.current[buffer] >= 0:
                state.reads[state.current[buffer]] += 1
    for gap in state.active[: state.counts[ACTIVE]]:
        state.least_ns[gap] = facts.own_ns[gap] + 1.0


@inner
def _drop_one(account: RecomputableGaps, facts: PassFacts, rules: DropRules, state: PassState, op: int) -> bool:
    """Drop the value that is worth least to keep over op `op`; False where none can be dropped.

    A lazy evaluation that misses nothing: between two evaluations of a value only drops happen (`_commit_return` resets
    the bounds), and a drop makes no recomputation cheaper. So `least_ns` is a lower bound, and the first value that is
    still the cheapest after its evaluation is the cheapest of all.
    """
    # Columns by name: looked up in the records at every use, the loop takes many times as long.
    clock, lasts, size, buffer, after = facts.clock, facts.lasts, account.size, account.buffer, account.after
    at, absent, read_at, least_ns, reads = state.at, state.absent, state.read_at, state.least_ns, state.reads
    factor, half_powers = rules.factor, rules.half_powers
    while True:
        lowest, second, victim, unit = np.inf, np.inf, -1, 1.0
        state.counts[STEPS] += state.counts[ACTIVE]
        for gap in state.active[: state.counts[ACTIVE]]:
            owner = buffer[gap]
            # Off the device, read or brought back by this op's recomputations, or read by the op or the one before.
            if absent[owner] or read_at[owner] == op or after[gap] >= op or lasts[gap] <= op or at[gap] >= op:
                continue
            idle = clock[lasts[gap]] - clock[op] + 1.0
            idle = 1.0 if half_powers == 0 else np.sqrt(idle) if half_powers == 1 else idle
            per_ns = factor[gap] * (1.0 + reads[gap]) / (size[owner] * idle)
            worth = least_ns[gap] * per_ns
            if worth < lowest:
                lowest, second, victim, unit = worth, lowest, gap, per_ns
            elif worth < second:
                second = worth
        if victim < 0:
            return False
        ns = _recompute_ns(account, facts, rules, state, op=op, gap=victim, most=second / unit)
        if ns * unit <= second:
            _drop(account, facts, state, victim)
            return True
        least_ns[victim] = max(least_ns[victim], ns)


@inner
def _recompute_ns(  # noqa: PLR0917  compiled: a record of these records takes more than twice as long to pass
    account: RecomputableGaps, facts: PassFacts, rules: DropRules, state: PassState, op: int, gap: int, most: float
) -> float:
    """The ns of recomputing a value as things stand, and `children` of the dropped values that are computed from it.

    Chains are not followed far above `most` ns: by then the value is not the cheapest any more.
    """
    origins, buffer, value, counted, ns = account.origins, account.buffer[gap], account.value[gap], -1, 1.0
    for entry in range(facts.reader_ptr[value], facts.reader_ptr[value + 1]):
        reader = facts.reader[entry]
        for row in range(origins.write_ptr[reader], origins.write_ptr[reader + 1]):
            if state.dropped[account.write_value[row]]:
                top = root(state.parent, account.write_value[row])
                if top != counted:  # most readers of a value are in one set, which counts once
                    ns += rules.children * max(state.set_ns[top], 0)
                counted = top
    clear(state.marked)
    state.absent[buffer] = True
    bound = int(min(max(most - ns, 0.0), FAR)) + 1
    present, duration = (state.absent, state.until, state.kept), account.duration
    first, stop = account.first[gap : gap + 1], account.stop[gap : gap + 1]
    chase(origins, first, stop, op, op, *present, state.marked, duration, bound)
    state.absent[buffer] = False
    return float(ns + state.marked.used[CHAIN_NS])


@inner
def _drop(account: RecomputableGaps, facts: PassFacts, state: PassState, gap: int) -> None:
    """Drop a value from its last access on until it returns as late as it can, and join it with dropped neighbours."""
    origins, buffer, value = account.origins, account.buffer[gap], account.value[gap]
    start = 2 * account.after[gap] + 2 if state.at[gap] == 0 else 2 * state.at[gap]
    state.at[gap] = facts.lasts[gap]
    state.live[start : 2 * state.at[gap]] -= account.size[buffer]
    state.counts[STEPS] += 2 * state.at[gap] - start
    state.absent[buffer] = state.dropped[value] = True
    state.parent[value], state.set_ns[value] = value, facts.own_ns[gap]
    for link in range(account.first[gap], account.stop[gap]):
        writer = origins.writer[link]
        for row in range(origins.read_ptr[writer], origins.read_ptr[writer + 1]):
            _join(state, value, account.read_value[row])
    for entry in range(facts.reader_ptr[value], facts.reader_ptr[value + 1]):
        reader = facts.reader[entry]
        for row in range(origins.write_ptr[reader], origins.write_ptr[reader + 1]):
            _join(state, value, account.write_value[row])


@inner
def _join(state: PassState, value: int, other: int) -> None:
    """Make one set of those of two values, if the other one is dropped as well."""
    if state.dropped[other]:
        join(state.parent, state.set_ns, other, value)
