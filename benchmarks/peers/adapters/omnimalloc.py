"""OmniMalloc: its lifetimes are half-open, as ours. What searches is given the time and no other end."""

from __future__ import annotations

from functools import partial
from typing import Any

import omnimalloc
from omnimalloc import allocators

from benchmarks.peers.problem import Call, Problem

NO_END = 10**9  # iterations, generations or steps back


def _by(name: str, problem: Problem, **options: Any) -> Call:
    omnimalloc.set_max_threads(problem.threads)
    rows = enumerate(zip(problem.size, problem.start, problem.end))
    asked = tuple(omnimalloc.Allocation(id=k, size=size, start=start, end=end) for k, (size, start, end) in rows)
    allocator = getattr(allocators, name)(**options)

    def offsets(placed: Any) -> list[int]:
        at = {one.id: one.offset for one in placed}
        return [at[k] for k in range(len(asked))]

    return Call(partial(allocator.allocate, asked), offsets)


def supermalloc(problem: Problem) -> Call:
    """Branch and bound over canonical placements, several heuristics and bounds at once."""
    return _by("SupermallocAllocator", problem, timeout=problem.seconds)


def telamalloc(problem: Problem) -> Call:
    """After TelaMalloc."""
    return _by("TelamallocAllocator", problem, timeout=problem.seconds, max_backtracks=NO_END)


def annealing(problem: Problem) -> Call:
    """Simulated annealing of the order of a first fit."""
    return _by("SimulatedAnnealingAllocator", problem, timeout=problem.seconds, max_iterations=NO_END)


def tabu(problem: Problem) -> Call:
    """Tabu search of the order of a first fit."""
    return _by("TabuSearchAllocator", problem, timeout=problem.seconds, max_iterations=NO_END)


def hillclimb(problem: Problem) -> Call:
    """Hill climbing in the order of a first fit."""
    return _by("HillClimbAllocator", problem, timeout=problem.seconds, max_iterations=NO_END)


def genetic(problem: Problem) -> Call:
    """Evolve the order of a first fit; by DEAP."""
    return _by("GeneticAllocator", problem, timeout=problem.seconds, max_generations=NO_END)


def omni(problem: Problem) -> Call:
    """Its default: a portfolio of greedy orders."""
    return _by("OmniAllocator", problem)


def greedy(problem: Problem) -> Call:
    """The lowest of its greedy orders."""
    return _by("GreedyByAllAllocator", problem)


def best_fit(problem: Problem) -> Call:
    """Its best fit."""
    return _by("BestFitAllocator", problem)
