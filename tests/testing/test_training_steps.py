"""Training steps that are drawn have what planners trip over: states in place, all magnitudes, ops of no time."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gpumem.testing.training_steps import steps
from gpumem.trace import Trace
from gpumem.trace.kinds import OPT_STATE, PARAM
from tests.testing.tried import drawn

ORDERS = st.builds(lambda digit, order: digit * 10**order, st.integers(0, 9), st.integers(0, 3))


@given(st.integers(1, 2).flatmap(lambda count: st.tuples(st.just(count), steps(states=count, max_layers=4))))
def test_states_are_updated_in_place_with_their_parameters(case: tuple[int, Trace]) -> None:
    count, trace = case
    kind = trace.buffers.kind
    states = [b for b, what in enumerate(kind) if what == OPT_STATE]
    assert len(states) == count * sum(what == PARAM for what in kind)
    for b in states:
        assert trace.buffers.persistent[b]
        updates = [op for op in trace.ops if op.name == "step" and b in op.writes]
        assert len(updates) == 1 and b in updates[0].reads
        assert any(kind[other] == PARAM for other in updates[0].writes)


def test_sizes_and_durations_are_of_all_magnitudes() -> None:
    found = drawn(steps(sizes=ORDERS, durations=ORDERS, states=1), 60)
    for columns in ([t.buffers.size for t in found], [t.ops.duration for t in found]):
        values = [value for column in columns for value in column.tolist()]
        assert min(values) == 0 and max(values) >= 1000 and len({len(str(value)) for value in values}) == 4
    assert sum((t.ops.duration == 0).any() for t in found) >= 10 and sum(t.n > 12 for t in found) >= 10
