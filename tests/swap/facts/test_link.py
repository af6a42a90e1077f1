"""When a link is free, against a naive circle of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from gpumem.swap.facts.link import LinkTimes


@given(st.data())
def test_link_time_is_the_first_or_last_that_is_free(data: st.DataObject) -> None:
    period, least = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    link, free = LinkTimes(period, least), np.ones(period, np.bool_)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, 2 * period - 1))
        end, length = (
            start + data.draw(st.integers(0, 2 * period)),
            data.draw(st.integers(least, max(period + 1, least))),
        )
        begins = range(start, end - length + 1) if length <= period else []
        fits = [at for at in begins if free[np.arange(at, at + length) % period].all()]
        first = data.draw(st.booleans())
        found = (link.earliest if first else link.latest)(start, end, length)
        assert found == (fits[0 if first else -1] if fits else -1)
        if fits:
            link.take(found, length)
            free[np.arange(found, found + length) % period] = False


@given(st.data(), st.integers(1, 20))
def test_what_is_taken_twice_is_taken(data: st.DataObject, period: int) -> None:
    link, free = LinkTimes(period), np.ones(period, np.bool_)
    for _ in range(data.draw(st.integers(0, 6))):
        at, length = data.draw(st.integers(0, 3 * period)), data.draw(st.integers(0, period + 2))
        link.take(at, length)
        free[np.arange(at, at + length) % period] = False
    taken = np.zeros(period, np.bool_)
    for begin, end in link.taken:
        assert 0 <= begin < end <= period and not taken[begin:end].any()
        taken[begin:end] = True
    assert (taken == ~free).all()
    assert all(a < b for (_, a), (b, _) in zip(link.taken, link.taken[1:]))


def test_no_time_and_no_period() -> None:
    link = LinkTimes(10)
    link.take(3, 4)
    assert link.earliest(4, 9, 0) == 7 and link.latest(0, 5, 0) == 3
    assert LinkTimes(0).earliest(0, 0, 0) == 0 and LinkTimes(0).latest(0, 0, 0) == 0
    assert LinkTimes(0).earliest(0, 5, 1) == -1
