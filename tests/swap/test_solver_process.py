"""The process that solves programs: it dies, its parent dies, threads share it, a fork inherits it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import numpy as np
import pytest

from gpumem.swap import linear_programs as linear
from gpumem.swap.linear_programs import Rows


def least_above(number: float) -> float:
    """A program in one variable: its least value, in whole numbers, that is at least `number`."""
    rows = Rows()
    x = rows.variables(np.array([99.0]), cost=1.0, whole=True)
    rows.put(rows.add(np.array([-number])), x, -1.0)
    return rows.solve().value


def knapsack() -> Rows:
    """A program that takes minutes."""
    rng, rows = np.random.default_rng(0), Rows()
    x = rows.variables(np.ones(60), cost=-rng.integers(100, 200, 60).astype(np.float64), whole=True)
    for row in rows.add(np.full(12, 3000.0)):
        rows.put(np.full(60, row), x, rng.integers(50, 250, 60).astype(np.float64))
    return rows


def idle() -> linear._Worker:
    """The process that answers the next question."""
    assert least_above(0.5) == 1
    return linear._idle[-1]


def test_a_process_that_died_while_it_waited_is_replaced() -> None:
    process = idle().process
    process.kill()
    process.wait()
    assert least_above(2.5) == 3


def test_a_process_that_dies_in_the_middle_is_one_clear_error() -> None:
    worker = idle()
    killer = Timer(0.2, worker.process.kill)
    killer.start()
    with pytest.raises(RuntimeError, match=r"the solver's process ended with signal 9; was there too little memory\?"):
        knapsack().solve()
    assert worker not in linear._idle
    assert least_above(4.5) == 5


def test_a_process_whose_parent_was_killed_ends_in_the_middle() -> None:
    """All that it sees of that is that its input ends."""
    process = idle().process
    assert process.stdin is not None
    Timer(0.2, process.stdin.close).start()
    with pytest.raises(RuntimeError, match="the solver's process ended with status 0"):
        knapsack().solve()
    assert process.poll() == 0


def test_threads_have_a_process_each() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(least_above, range(1, 21))) == list(range(1, 21))


def test_a_fork_asks_no_process_of_its_parent() -> None:
    idle()
    child = os.fork()
    if not child:
        os._exit(len(linear._idle))
    assert os.waitpid(child, 0)[1] == 0
