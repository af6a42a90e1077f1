"""What a plan holds in pinned host memory: the one account that every planner asks.

For each value that is swapped the host has a buffer, from its first copy-out through its last copy-in, as `Plan.apply`
makes it; of each random op that runs again the state of its generator, from the op through its last rerun. Position
`2 i` is the place before op `i`, where copies out come first; `2 i + 1` is op `i` itself::

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
    found : Gaps or Windows
        All that may be swapped. Decisions count their ops as the columns `after` and `before` of these do.
    budget : int
        Bytes; may be changed between two decisions.

    Notes
    -----
    Exact: `peak` is the host's peak load in the trace that `Plan.apply` makes of the same decisions. O(log n) a
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

    def __init__(self, trace: Trace, found: Gaps, budget: int) -> None:
        value, self.n, self.budget, self.found = found.value, trace.n, budget, found
        members = np.argsort(value, kind="stable")
        counts = np.bincount(value, minlength=int(value.max(initial=-1)) + 1)
        self.columns = Values(
            found.size,
            value,
            members,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            found.after,
            found.since + 1,
            found.constant,
            np.zeros(len(value), np.bool_),
            np.zeros(len(value), np.int64),
            np.zeros(len(value), np.int64),
            *_tree.build(at_places(trace, host=True)),
        )
        self.states: dict[int, int] = {}  # random ops that run again, and before which op they do last

    @property
    def peak(self) -> int:
        """The most bytes that the host holds."""
        return int(self.columns.top[1])

    def take(self, k: int, out: int, prefetch: int) -> bool:
        """Swap gap `k`, copied out after op `out` and in before op `prefetch`, or move its copies there.

        Return whether the budget allows it; if not, nothing changes.
        """
        return bool(take(self.columns, self.n, self.budget, k, out, prefetch))

    def drop(self, k: int) -> None:
        """Do not swap gap `k` after all."""
        drop(self.columns, self.n, k)

    def keep(self, states: Mapping[int, int]) -> bool:
        """Keep of these random ops, of no others, the generator's state through the reruns before an op.

        Return whether the budget allows it; if not, nothing changes.
        """
        before, self.states = self.states, dict(states)
        grown = self._move_states(before, self.states)
        v = self.columns
        if all(_tree.largest(v.top, v.add, 2 * op + 1, 2 * self.states[op] + 1) <= self.budget for op in grown):
            return True
        self._move_states(self.states, before)
        self.states = before
        return False

    def _move_states(self, old: Mapping[int, int], new: Mapping[int, int]) -> list[int]:
        """Count the states as `new` says and no longer as `old` does; return of which ops they are kept for longer."""
        v, moved = self.columns, [op for op in {**old, **new} if old.get(op) != new.get(op)]
        for op in moved:
            for until, size in ((old.get(op), -GENERATOR_BYTES), (new.get(op), GENERATOR_BYTES)):
                if until is not None:
                    _tree.add_to(v.top, v.add, 2 * op + 1, 2 * until + 1, size)
        return [op for op in moved if op in new and new[op] > old.get(op, -1)]

    def settle(self, swaps: Iterable[Swap]) -> list[Swap]:
        """Move the copies of taken gaps to where a schedule has them, never earlier out or later in; return them."""
        settled = list(swaps)
        row = self.found.rows(self.n)
        for s in settled:
            k = row[s.buffer, s.after]
            turn = int(self.found.after[k]) - s.after
            kept = self.take(k, s.out + turn, s.prefetch + turn)
            assert kept, s
        return settled


@jit
def take(v: Values, n: int, budget: int, k: int, out: int, prefetch: int) -> bool:
    """As `Pinned.take`, for compiled loops."""
    start, stop = v.base[k] + out - v.after[k], v.base[k] + prefetch - v.after[k] - 1
    before = v.taken[k], v.start[k], v.stop[k]
    _hold(v, n, k, -1)
    v.taken[k], v.start[k], v.stop[k] = True, start, stop
    _hold(v, n, k, 1)
    if _most(v, n, k) <= budget:
        return True
    _hold(v, n, k, -1)
    v.taken[k], v.start[k], v.stop[k] = before
    _hold(v, n, k, 1)
    return False


@jit
def drop(v: Values, n: int, k: int) -> None:
    """As `Pinned.drop`, for compiled loops."""
    _hold(v, n, k, -1)
    v.taken[k] = False
    _hold(v, n, k, 1)


@inner
def _span(v: Values, n: int, k: int) -> tuple[int, int]:
    """The positions at which the host holds the value of gap `k`, as `[start, stop)`; none if no gap of it is taken."""
    start, stop = 2**62, -1
    for j in range(v.first[v.value[k]], v.first[v.value[k] + 1]):
        g = v.members[j]
        if v.taken[g]:
            start, stop = min(start, v.start[g]), max(stop, v.stop[g])
    if stop < 0:
        return 0, 0
    return (0, 2 * n) if v.constant[k] else (2 * start, 2 * stop + 1)


@inner
def _hold(v: Values, n: int, k: int, sign: int) -> None:
    """Add the bytes of the value of gap `k` where the host holds it, or take them away."""
    start, stop = _span(v, n, k)
    _tree.add_around(v.top, v.add, 2 * n, start, stop, sign * v.size[k])


@inner
def _most(v: Values, n: int, k: int) -> int:
    """The most bytes on the host while it holds the value of gap `k`."""
    start, stop = _span(v, n, k)
    return _tree.largest_around(v.top, v.add, 2 * n, start, stop)
