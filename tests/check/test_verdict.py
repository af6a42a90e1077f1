"""Oracles by the clock: none is begun that would be late, and each gives up where the time is up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from gpumem import check
from gpumem.base import work
from gpumem.check.verdict import Oracle, ask
from gpumem.pool import best_fit
from gpumem.simulator.simulate import simulate
from gpumem.swap import heuristic
from tests.nets import GTX, net


def oracles() -> dict[str, Callable[[], None]]:
    trace = net()
    swapped = heuristic(trace, GTX, trace.peak_live_bytes * 3 // 4).apply(trace)
    placed, limit = best_fit(swapped), swapped.peak_live_bytes
    timeline = partial(check.timeline, swapped, duration=GTX.durations(swapped), duplex=GTX.duplex)
    return {
        "placement": lambda: check.placement(swapped, placed),
        "data_flow": lambda: check.data_flow(trace, swapped),
        "timeline": lambda: timeline(line=simulate(swapped, GTX, placed), placement=placed),
        "timeline by bytes": lambda: timeline(line=simulate(swapped, GTX, capacity=limit), capacity=limit),
    }


@pytest.mark.parametrize("name", oracles())
def test_a_check_gives_up_where_the_time_is_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = Oracle(name, 0.0, oracles()[name]), count()
    assert ask([asked]).held == (name,)
    monkeypatch.setattr(work, "now", lambda: next(clock))
    with work.within(9.5):
        found = ask([asked, asked])
    assert (found.held, found.left_out) == ((), {name: "the time was up, more seconds may do"})
    assert next(clock) < 20  # it looks once a row


def test_none_is_begun_that_would_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "now", lambda: 0.0)
    with work.within(5):
        found = ask([Oracle("flow", 6.0, pytest.fail), Oracle("budget", 4.0, lambda: None)])
    assert (found.held, found.left_out) == (("budget",), {"flow": "it takes about 6.0 s, 5.0 s are left"})
