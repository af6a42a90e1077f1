"""What `docs/guides/threads.md` says of several threads: data and functions are shared, state is not, or is locked."""

from __future__ import annotations

import contextvars
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

import gpumem
from gpumem import Infeasible, NotReached, Trace
from gpumem.base import work
from gpumem.pool import ALLOCATORS, PLANNERS as PLACERS, MultiStream, SmartPool
from gpumem.runtime import Adaptive, InMemory, Served
from gpumem.swap import PLANNERS
from tests.nets import hill, net
from tests.swap.judging import quick

T = TypeVar("T")
MACHINE = gpumem.Machine.named("v100")
TRACES = (net(), hill(40, 30, 20, 10))
QUICK = ("autoswap", "capuchin", "checkpoint", "dtr", "heuristic", "on-demand", "vdnn-dyn")  # to compile
SLOW = [pytest.param(name, marks=pytest.mark.thorough) for name in PLANNERS if name not in QUICK]


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Call all of them at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))

    def called(call: Callable[[], T]) -> T:
        barrier.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(called, calls))


def planned(name: str, trace: Trace) -> object:
    """Return the plan, or the error that says that there is none."""
    try:
        return quick(name)(trace, MACHINE, trace.peak_live_bytes * 3 // 4)
    except (Infeasible, NotReached) as stop:
        return type(stop), str(stop)


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_planners_give_the_same_plans_in_threads(name: str) -> None:
    alone = [planned(name, trace) for trace in TRACES]
    assert at_once(*(partial(planned, name, trace) for trace in TRACES * 2)) == alone * 2


@pytest.mark.parametrize("name", sorted(set(PLACERS) - {"exact", "search"}))
def test_placers_give_the_same_places_in_threads(name: str) -> None:
    def placed(trace: Trace) -> list[int]:
        return PLACERS[name](trace).offset.tolist()

    alone = [placed(trace) for trace in TRACES]
    assert at_once(*(partial(placed, trace) for trace in TRACES * 2)) == alone * 2


def test_data_is_shared_and_not_changed() -> None:
    before = pickle.dumps(TRACES)
    at_once(*(partial(gpumem.simulate, trace, MACHINE) for trace in TRACES * 2))
    assert pickle.dumps(TRACES) == before and pickle.loads(before)[0].peak_live_bytes == TRACES[0].peak_live_bytes


def test_a_budget_is_its_threads_own() -> None:
    told: dict[str, list[str]] = {"a": [], "b": []}

    def works(name: str, seconds: float | None) -> bool:
        with work.within(seconds, told[name].append):
            work.tell(name)
            return work.hurried()

    with work.within(60):
        assert at_once(partial(works, "a", 60), partial(works, "b", None)) == [True, False]
        inside = contextvars.copy_context()
    assert told == {"a": ["a"], "b": ["b"]}
    assert at_once(partial(inside.run, work.hurried), work.hurried) == [True, False]


def asks(allocate: Callable[[int], int], free: Callable[[int], object]) -> list[int]:
    """Ask for blocks, and free every other one."""
    found = [allocate(256 * (1 + k % 3)) for k in range(200)]
    for address in found[::2]:
        free(address)
    return found[1::2]


def test_served_memory_is_locked() -> None:
    memory = SimpleNamespace(base=4096, grow=lambda top: None, close=lambda: None)
    streams = SimpleNamespace(
        admit=lambda stream, owner: None, join=lambda: None, seen=lambda stream, owner: None, wait=lambda: None
    )
    served = Served(SmartPool(MultiStream(capacity=2**24, allow_growth=False)), memory, streams=streams)
    kept = [address for mine in at_once(*[partial(asks, served.allocate, served.free)] * 4) for address in mine]
    assert len(set(kept)) == len(kept) == served.statistics.blocks.current


@pytest.mark.parametrize("name", sorted(ALLOCATORS))
def test_an_allocator_behind_a_lock_of_yours(name: str) -> None:
    """They have none of their own: a replay would pay for it."""
    allocator, lock = ALLOCATORS[name](capacity=2**34), threading.Lock()

    def locked(request: Callable[[int], Any]) -> Callable[[int], Any]:
        def called(number: int) -> Any:
            with lock:
                return request(number)

        return called

    kept = at_once(*[partial(asks, locked(allocator.allocate), locked(allocator.free))] * 3)
    assert len({offset for mine in kept for offset in mine}) == 300


def test_two_devices_in_two_threads() -> None:
    """A device is one thread's at a time; each thread may have its own."""

    def program(device: Adaptive) -> list[bytes]:
        with device:
            blocks = [device.malloc(100) for _ in range(6)]
            for k, block in enumerate(blocks):
                device.write(block, bytes([k]) * 100)
            return [device.read(block).tobytes() for block in blocks]

    assert (
        at_once(*(lambda: program(Adaptive(InMemory(), 250)) for _ in range(3)))
        == [program(Adaptive(InMemory(), 600))] * 3
    )
