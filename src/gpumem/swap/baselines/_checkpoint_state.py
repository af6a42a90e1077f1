"""What a pass of `_checkpoint_rollout` knows: its rules, what all passes through a trace share, and where it stands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts.recompute_cost import RecomputableGaps, loads
from gpumem.swap.plan.replay import Closure, marks
from gpumem.trace import F64, I64, Bool

# Indexes of `PassState.counts`: how many gaps are active, how many values are wanted at the op at hand, how many gaps
# have ended and begun so far, how many ops were recomputed, how many steps the pass took (see `_checkpoint_prices`).
ACTIVE, WANTED, ENDED, BEGUN, RECOMPUTED, STEPS, COUNTS = range(7)


class DropRules(NamedTuple):
    """By what a pass decides."""

    limit: int  # bytes
    half_powers: int  # worth is divided by the time until the next read to the power of `half_powers` / 2; 0 to 2
    children: float  # weight of the dropped values that would be recomputed from this one, in its time
    factor: F64  # m: what each gap's time is multiplied by
    recomputed: int  # ops that are recomputed at most,
    steps: int  # and steps of the pass at most; a pass that exceeds either fails


class PassFacts(NamedTuple):
    """What all passes through a trace share. m gaps, n ops."""

    lasts: I64  # m: the last op before which a gap's value can be recomputed, whatever else is dropped; 0: none
    own_ns: I64  # m: ns of the ops that recompute it, all else being on the device
    by_after: I64  # gaps by their first op, ascending
    by_last: I64  # gaps by `lasts`
    reader_ptr: I64  # of each value the ops that read it
    reader: I64
    clock: I64  # n + 1: ns before each op

    @classmethod
    def of(cls, account: RecomputableGaps) -> PassFacts:
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
def _expiries(account: RecomputableGaps) -> I64:
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
            if origins.finds.why[read] != 0:
                least = min(least, origins.last[read])
            elif origins.finds.stop[read] > origins.finds.first[read]:
                least = min(least, max(origins.last[read], through[origins.finds.stop[read] - 1]))
        while row < len(order) and origins.writer[order[row]] == op:
            link = order[row]
            # A chain is as short-lived as its shortest-lived op: the op before it in the chain stands in the row above.
            through[link] = least if begins[link] or link == 0 else min(least, through[link - 1])
            row += 1
    return through


class PassState(NamedTuple):
    """Where a pass stands. B buffers, v values, m gaps."""

    at: I64  # m: right before which op each gap's value is recomputed; 0: it is kept
    live: I64  # 2 n: the live bytes at each position, without scratch
    absent: Bool  # B: off the device
    until: I64  # B: as in `RecomputableGaps.costs`
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


@inner
def begin_state(account: RecomputableGaps, until: I64) -> PassState:
    ops, buffers, gaps = len(account.duration), len(account.size), len(account.buffer)
    values = len(account.holder)
    return PassState(
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
