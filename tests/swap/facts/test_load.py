"""Live bytes, against the plain loop that it stands for and against rewritten traces."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.facts.load import LiveBytes, at_places
from gpumem.swap.plan import Plan, Swap
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import I64, Trace
from tests.strategies import traces


class Plain:
    """The same op by op: O(n) a call."""

    def __init__(self, held: I64, limit: int) -> None:
        self.held, self.limit = held, limit

    @property
    def load(self) -> I64:
        """At ops."""
        return self.held[1::2]

    def hold(self, at: int, until: int, size: int) -> int:
        """Forwards from `at`."""
        return at + self._take(np.arange(at, until), size)

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Backwards from `before`."""
        return before - self._take(np.arange(before - 1, earliest - 1, -1), size)

    def _take(self, ops: I64, size: int) -> int:
        both = self._positions(ops)
        full = (self.held[both] + size > self.limit).any(axis=0)
        far = int(np.argmax(full)) if full.any() else len(ops)
        self.held[both[:, :far]] += size
        return far

    def _positions(self, ops: I64) -> I64:
        return np.array([2 * ops, 2 * ops + 1]) % len(self.held)

    def helps(self, start: int, stop: int) -> bool:
        """Whether an op is above the limit, or the place before it."""
        return bool(self.held[self._positions(np.arange(start, stop))].max(initial=0) > self.limit)

    def leave(self, start: int, stop: int, size: int) -> None:
        """Take bytes away."""
        self.held[self._positions(np.arange(start, stop))] -= size


@given(st.data())
def test_live_bytes_are_what_the_plain_loop_finds(data: st.DataObject) -> None:
    n, limit = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 12))
    held = np.array(data.draw(st.lists(st.integers(0, 12), min_size=2 * n, max_size=2 * n)), np.int64)
    fast, plain = LiveBytes(held.copy(), limit), Plain(held, limit)
    for _ in range(data.draw(st.integers(1, 6))):
        start, size = data.draw(st.integers(0, 2 * n)), data.draw(st.integers(0, 5))
        stop = start + data.draw(st.integers(0, n))
        assert fast.helps(start, stop) == plain.helps(start, stop)
        call = data.draw(st.sampled_from(["hold", "fetch", "leave"]))
        assert getattr(fast, call)(start, stop, size) == getattr(plain, call)(start, stop, size)
        assert fast.load.tolist() == plain.load.tolist()
        assert (fast.peak, fast.op, fast.over) == (held.max(), held.argmax() // 2, held.max() > limit)
    fast.copy().need(0, 100)
    assert fast.at(0) == held[0]


@given(traces(), st.data())
def test_gaps_leave_the_live_bytes_of_the_rewritten_trace(trace: Trace, data: st.DataObject) -> None:
    found = gaps(trace)
    chosen = found.where(np.array([data.draw(st.booleans()) for _ in range(len(found))], np.bool_))
    start, stop, size = chosen.after + 1, chosen.before, trace.buffers.size[chosen.buffer]
    plan = Plan.of(trace, Swap.each(chosen, start, stop))
    room, alone = LiveBytes.of(trace, 1, (start, stop, size)), LiveBytes.of(trace)
    for row in zip(start.tolist(), stop.tolist(), size.tolist()):
        alone.leave(*row)
    swapped = plan.apply(trace)
    computing = np.flatnonzero(np.isin(swapped.ops.role, trace.ops.role))
    assert room.load.tolist() == alone.load.tolist() == swapped.live_bytes()[computing].tolist()
    assert room.copy().peak == room.peak == swapped.peak_live_bytes
    assert [room.at(i) <= room.highest(i, i + 1) for i in range(trace.n)] == [True] * trace.n


def test_what_reruns_need_at_a_place_is_no_room_for_others() -> None:
    room = LiveBytes.of(Trace.from_lifetimes([4, 2], [0, 1], [4, 3]), 8)
    assert room.load.tolist() == at_places(Trace.from_lifetimes([4, 2], [0, 1], [4, 3]))[1::2].tolist() == [4, 6, 6, 4]
    room.need(2, 2)
    assert (room.peak, room.op, room.at(2)) == (8, 2, 8)
    assert room.hold(1, 4, 1) == 2 and room.fetch(1, 4, 1) == 3
