"""Which buffers are parked, against a look at every gap in every turn."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.mosos.parking import _largest_first
from gpumem.swap.plan.gaps import gaps, straddle, without
from gpumem.trace import Trace
from tests.strategies import traces


@given(traces(), st.floats(0, 1))
def test_the_largest_gap_around_the_tightest_op_goes(trace: Trace, room: float) -> None:
    every = gaps(trace)
    found = every.where(every.before > every.after + 1)
    size, needs, gone = found.size, trace.live_bytes(), np.zeros(len(found), np.bool_)
    most = room * trace.peak_live_bytes
    got = _largest_first(found, needs, most)
    while needs.max(initial=0) > most:
        around = ~gone & straddle(found, np.arange(trace.n) == np.argmax(needs))
        if not around.any():
            break
        k = int(np.argmax(np.where(around, size, -1)))
        gone[k] = True
        needs = without(needs, found.where(np.array([k])))
    assert got.tolist() == gone.tolist()
