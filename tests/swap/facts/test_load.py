"""Room under the limit, against the plain loop that it stands for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.facts.load import Room
from gpumem.trace import I64


class Plain:
    """Room op by op: O(n) a call."""

    def __init__(self, load: I64, limit: int) -> None:
        self.load, self.limit = load, limit

    def hold(self, at: int, until: int, size: int) -> int:
        """Forwards from `at`."""
        return at + self._take(np.arange(at, until), size)

    def fetch(self, earliest: int, before: int, size: int) -> int:
        """Backwards from `before`."""
        return before - self._take(np.arange(before - 1, earliest - 1, -1), size)

    def _take(self, ops: I64, size: int) -> int:
        ops = ops % len(self.load)
        full = self.load[ops] + size > self.limit
        far = int(np.argmax(full)) if full.any() else len(ops)
        self.load[ops[:far]] += size
        return far

    def short(self, start: int, stop: int) -> bool:
        """Whether an op is above the limit."""
        return bool(self.load[np.arange(start, stop) % len(self.load)].max(initial=0) > self.limit)

    def leave(self, start: int, stop: int, size: int) -> None:
        """Take bytes away."""
        self.load[np.arange(start, stop) % len(self.load)] -= size


@given(st.data())
def test_room_is_what_the_plain_loop_finds(data: st.DataObject) -> None:
    n, limit = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 12))
    load = np.array(data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n)), np.int64)
    fast, plain = Room(load.copy(), limit), Plain(load, limit)
    for _ in range(data.draw(st.integers(1, 6))):
        start, size = data.draw(st.integers(0, 2 * n)), data.draw(st.integers(0, 5))
        stop = start + data.draw(st.integers(0, n))
        assert fast.short(start, stop) == plain.short(start, stop)
        call = data.draw(st.sampled_from(["hold", "fetch", "leave"]))
        assert getattr(fast, call)(start, stop, size) == getattr(plain, call)(start, stop, size)
        assert fast.load.tolist() == plain.load.tolist()
