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
dropped since its first drop: recomputations that found it in between make it in scratch, which this pass has not
counted. That is why `_checkpoint_evict` prices a pass afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import MadeAgain, loads, replayed
from gpumem.swap.facts.union_find import join, root
from gpumem.swap.plan.replay import FREE, Closure, ascending, chase, clear, is_there, marks
from gpumem.trace import F64, I64, Bool

# Indexes of `State.counts`: how many gaps are active, how many values are wanted at the op at hand, how many gaps have
# ended and begun so far, how many ops were recomputed, how many steps the pass took (see `_checkpoint_prices`).
ACTIVE, WANTED, ENDED, BEGUN, RECOMPUTED, STEPS, COUNTS = range(7)
CHAIN_NS, LOOKS = 3, 4  # indexes of `Closure.used`: ns of the marked ops; reads that were looked at
FAR = 2.0**61  # ns, more than any recomputation takes: keeps the conversion to int64 below from overflowing
NO_BOUND = 2**62  # ns: `chase` does not give up


class DropRules(NamedTuple):
    """By what a pass decides."""

    limit: int  # bytes
    half_powers: int  # worth is divided by the time until the next read to the power of `half_powers` / 2; 0 to 2
    children: float  # weight of the dropped values that would be recomputed from this one, in its time
    factor: F64  # m: what each gap's time is multiplied by
    recomputed: int  # ops that are recomputed at most,
    steps: int  # and steps of the pass at most; a pass that exceeds either fails


class Facts(NamedTuple):
    """What all passes through a trace share. m gaps, n ops."""

    lasts: I64  # m: the last op before which a gap's value can be recomputed, whatever else is dropped; 0: none
    own_ns: I64  # m: ns of the ops that recompute it, all else being on the device
    by_after: I64  # gaps by their first op, ascending
    by_last: I64  # gaps by `lasts`
    reader_ptr: I64  # of each value the ops that read it
    reader: I64
    clock: I64  # n + 1: ns before each op

    @classmethod
    def of(cls, account: MadeAgain) -> Facts:
        """Look at all gaps: O(accesses log accesses + the lengths of all chains)."""
        origins, n = account.origins, len(account.duration)
        row = [origins.after(*access) for access in zip(account.buffer.tolist(), account.after.tolist())]
        has_chain = account.stop > account.first
        through = np.append(_expiries(account), 0)[np.where(has_chain, account.stop - 1, -1)]
        recomputable = has_chain & (origins.left.why[np.array(row, np.int64)] == 0)
        lasts = np.where(recomputable, np.minimum(account.before, through), 0)
        lasts = np.where(lasts > account.after + 1, lasts, 0)  # a gap without an op in between saves no bytes
        ns = np.concatenate([[0], np.cumsum(account.duration[origins.writer])])
        order = np.argsort(account.read_value, kind="stable")
        reader_ptr = np.searchsorted(account.read_value[order], np.arange(len(account.holder) + 1)).astype(np.int64)
        return cls(
            lasts=lasts,
            own_ns=ns[account.stop] - ns[account.first],
            by_after=np.argsort(account.after, kind="stable"),
            by_last=np.argsort(lasts, kind="stable"),
            reader_ptr=reader_ptr,
            reader=np.repeat(np.arange(n), np.diff(origins.read_ptr))[order],
            clock=np.concatenate([[0], np.cumsum(account.duration)]),
        )


@jit
def _expiries(account: MadeAgain) -> I64:
    """Of each row of `writer` the last op before which the chain through it can run, whatever else is dropped.

    A parameter's update ends what was computed from the parameter, which cannot be recomputed behind the update. So no
    plan drops such a value over the update: later ops read it where it is, as long as it lives.
    """
    origins, n, row = account.origins, len(account.duration), 0
    begins = np.zeros(len(origins.writer) + 1, np.bool_)
    for access in range(len(origins.left.first)):
        begins[origins.left.first[access]] = True
    through, order = np.full(len(origins.writer), n), np.argsort(origins.writer, kind="mergesort")
    for op in range(n):
        least = n
        for read in range(origins.read_ptr[op], origins.read_ptr[op + 1]):
            if origins.found.why[read] != 0:
                least = min(least, origins.last[read])
            elif origins.found.stop[read] > origins.found.first[read]:
                least = min(least, max(origins.last[read], through[origins.found.stop[read] - 1]))
        while row < len(order) and origins.writer[order[row]] == op:
            link = order[row]
            # A chain is as short-lived as its shortest-lived op: the op before it in the chain stands in the row above.
            through[link] = least if begins[link] or link == 0 else min(least, through[link - 1])
            row += 1
    return through


class State(NamedTuple):
    """Where a pass stands. B buffers, v values, m gaps."""

    at: I64  # m: right before which op each gap's value is recomputed; 0: it is kept
    live: I64  # 2 n: the live bytes at each position, without scratch
    absent: Bool  # B: off the device
    until: I64  # B: as in `MadeAgain.costs`
    kept: I64  # B: -1, as no version is held beside its buffer
    current: I64  # B: the gap that the pass is in, -1 before the first
    active: I64  # the gaps that the pass is in and that can be dropped; counts[ACTIVE] of them
    place: I64  # m: where in `active`, -1 where it is not
    least_ns: F64  # m: a lower bound of what the value takes to be recomputed as things stand
    reads: I64  # m: ops before which recomputations read it
    dropped: Bool  # v
    parent: I64  # v: dropped values that are computed from one another are one set of a union-find,
    set_ns: I64  # v: and at its root the ns of its members
    read_at: I64  # B: the last op before which a recomputation read it on the device
    wanted: I64  # gaps whose values return before the op at hand; counts[WANTED] of them
    marked: Closure
    first: I64  # v: lent to `replayed`, as are the next two
    last: I64
    scratch: Bool
    counts: I64


class Pass(NamedTuple):
    """A pass through a trace: the account that prices recomputations, what all passes share, the rules, the state."""

    account: MadeAgain
    facts: Facts
    rules: DropRules
    state: State


@inner
def _begin(account: MadeAgain, until: I64) -> State:
    ops, buffers, gaps = len(account.duration), len(account.size), len(account.buffer)
    values = len(account.holder)
    return State(
        at=np.zeros(gaps, np.int64),
        live=loads(account, np.zeros(gaps, np.int64), until),
        absent=np.zeros(buffers, np.bool_),
        until=until,
        kept=np.full(buffers, -1),
        current=np.full(buffers, -1),
        active=np.zeros(gaps, np.int64),
        place=np.full(gaps, -1),
        least_ns=np.zeros(gaps, np.float64),
        reads=np.zeros(gaps, np.int64),
        dropped=np.zeros(values, np.bool_),
        parent=np.arange(values),
        set_ns=np.zeros(values, np.int64),
        read_at=np.full(buffers, -1),
        wanted=np.zeros(gaps, np.int64),
        marked=marks(np.zeros(ops, np.bool_), len(account.origins.writer)),
        first=np.full(values, -1),
        last=np.full(values, -1),
        scratch=np.ones(values, np.bool_),
        counts=np.zeros(COUNTS, np.int64),
    )


@jit
def rollout(account: MadeAgain, facts: Facts, rules: DropRules, until: I64) -> tuple[I64, bool, int]:
    """Go through the trace: before which op each gap's value is recomputed (0: it is kept), whether that fits, steps.

    `until`, int64[B]: until when a dead buffer is held, -1 where it is not.
    """
    run = Pass(account, facts, rules, _begin(account, until))
    fits = True
    for op in range(len(account.duration)):
        fits = _advance(run, op)
        if not fits:
            break
    return run.state.at, fits, _steps(run.state)


@inner
def _advance(run: Pass, op: int) -> bool:
    """Recompute what op `op` reads, evict until the op fits, run it; False where one of these cannot be."""
    state = run.state
    _leave_gaps(run, op)
    if state.counts[WANTED] > 0 and not _return(run, op):
        return False
    while state.live[2 * op + 1] > run.rules.limit:
        if not _drop_one(run, op):
            return False
    _enter_gaps(run, op)
    return bool(_steps(state) <= run.rules.steps)


@inner
def _steps(state: State) -> int:
    steps: int = state.counts[STEPS] + state.marked.used[LOOKS]
    return steps


@inner
def _enter_gaps(run: Pass, op: int) -> None:
    """Enter the gaps that begin behind op `op`; their values can be dropped from now on."""
    account, facts, state = run.account, run.facts, run.state
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
def _leave_gaps(run: Pass, op: int) -> None:
    """Leave the gaps whose values return before op `op` at the latest; what is dropped until there is wanted."""
    facts, state = run.facts, run.state
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
def _return(run: Pass, op: int) -> bool:
    """Recompute the wanted values right before op `op`, and keep what is computed on the way; False: not possible."""
    rules, state = run.rules, run.state
    due = state.counts[WANTED]
    extra, ops = _recompute(run, op)
    while extra < 0 or state.live[2 * op] + extra > rules.limit:
        if extra < 0 or not _drop_one(run, op):
            return False
        extra, ops = _recompute(run, op)
    if _keep_on_the_way(run, op, ops):
        extra, ops = _recompute(run, op)
        # With them the scratch may exceed the limit. Half of them are left out at a time (not tuned): each try follows
        # the whole closure, and there may be thousands.
        while state.counts[WANTED] > due and (extra < 0 or state.live[2 * op] + extra > rules.limit):
            _leave_out(run, op, (state.counts[WANTED] - due + 1) // 2)
            extra, ops = _recompute(run, op)
    state.counts[RECOMPUTED] += len(ops)
    _commit_return(run, op, ops)
    return bool(state.counts[RECOMPUTED] <= rules.recomputed)


@inner
def _recompute(run: Pass, op: int) -> tuple[int, I64]:
    """The bytes beside the live bytes that recomputing the wanted values takes, -1 if they cannot be; and the ops."""
    account, state = run.account, run.state
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
def _keep_on_the_way(run: Pass, op: int, ops: I64) -> bool:
    """Let dropped values return that `ops` compute on the way, if they fit beside op `op`; whether any does.

    The last ones first: the backward pass reads them first, so that their bytes are free again for those before them.
    """
    account, state = run.account, run.state
    origins, any_stays = account.origins, False
    for made in ops[::-1]:
        for row in range(origins.write_ptr[made], origins.write_ptr[made + 1]):
            gap, size = state.current[origins.write[row]], account.size[origins.write[row]]
            # Not in a gap, not dropped beyond this op, or of another version of the buffer.
            if gap < 0 or state.at[gap] <= op or account.value[gap] != account.write_value[row]:
                continue
            if max(state.live[2 * op], state.live[2 * op + 1]) + size <= run.rules.limit:
                state.counts[STEPS] += 2 * (state.at[gap] - op)
                state.live[2 * op : 2 * state.at[gap]] += size
                state.at[gap], any_stays = op, True
                state.wanted[state.counts[WANTED]] = gap
                state.counts[WANTED] += 1
    return any_stays


@inner
def _leave_out(run: Pass, op: int, count: int) -> None:
    """Take back the last `count` values that were to return with the others before op `op`."""
    account, state = run.account, run.state
    for _ in range(count):
        state.counts[WANTED] -= 1
        gap = state.wanted[state.counts[WANTED]]
        state.at[gap] = run.facts.lasts[gap]
        state.live[2 * op : 2 * state.at[gap]] -= account.size[account.buffer[gap]]


@inner
def _commit_return(run: Pass, op: int, ops: I64) -> None:
    """The wanted values are on the device; others may now be cheaper to recompute, so their bounds are reset."""
    account, facts, state = run.account, run.facts, run.state
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
def _drop_one(run: Pass, op: int) -> bool:
    """Drop the value that is worth least to keep over op `op`; False where none can be dropped.

    A lazy evaluation that misses nothing: between two looks at a value only drops happen (`_commit_return` resets the
    bounds), and a drop makes no recomputation cheaper. So `least_ns` is a lower bound, and the first value that is
    still the cheapest when it is looked at again is the cheapest of all.
    """
    # Columns by name: looked up in the records at every use, the loop takes many times as long.
    account, state = run.account, run.state
    clock, lasts, size, buffer, after = run.facts.clock, run.facts.lasts, account.size, account.buffer, account.after
    at, absent, read_at, least_ns, reads = state.at, state.absent, state.read_at, state.least_ns, state.reads
    factor, half_powers = run.rules.factor, run.rules.half_powers
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
        ns = _recompute_ns(run, op, victim, second / unit)
        if ns * unit <= second:
            _drop(run, victim)
            return True
        least_ns[victim] = max(least_ns[victim], ns)


@inner
def _recompute_ns(run: Pass, op: int, gap: int, most: float) -> float:
    """The ns of recomputing a value as things stand, and `children` of the dropped values that are computed from it.

    Chains are not followed far above `most` ns: by then the value is not the cheapest any more.
    """
    account, facts, state = run.account, run.facts, run.state
    origins, buffer, counted, ns = account.origins, account.buffer[gap], -1, 1.0
    for reader in facts.reader[facts.reader_ptr[account.value[gap]] : facts.reader_ptr[account.value[gap] + 1]]:
        for row in range(origins.write_ptr[reader], origins.write_ptr[reader + 1]):
            if state.dropped[account.write_value[row]]:
                top = root(state.parent, account.write_value[row])
                if top != counted:  # most readers of a value are in one set, which counts once
                    ns += run.rules.children * max(state.set_ns[top], 0)
                counted = top
    clear(state.marked)
    state.absent[buffer] = True
    bound = int(min(max(most - ns, 0.0), FAR)) + 1
    present, first, stop = (state.absent, state.until, state.kept), account.first, account.stop
    chain = first[gap : gap + 1], stop[gap : gap + 1]
    chase(origins, *chain, op, op, *present, state.marked, account.duration, bound)
    state.absent[buffer] = False
    return float(ns + state.marked.used[CHAIN_NS])


@inner
def _drop(run: Pass, gap: int) -> None:
    """Drop a value from its last access on until it returns as late as it can, and join it with dropped neighbours."""
    account, facts, state = run.account, run.facts, run.state
    origins, buffer, value = account.origins, account.buffer[gap], account.value[gap]
    start = 2 * account.after[gap] + 2 if state.at[gap] == 0 else 2 * state.at[gap]
    state.at[gap] = facts.lasts[gap]
    state.live[start : 2 * state.at[gap]] -= account.size[buffer]
    state.counts[STEPS] += 2 * state.at[gap] - start
    state.absent[buffer] = state.dropped[value] = True
    state.parent[value], state.set_ns[value] = value, facts.own_ns[gap]
    for writer in origins.writer[account.first[gap] : account.stop[gap]]:
        for row in range(origins.read_ptr[writer], origins.read_ptr[writer + 1]):
            _join(state, value, account.read_value[row])
    for reader in facts.reader[facts.reader_ptr[value] : facts.reader_ptr[value + 1]]:
        for row in range(origins.write_ptr[reader], origins.write_ptr[reader + 1]):
            _join(state, value, account.write_value[row])


@inner
def _join(state: State, value: int, other: int) -> None:
    """Make one set of those of two values, if the other one is dropped as well."""
    if state.dropped[other]:
        join(state.parent, state.set_ns, other, value)
