"""What a plan holds in pinned host memory: the one account that every planner asks.

For each value that is swapped the host has a buffer, from its first copy-out through its last copy-in, as `Plan.apply`
makes it; of each random op that is recomputed the state of its generator, from the op through its last recomputation.
Position `2 i` is the place before op `i`, where copies out come first; `2 i + 1` is op `i` itself::

    op          a |  out=a  |   ...   | prefetch=b |  b
    place            a + 1                  b
    host             [======================]           two gaps of one value: from the first through the second
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from gpumem.base.jit import inner, jit
from gpumem.swap.facts import segment_tree as _tree
from gpumem.swap.facts.load import at_places
from gpumem.swap.plan.decisions import Swap
from gpumem.swap.plan.gaps import Gaps
from gpumem.trace import I64, Bool, Trace
from gpumem.trace.kinds import GENERATOR_BYTES


class Values(NamedTuple):
    """The columns that compiled loops read and write. m gaps; places count on from the iteration of the value."""

    size: I64  # m: bytes
    value: I64  # m: gaps of one value share its host buffer
    members: I64  # m: gaps by value
    first: I64  # values + 1: where those of each begin in `members`
    after: I64  # m: the op of the access before the gap
    base: I64  # m: the place right after that, as values count
    constant: Bool  # m: never written, and living for ever: the host always holds it
    taken: Bool  # m
    start: I64  # m: of a taken gap, the place of its copy-out
    stop: I64  # m: and that of its copy-in
    top: I64  # tree over 2 n positions: bytes on the host
    add: I64


class Pinned:
    """Bytes of pinned host memory, followed one decision at a time.

    Parameters
    ----------
    trace : Trace
        Its own host buffers count.
    gaps : Gaps or Windows
        All that may be swapped. Decisions count their ops as the columns `after` and `before` of these do.
    budget : int
        Bytes; may be changed between two decisions.

    Notes
    -----
    Exact: `peak` is the host's peak live bytes in the trace that `Plan.apply` makes of the same decisions. O(log n) a
    decision, and as many steps as the value has gaps.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> from gpumem.swap.plan.gaps import gaps
    >>> ops = Ops.make([[], [], [0], [], [0], []], [[0], [], [], [], [], []])
    >>> trace = Trace(Buffers.make([8], [0], [6]), ops)
    >>> host = Pinned(trace, gaps(trace), budget=8)
    >>> host.take(0, 0, 2), host.take(1, 2, 4), host.peak
    (True, True, 8)
    """

    def __init__(self, trace: Trace, gaps: Gaps, budget: int) -> None:
        value, self.n, self.budget, self.gaps = gaps.value, trace.n, budget, gaps
        members = np.argsort(value, kind="stable")
        counts = np.bincount(value, minlength=int(value.max(initial=-1)) + 1)
        top, add = _tree.build(at_places(trace, host=True))
        self.columns = Values(
            size=gaps.size,
            value=value,
            members=members,
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            after=gaps.after,
            base=gaps.since + 1,
            constant=gaps.constant,
            taken=np.zeros(len(value), np.bool_),
            start=np.zeros(len(value), np.int64),
            stop=np.zeros(len(value), np.int64),
            top=top,
            add=add,
        )
        self.states: dict[int, int] = {}  # random ops that are recomputed, and before which op they are last

    @property
    def peak(self) -> int:
        """The most bytes that the host holds."""
        return int(self.columns.top[1])

    def take(self, gap: int, out: int, prefetch: int) -> bool:
        """Swap gap `gap`, copied out after op `out` and in before op `prefetch`, or move its copies there.

        Return whether the budget allows it; if not, nothing changes.
        """
        return bool(take(self.columns, self.n, self.budget, gap, out, prefetch))

    def drop(self, gap: int) -> None:
        """Do not swap gap `gap` after all."""
        drop(self.columns, self.n, gap)

    def keep(self, states: Mapping[int, int]) -> bool:
        """Keep of these random ops, of no others, the generator's state through the recomputations before an op.

        Return whether the budget allows it; if not, nothing changes.
        """
        before, self.states = self.states, dict(states)
        grown = self._move_states(before, self.states)
        top, add = self.columns.top, self.columns.add
        if all(_tree.largest(top, add, 2 * op + 1, 2 * self.states[op] + 1) <= self.budget for op in grown):
            return True
        self._move_states(self.states, before)
        self.states = before
        return False

    def _move_states(self, old: Mapping[int, int], new: Mapping[int, int]) -> list[int]:
        """Count the states as `new` says and no longer as `old` does; return of which ops they are kept for longer."""
        columns, moved = self.columns, [op for op in {**old, **new} if old.get(op) != new.get(op)]
        for op in moved:
            for until, size in ((old.get(op), -GENERATOR_BYTES), (new.get(op), GENERATOR_BYTES)):
                if until is not None:
                    _tree.add_to(columns.top, columns.add, 2 * op + 1, 2 * until + 1, size)
        return [op for op in moved if op in new and new[op] > old.get(op, -1)]

    def place_copies(self, swaps: Iterable[Swap]) -> list[Swap]:
        """Move the copies of taken gaps to where a schedule has them, never earlier out or later in; return them."""
        placed = list(swaps)
        row = self.gaps.rows(self.n)
        for swap in placed:
            gap = row[swap.buffer, swap.after]
            turn = int(self.gaps.after[gap]) - swap.after
            kept = self.take(gap, swap.out + turn, swap.prefetch + turn)
            assert kept, swap
        return placed


@jit
def take(  # noqa: PLR0917  compiled: no keyword-only parameters
    values: Values, ops: int, budget: int, gap: int, out: int, prefetch: int
) -> bool:
    """As `Pinned.take`, for compiled loops."""
    start, stop = values.base[gap] + out - values.after[gap], values.base[gap] + prefetch - values.after[gap] - 1
    before = values.taken[gap], values.start[gap], values.stop[gap]
    _hold(values, ops, gap, -1)
    values.taken[gap], values.start[gap], values.stop[gap] = True, start, stop
    _hold(values, ops, gap, 1)
    if _most(values, ops, gap) <= budget:
        return True
    _hold(values, ops, gap, -1)
    values.taken[gap], values.start[gap], values.stop[gap] = before
    _hold(values, ops, gap, 1)
    return False


@jit
def drop(values: Values, ops: int, gap: int) -> None:
    """As `Pinned.drop`, for compiled loops."""
    _hold(values, ops, gap, -1)
    values.taken[gap] = False
    _hold(values, ops, gap, 1)


@inner
def _span(values: Values, ops: int, gap: int) -> tuple[int, int]:
    """The positions `[start, stop)` at which the host holds the value of a gap; none if no gap of it is taken."""
    start, stop = 2**62, -1
    for row in range(values.first[values.value[gap]], values.first[values.value[gap] + 1]):
        member = values.members[row]
        if values.taken[member]:
            start, stop = min(start, values.start[member]), max(stop, values.stop[member])
    if stop < 0:
        return 0, 0
    return (0, 2 * ops) if values.constant[gap] else (2 * start, 2 * stop + 1)


@inner
def _hold(values: Values, ops: int, gap: int, sign: int) -> None:
    """Add the bytes of the value of gap `gap` where the host holds it, or take them away."""
    start, stop = _span(values, ops, gap)
    _tree.add_around(values.top, values.add, 2 * ops, start=start, stop=stop, amount=sign * values.size[gap])


@inner
def _most(values: Values, ops: int, gap: int) -> int:
    """The most bytes on the host while it holds the value of gap `gap`."""
    start, stop = _span(values, ops, gap)
    return _tree.largest_around(values.top, values.add, 2 * ops, start=start, stop=stop)
