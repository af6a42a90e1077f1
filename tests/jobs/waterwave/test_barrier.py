"""Counter barriers under real threads: roots follow leaves, whoever waits is woken, and who never comes is told."""

from __future__ import annotations

import random
import threading
import time

import pytest

from gpumem.jobs.waterwave import CounterBarrier
from tests.jobs.waterwave.in_threads import WATCHDOG, hesitate, in_threads

pytestmark = [pytest.mark.jit, pytest.mark.usefixtures("often")]  # jit: no loop that counts is compiled here


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize(("leaves", "roots"), [(1, 1), (3, 1), (1, 2)])
def test_roots_follow_leaves_a_thousand_times(leaves: int, roots: int, period: int):
    """Three threads, each with so many leaves and roots: all have done one piece of work before any begins the next."""
    barriers, log, slots = [CounterBarrier(3 * leaves, 3 * roots) for _ in range(period)], list[int](), 1000

    def walk(rng: random.Random) -> None:
        for slot in range(slots):
            log.append(slot)
            hesitate(rng)
            log.append(slot)
            for _ in range(leaves):
                barriers[slot % period].leaf(WATCHDOG)
            for _ in range(roots):
                barriers[slot % period].root(WATCHDOG)

    assert not any(in_threads(*(lambda seed=seed: walk(random.Random(seed)) for seed in range(3))))
    assert log == sorted(log) and len(log) == 6 * slots
    assert repr(barriers[0]) == f"CounterBarrier(leaves {3 * leaves} of {3 * leaves}, roots {3 * roots} of {3 * roots})"


def test_a_leaf_of_the_next_iteration_waits_for_all_roots():
    barrier = CounterBarrier(1, 2)
    barrier.leaf()
    barrier.root()
    with pytest.raises(TimeoutError, match=r"^a leaf has waited 0\.01 s for roots: 1 of 2 has not come$"):
        barrier.leaf(0.01)
    barrier.root()
    barrier.leaf(0.01)


def test_a_root_that_nobody_lets_through_is_told():
    barrier = CounterBarrier(3, 1)
    barrier.leaf()
    with pytest.raises(TimeoutError, match=r"^a root has waited 0\.01 s for leaves: 2 of 3 have not come$"):
        barrier.root(0.01)
    for wrong, told in (((0, 1), "leaves: 0 is below 1"), ((1, -1), "roots: -1 is below 1")):
        with pytest.raises(ValueError, match=told):
            CounterBarrier(*wrong)


@pytest.mark.parametrize("how", ["remove", "abort"])
def test_whoever_waits_is_woken(how: str):
    waiting, ready = CounterBarrier(2, 1), CounterBarrier(1, 1)
    ready.leaf()

    def end() -> None:
        time.sleep(0.01)
        for barrier in (waiting, ready):
            getattr(barrier, how)()

    found = in_threads(waiting.root, waiting.root, ready.leaf, end)
    want = type(None) if how == "remove" else threading.BrokenBarrierError
    assert [type(error) for error in found] == [want] * 3 + [type(None)]
    assert [type(error) for error in in_threads(waiting.root, ready.root, waiting.leaf)] == [want] * 3
