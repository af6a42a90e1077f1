"""Peers that end in every way there is, for `benchmarks.peers.worker` to call."""

from __future__ import annotations

import os
import time
from itertools import accumulate

from benchmarks.peers.problem import Call, OutOfTime, Problem
from benchmarks.peers.table import Planner


def stacked(problem: Problem) -> Call:
    """All buffers above one another."""
    return Call(lambda: [0, *accumulate(problem.size)][:-1], list)


def overlapping(problem: Problem) -> Call:
    """All buffers at 0."""
    return Call(lambda: [0] * len(problem.size), list)


def short(problem: Problem) -> Call:
    """Not one offset for each buffer."""
    return Call(lambda: [0], list)


def endless(problem: Problem) -> Call:
    """Does not look at the clock."""
    return Call(lambda: time.sleep(1000), list)


def empty_handed(problem: Problem) -> Call:
    """Looks at the clock, and has nothing by then."""

    def place() -> None:
        raise OutOfTime

    return Call(place, list)


def broken(problem: Problem) -> Call:
    """Raises."""

    def place() -> None:
        raise KeyError("a bug")

    return Call(place, list)


def dead(problem: Problem) -> Call:
    """Ends the process."""
    return Call(lambda: os._exit(3), list)


def fake(name: str, *needs: str, timed: bool = True) -> Planner:
    """Return the record of a function of this module; without `needs` it counts as ours."""
    return Planner(f"{__name__}:{name}", needs, timed)
