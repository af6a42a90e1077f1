"""Each row of MO-SOS' program by a net where it decides: without the row the optimum is another one.

Stages take 10 ns, and so does a copy where nothing else is said. What is not named takes no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest

from gpumem.swap.mosos import Implementation, Nodes, Rules, solve
from gpumem.swap.mosos.program import MOVED
from tests.swap.mosos.oracle import least_value, obeys, replay

PLAIN = Rules(plain=True)


@dataclass(frozen=True)
class Net:
    """Nodes by what is special about them: bytes, who reads what, ns of copies; `high`: bytes held in a stage."""

    n: int
    size: dict[int, int]
    reads: dict[int, list[int]]
    high: dict[int, int]
    again: tuple[int, ...] = ()
    moves: tuple[int, ...] = ()
    out_ns: dict[int, int] = field(default_factory=dict)
    in_ns: dict[int, int] = field(default_factory=dict)
    room: dict[int, int] = field(default_factory=dict)

    def nodes(self) -> Nodes:
        every = range(self.n)
        return Nodes.make(
            [[Implementation("", 10, self.room.get(j, 0))] for j in every],
            [self.reads.get(j, []) for j in every],
            [self.size.get(j, 0) for j in every],
            held=[self.high.get(j, 0) for j in every],
            recomputable=[j in self.again for j in every],
            offloadable=[j in self.moves for j in every],
            out_ns=[self.out_ns.get(j, 10) for j in every],
            in_ns=[self.in_ns.get(j, 10) for j in every],
        )


VALLEY = Net(5, {0: 10}, {4: [0]}, {2: 15}, again=(0,), moves=(0,))
TWO_VALLEYS = Net(9, {0: 10}, {4: [0], 8: [0]}, {2: 15, 6: 15}, moves=(0,))
SLOW_OUT = Net(5, {0: 10}, {4: [0]}, {2: 15}, moves=(0,), out_ns={0: 20})
TWO_OUT = Net(7, {0: 10, 1: 10}, {5: [0], 6: [1]}, {3: 15}, moves=(0, 1), out_ns={0: 20})
TWO_BACK = Net(7, {0: 10, 1: 10}, {5: [0], 6: [1]}, {3: 15}, moves=(0, 1), in_ns={1: 20})
PAST = Net(7, {0: 10, 2: 10}, {4: [0], 6: [2]}, {2: 5, 4: 10}, moves=(0, 2))
IN_FLIGHT = Net(6, {0: 10, 1: 10, 3: 10}, {1: [0], 3: [1], 5: [0]}, {2: 10}, (1,), (0,), out_ns={0: 30})
READ_TWICE = Net(5, {0: 10, 1: 5, 2: 11}, {1: [0], 2: [0, 1], 4: [2]}, {3: 20, 4: 5}, again=(1, 2))
BACK_BETWEEN = Net(9, {0: 10, 1: 10}, {1: [0], 5: [1], 8: [0]}, {3: 15, 6: 15}, again=(1,), moves=(0,))
STAYS_A_WHILE = Net(6, {0: 10, 1: 11}, {1: [0], 3: [1], 5: [0]}, {2: 11, 4: 15}, again=(0, 1))
READ_BY_TWO = Net(8, {0: 10, 1: 11, 2: 11}, {1: [0], 2: [0], 4: [1], 5: [2], 7: [0]}, {3: 15, 6: 15}, again=(0, 1, 2))
AFTER_ITS_LAST = Net(6, {0: 10, 1: 11, 2: 11}, {1: [0], 2: [0], 4: [1], 5: [2]}, {3: 15}, again=(0, 1, 2))
OUT_BEFORE = Net(8, {0: 10}, {3: [0], 7: [0]}, {4: 15}, moves=(0,), in_ns={0: 20})
BACK_WHILE_THERE = Net(8, {0: 10, 1: 11}, {1: [0], 3: [1], 4: [0], 7: [0]}, {2: 21, 5: 25}, again=(1,), moves=(0,))
MADE_WHILE_COMING = Net(7, {0: 10, 1: 11}, {1: [0], 3: [1], 5: [1], 6: [0]}, {2: 21, 4: 25}, (0, 1), (0,), room={5: 10})
LEAVES_LATE = Net(6, {0: 10, 1: 11}, {1: [0], 3: [1], 5: [0]}, {2: 15}, again=(0, 1), moves=(0,), room={3: 10})
DEAD = Net(4, {0: 10, 1: 11}, {1: [0], 3: [1]}, {2: 15}, again=(1,), room={3: 10})
NOT_THERE = Net(4, {0: 10, 1: 11}, {1: [0], 3: [1]}, {2: 15}, again=(0, 1), room={3: 20})
NOT_YET_DEAD = Net(6, {0: 10, 1: 11, 2: 11}, {1: [0], 2: [0], 4: [1], 5: [2]}, {3: 15}, (0, 1, 2), room={4: 10})
ROOMY = Net(5, {0: 10}, {4: [0]}, {3: 20}, again=(0,), room={0: 12, 4: 12})
CASES: dict[str, tuple[Net, int, Rules, float]] = {
    "copied": (VALLEY, 20, Rules(), 50),
    "recomputed": (VALLEY, 20, Rules(copies=False), 60),
    "recomputed in time": (VALLEY, 20, Rules(copies=False, since=4), 60),
    "recomputed too late": (VALLEY, 20, Rules(copies=False, since=5), inf),
    "neither": (VALLEY, 20, Rules(copies=False, recompute=False), inf),
    "copied twice": (TWO_VALLEYS, 20, Rules(), 90),
    "there until copied": (SLOW_OUT, 20, Rules(), inf),
    "one copy out at a time": (TWO_OUT, 20, Rules(), inf),
    "one copy back at a time": (TWO_BACK, 20, Rules(), inf),
    "out and back together": (PAST, 20, Rules(), 70),
    "half duplex": (PAST, 20, Rules(duplex=False), inf),
    "not freed in mid-copy": (IN_FLIGHT, 20, Rules(), inf),
    "not freed before it is read": (READ_TWICE, 30, Rules(), inf),
    "two returns": (BACK_BETWEEN, 20, Rules(), 100),
    "one return": (BACK_BETWEEN, 20, PLAIN, inf),
    "is recomputed, leaves late": (STAYS_A_WHILE, 21, Rules(), 80),
    "is recomputed, leaves at once": (STAYS_A_WHILE, 21, PLAIN, 90),
    "kept between runs": (READ_BY_TWO, 21, Rules(), 120),
    "one return that is kept": (READ_BY_TWO, 21, PLAIN, 130),
    "back behind its last use": (AFTER_ITS_LAST, 21, Rules(), 90),
    "not back behind its last use": (AFTER_ITS_LAST, 21, PLAIN, 100),
    "out one gap early": (OUT_BEFORE, 20, Rules(), 80),
    "out in its gap": (OUT_BEFORE, 20, PLAIN, inf),
    "no copy back needed": (BACK_WHILE_THERE, 31, Rules(), 90),
    "no copy back of what is there": (BACK_WHILE_THERE, 31, PLAIN, inf),
    "freed after a recomputation": (LEAVES_LATE, 25, Rules(), 70),
    "stays through recomputations": (LEAVES_LATE, 25, PLAIN, 80),
    "dead, it leaves after the recomputations": (DEAD, 25, PLAIN, 50),
    "not there, it does not leave": (NOT_THERE, 25, PLAIN, inf),
    "not dead yet, it stays": (NOT_YET_DEAD, 25, PLAIN, 90),
    "workspace comes back": (ROOMY, 22, Rules(), 60),
    "made while it comes back": (MADE_WHILE_COMING, 31, PLAIN, 100),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_decides(name: str) -> None:
    net, limit, rules, value = CASES[name]
    nodes = net.nodes()
    found = solve(nodes, limit, rules)
    assert found.status == ("infeasible" if value == inf else "optimal")
    assert found.value == pytest.approx(value, abs=1e-3)
    assert least_value(nodes, limit, rules, MOVED) == pytest.approx(value, abs=1e-3)
    if found.schedule is not None:
        replay(nodes, found.schedule, duplex=rules.duplex, plain=rules.plain)
        obeys(nodes, found.schedule, rules)


def test_the_solver_does_not_presolve_the_optimum_away() -> None:
    """HiGHS' presolve ends this program with a recomputation that nobody needs, 26 ns, and calls that the optimum."""
    row = [[Implementation("", time, room)] for time, room in ((6, 3), (5, 2), (4, 3), (5, 3), (1, 0))]
    again, out_ns = [True, True, False, True, True], [1, 0, 1, 3, 2]
    nodes = Nodes.make(
        row, [[], [0], [0, 1], [0, 1], [3]], [6, 2, 4, 7, 7], held=[0, 0, 0, 0, 7], recomputable=again, out_ns=out_ns
    )
    assert solve(nodes, 22).value == least_value(nodes, 22, Rules(), MOVED) == 21
