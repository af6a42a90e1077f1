"""Arm's Vela: the allocators of its compiler for Ethos-U; the last step of a live range belongs to it."""

from __future__ import annotations

import _thread
import signal
import threading
from types import SimpleNamespace
from typing import Any

from ethosu.vela import greedy_allocation, hillclimb_allocation
from ethosu.vela.live_range import LiveRange

from benchmarks.peers.problem import Call, OutOfTime, Problem

NO_END = 10**9  # iterations


def _live_ranges(problem: Problem) -> list[Any]:
    found = []
    for k, (size, first, last) in enumerate(zip(problem.size, *problem.inclusive())):
        one = LiveRange(None, 1)
        one.start_time, one.end_time, one.size, one.name = first, last, size, str(k)
        one.tensors = [SimpleNamespace(address=None)]
        found.append(one)
    return found


def hillclimb(problem: Problem) -> Call:
    """Hill climbing until the time is over: it knows no time, so it is interrupted, and keeps its best placement."""
    ranges = _live_ranges(problem)
    peak = max(_load(ranges))  # the height at which it may stop
    climbers: list[Any] = []

    def place() -> list[int]:
        signal.signal(signal.SIGUSR1, _interrupt)  # not that of the keyboard: a shell may have it ignored
        timer = threading.Timer(problem.seconds, _thread.interrupt_main, [signal.SIGUSR1])
        timer.start()
        try:
            climbers.append(hillclimb_allocation.HillClimbAllocator(ranges, NO_END, peak))
            climbers[0].allocate()
        except OutOfTime:
            if not (climbers and hasattr(climbers[0], "allocated_addresses")):
                raise
        finally:
            timer.cancel()
        found: list[int] = climbers[0].allocated_addresses
        return found

    return Call(place, list)


def _interrupt(number: int, frame: object) -> None:
    raise OutOfTime


def _load(ranges: list[Any]) -> list[int]:
    change = [0] * (2 + max(one.end_time for one in ranges))
    for one in ranges:
        change[one.start_time] += one.size
        change[one.end_time + 1] -= one.size
    load = [0]
    for by in change:
        load.append(load[-1] + by)
    return load


def greedy(problem: Problem) -> Call:
    """Best fit in the order in which buffers come."""
    ranges = _live_ranges(problem)
    graph = SimpleNamespace(lrs=ranges)
    return Call(
        lambda: greedy_allocation.allocate_live_ranges(graph, 1), lambda _: [one.tensors[0].address for one in ranges]
    )
