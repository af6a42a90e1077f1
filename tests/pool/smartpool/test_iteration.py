"""One recorded iteration as a trace and as a table of requests."""

from __future__ import annotations

from gpumem.pool.smartpool._iteration import RequestTable, recorded
from tests.pool.smartpool.judge import tight


def test_a_recorded_iteration_is_a_trace_of_its_requests() -> None:
    # 0: -c of the previous iteration, made at 4, one iteration of 6 before: 2 requests ago; 1: a; 2: b; ...
    trace, requests_ = recorded([-2, 8, 4, -2, 6, -3])
    assert trace.n == 6
    assert list(zip(trace.buffers.size, trace.buffers.start, trace.buffers.end)) == [(8, 1, 3), (4, 2, 5), (6, 4, 6)]
    assert requests_ == [~2, 0, 1, ~0, 2, ~1]
    table = RequestTable.make(trace, tight(trace), requests_)
    assert (table.start, table.life) == ([1, 2, 4], [2, 3, 2])
    held = [[b for b in range(3) if table.holds(b, position)] for position in range(6)]
    assert held == [[2], [], [0], [0, 1], [1], [1, 2]]  # before each request
    assert table.quietest() == 1


def test_only_a_stretch_that_occurs_once_tells_where_it_is() -> None:
    trace, requests_ = recorded([5, -1] * 20 + [7, -1])
    found = RequestTable.make(trace, tight(trace), requests_).grams()
    assert all(7 in gram or -7 in gram for gram in found)
    assert found[(5, -5) * 3 + (7, -7)] == 41
    trace, requests_ = recorded([5, -1] * 10)  # no stretch is unique
    assert set(RequestTable.make(trace, tight(trace), requests_).grams()) == {(5, -5) * 4, (-5, 5) * 4}
