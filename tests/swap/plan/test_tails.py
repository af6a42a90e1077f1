"""Dead tails: what goes without them, and plans for a trace and for what is left of it, one for the other."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.swap.plan import Hold, Plan
from gpumem.swap.plan.tails import Tails, without_tails
from gpumem.swap.plan.values import FINE, Origins
from gpumem.testing import plans, steps
from gpumem.trace import Buffers, Ops, Trace


@st.composite
def with_tails(draw: st.DrawFn) -> Trace:
    """A training step whose buffers stay for longer than it needs them."""
    trace = draw(steps())
    b = trace.buffers
    more = np.array(draw(st.lists(st.integers(0, 4), min_size=len(b), max_size=len(b))), np.int64)
    longer = ~b.persistent & ~b.host & (b.end <= trace.n)
    end = np.where(longer, np.minimum(b.end + more, trace.n), b.end)
    return Trace(Buffers.make(b.size, b.start, end, persistent=b.persistent, kind=b.kind), trace.ops)


@given(st.data())
def test_what_goes_is_behind_the_last_access_and_of_no_use(data: st.DataObject) -> None:
    trace, every = data.draw(with_tails()), data.draw(st.booleans())
    less, v = without_tails(trace, every=every), Origins.of(trace)
    for old, new in zip(trace.buffers, less.buffers):
        ops = [op.id for op in trace.ops if old.id in (*op.reads, *op.writes)]
        held = old.persistent or old.end > trace.n or old.end - old.start == trace.n or not ops or not old.size
        read = any(old.id in op.reads for op in trace.ops)
        if not held and not every and read:
            held = v.left.why[v.after(old.id, ops[-1])] != FINE
        assert new.end == (old.end if held else ops[-1] + 1)


@given(st.data())
def test_plans_for_a_trace_and_for_what_is_left_of_it(data: st.DataObject) -> None:
    """A plan for the shorter one drops tails in the other; one for the longer holds them."""
    trace = data.draw(with_tails())
    both = Tails(trace, without_tails(trace, every=data.draw(st.booleans())))
    assume(both.less is not trace)
    plan = data.draw(plans(both.less))
    short, whole = plan.apply(both.less), both.dropped(plan).apply(trace)
    for column in ("size", "start", "end"):
        np.testing.assert_array_equal(getattr(short.buffers, column), getattr(whole.buffers, column))
    check.data_flow(trace, whole)
    plan = data.draw(plans(trace))
    long, held = plan.apply(trace), both.kept(plan).apply(both.less)
    assert long.ops.of.tolist() == held.ops.of.tolist() and (long.live_bytes() >= held.live_bytes()).all()
    check.data_flow(trace, both.dropped(both.kept(plan)).apply(trace))


def test_a_tail_that_reruns_may_need_goes_only_where_it_must() -> None:
    """The batch is read by op 1 and cannot be recomputed; what op 1 makes of it can."""
    ops = Ops.make([[], [0], [1], [], []], [[0], [1], [], [], []])
    trace = Trace(Buffers.make([4, 8], [0, 1], [4, 4], kind=["input", ""]), ops)
    assert without_tails(trace).buffers.end.tolist() == [4, 3]
    assert without_tails(trace, every=True).buffers.end.tolist() == [2, 3]
    assert Plan.of(trace, [Hold(0, 1)]).apply(trace).buffers.end.tolist() == [2, 4]
