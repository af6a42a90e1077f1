"""A planner in a process of its own: what it says is judged, and whatever does not end is ended."""

from __future__ import annotations

import sys
import time

import pytest

from benchmarks.peers.asking import FAILED, INVALID, LATE, PLACED, ask, installed
from benchmarks.peers.instances import Instance
from benchmarks.peers.table import Planner
from gpumem.trace import Trace
from tests.benchmarks.peers.fakes import fake

TWO = Instance.of(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]), "two")


def answer(name: str, seconds: float = 30.0) -> tuple[str, int, str]:
    found = ask(fake(name), TWO, seconds, python=sys.executable)
    return found.status, found.height, found.why


def test_a_placement_counts_with_its_height() -> None:
    assert answer("stacked") == (PLACED, 6, "")


@pytest.mark.parametrize(
    "name, why",
    [
        ("overlapping", "buffers 0 and 1: overlap in time and address, at byte 0"),
        ("short", "offset: 1 for 2 buffers; give one for each, -1 on the host"),
    ],
)
def test_what_is_no_placement_is_invalid(name: str, why: str) -> None:
    assert answer(name) == (INVALID, 0, why)


def test_what_does_not_end_is_ended() -> None:
    begin = time.monotonic()
    assert answer("endless", 0.1) == (LATE, 0, "")
    assert time.monotonic() - begin < 60  # it sleeps for 1000 s


def test_a_planner_may_say_that_its_time_is_over() -> None:
    assert answer("empty_handed") == (LATE, 0, "")


def test_what_fails_says_why() -> None:
    assert answer("broken") == (FAILED, 0, "KeyError: 'a bug'")
    assert answer("dead") == (FAILED, 0, "exit status 3")
    missing = ask(Planner("no.such:planner", ("x",)), TWO, 1.0, python=sys.executable)
    assert (missing.status, missing.why) == (FAILED, "ModuleNotFoundError: No module named 'no'")


def test_what_is_installed_is_asked_of_the_other_python() -> None:
    found = installed([fake("stacked", "no-such-project", "pytest")], sys.executable)
    assert found == {"no-such-project": None, "pytest": pytest.__version__}
    with pytest.raises(ValueError, match=r"^--python: '/no/such/python' does not run: "):
        installed([fake("stacked", "pytest")], "/no/such/python")
