"""The pool planners of gpumem."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.problem import Call, Problem
from gpumem import pool
from gpumem.testing.perfect import perfect
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

WARMING = perfect(150, seed=0)  # within so little nothing is found at the load, so all that search does is begun


def search(problem: Problem) -> Call:
    """Call `gpumem.pool.search` with the time."""
    pool.search(WARMING, alignment=1, effort=0.02)
    trace = _trace(problem)
    return _call(lambda: pool.search(trace, alignment=1, seconds=problem.seconds))


def greedy(problem: Problem) -> Call:
    """Call `gpumem.pool.greedy`."""
    return _plain(pool.greedy, problem)


def best_fit(problem: Problem) -> Call:
    """Call `gpumem.pool.best_fit`."""
    return _plain(pool.best_fit, problem)


def _plain(planner: Any, problem: Problem) -> Call:
    planner(WARMING, alignment=1)
    trace = _trace(problem)
    return _call(lambda: planner(trace, alignment=1))


def _trace(problem: Problem) -> Trace:
    return Trace.from_lifetimes(problem.size, problem.start, problem.end)


def _call(place: Any) -> Call:
    def offsets(placed: Placement) -> list[int]:
        found: list[int] = placed.offset.tolist()
        return found

    return Call(place, offsets)
