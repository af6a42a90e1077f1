"""When AutoSwap copies out: an op that needs bytes waits for the copy that ends next."""

from __future__ import annotations

from gpumem.simulator.machine import Link
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import candidates, without
from gpumem.swap.autoswap.schedule import schedule
from gpumem.swap.plan import Plan
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import tiny_machine


def queue() -> Trace:
    """Ops 0 to 2 make 8 bytes each, read once more in the end; ops 3 to 5 need 8 bytes for a moment."""
    ops = Ops.make(
        [[], [], [], [], [], [], [2], [1], [0]],
        [[0], [1], [2], [3], [4], [5], [], [], []],
        duration=[10, 10, 10, 100, 100, 100, 100, 100, 100],
    )
    return Trace(Buffers.make([8] * 6, [0, 1, 2, 3, 4, 5], [9, 8, 7, 4, 5, 6]), ops)


def test_an_op_waits_for_the_copy_that_ends_next() -> None:
    # Three copies of 55 ns queue up behind ops 0, 1, 2; the live bytes fit with two buffers off the device.
    machine = tiny_machine().with_(out=Link(55, 0.0))
    trace, limit = queue(), 24
    eligible = candidates(trace, machine, limit, peaks="all", threshold=1)
    load = without(eligible.load, eligible.gaps)
    swaps = schedule(trace, machine, eligible.gaps, load=load, limit=limit, line=eligible.line)
    # X0 leaves where op 3 needs its bytes, though its copy ends at 65 and op 3 could start at 30
    assert [(swap.buffer, swap.release) for swap in swaps] == [(0, 3), (1, 4), (2, 5)]
    line = simulate(Plan(tuple(swaps), trace.n).apply(trace), machine, capacity=limit)
    assert line.stalls["memory"] == 35


def test_the_expected_time_line_moves_on_while_an_op_waits() -> None:
    # As before, but only op 3 needs bytes: it ends at 75 instead of 40, so op 5 starts at 125, after the second copy.
    ops = Ops.make(
        [[], [], [], [], [], [], [2], [1], [0]],
        [[0], [1], [2], [3], [], [], [], [], []],
        duration=[10, 10, 10, 10, 50, 100, 100, 100, 100],
    )
    trace = Trace(Buffers.make([8] * 4, [0, 1, 2, 3], [9, 8, 7, 4]), ops)
    eligible = candidates(trace, tiny_machine(), 24, peaks="all", threshold=1)
    load = without(eligible.load, eligible.gaps)
    machine = tiny_machine().with_(out=Link(55, 0.0))
    swaps = schedule(trace, machine, eligible.gaps, load=load, limit=24, line=eligible.line)
    assert [(swap.buffer, swap.release) for swap in swaps] == [(0, 3), (1, 5), (2, 6)]
