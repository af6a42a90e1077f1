"""AutoSwap's scores of candidates, by hand and against a look at every gap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from gpumem.simulator.machine import Link, Machine
from gpumem.swap.autoswap.planner import candidates
from gpumem.swap.autoswap.scores import SCORES
from gpumem.trace import Trace
from tests.conftest import tiny_machine
from tests.nets import ramp
from tests.strategies import traces
from tests.swap.autoswap.candidates import ops_of


def test_scores_by_hand(machine: Machine) -> None:
    # load 8 12 18 18 12 8; the first peak is op 2; X's gap is ops 1..4, Y's 2..3; Z straddles nothing
    found = candidates(ramp(), machine, 10, threshold=1)
    assert found.gaps.buffer.tolist() == [0, 1]
    assert found.gap_ns.tolist() == [140, 70]
    assert (found.out_ns.tolist(), found.in_ns.tolist()) == ([7, 5], [4, 3])
    assert SCORES["doa"](found).tolist() == [129, 62]
    assert SCORES["aoa"](found).tolist() == [129 * 8, 62 * 4]
    area = 12 * 20 + 18 * 30 + 18 * 40 + 12 * 50
    assert SCORES["wdoa"](found).tolist() == [area, 18 * 30 + 18 * 40]
    # X is taken first; without it the live bytes in Y's gap is 10 and 10
    assert SCORES["swdoa"](found).tolist() == [area, 10 * 30 + 10 * 40]


def test_a_negative_absence_is_divided_by_the_size() -> None:
    slow = Machine("slow", 10**6, Link(100, 0.0), Link(100, 0.0), flops=1, bandwidth=1)
    found = candidates(ramp(), slow, 10, threshold=1)
    assert SCORES["aoa"](found).tolist() == [(140 - 200) / 8, (70 - 200) / 4]


def test_a_constant_load_makes_wdoa_the_duration(machine: Machine) -> None:
    found = candidates(ramp(), machine, 10, threshold=1)
    flat = replace(found, load=np.ones(6, np.int64))
    assert SCORES["wdoa"](flat).tolist() == [140, 70]


@given(traces())
def test_swdoa_is_what_looking_at_every_gap_every_time_gives(trace: Trace) -> None:
    eligible = candidates(trace, tiny_machine(), 1, peaks="all", threshold=1)
    load, left, naive = eligible.load.copy(), list(range(len(eligible))), np.zeros(len(eligible))
    while left:
        area = {gap: int((load * eligible.duration)[ops_of(eligible, gap)].sum()) for gap in left}
        gap = max(left, key=lambda gap: (area[gap], -gap))
        naive[gap] = area[gap]
        load[ops_of(eligible, gap)] -= eligible.gaps.size[gap]
        left.remove(gap)
    assert SCORES["swdoa"](eligible).tolist() == naive.tolist()


def test_areas_beyond_64_bits_keep_their_order() -> None:
    found = candidates(ramp(), tiny_machine(), 10, threshold=1)
    large = replace(found.gaps, size=found.gaps.size * 2**34)
    huge = replace(found, gaps=large, load=found.load * 2**34, duration=found.duration * 2**30)
    assert SCORES["swdoa"](huge) == pytest.approx(SCORES["swdoa"](found) * 2.0**64, rel=1e-6)
