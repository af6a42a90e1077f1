"""Long training steps for benchmarks, and planners that must not grow faster than they."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from benchmarks.speed._growing import BLOCK_OPS, MAKERS, blocks, random_step
from benchmarks.speed.growth import line, slope
from gpumem import Machine, NotReached
from gpumem.swap import PLANNERS
from gpumem.swap.facts import recompute
from gpumem.trace import Trace
from gpumem.trace.kinds import OPT_STATE, PARAM

MACHINE = Machine.named("rtx4090")
LISTED = (
    5  # ops that are recomputed, for each op; of all gaps there are 12 to 313 in steps of 2,000, and once took 15 GiB
)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_step_has_about_as_many_ops_as_it_was_asked_for_and_is_the_same_each_time(kind: str) -> None:
    for n in (500, 3000):
        trace, again = MAKERS[kind](n, 1), MAKERS[kind](n, 1)
        assert abs(trace.n - n) < BLOCK_OPS
        assert [trace.buffers.size.tolist(), trace.ops.reads.tolist(), trace.ops.duration.tolist()] == [
            *(again.buffers.size.tolist(), again.ops.reads.tolist(), again.ops.duration.tolist())
        ]
    lasting = np.isin(trace.buffers.kind, [PARAM, OPT_STATE])
    assert (trace.buffers.persistent == lasting).all() and lasting.any()


def test_a_random_step_has_sizes_and_times_of_all_magnitudes() -> None:
    trace = random_step(2000, 0)
    assert trace.buffers.size.max() > 500 * trace.buffers.size.min()
    assert trace.ops.duration.min() == 0 and trace.ops.duration.max() > 100_000
    assert random_step(2000, 1).ops.duration.tolist() != trace.ops.duration.tolist()


def test_the_slope_is_that_of_a_power() -> None:
    assert slope([1, 2, 4], [3.0, 12.0, 48.0], 0) == "2.00"
    assert slope([1, 2, 4], [3.0, None, 48.0], 5) == "-"
    found: list[dict[str, Any]] = [{"seconds": 1.0, "mib": 20.0, "says": "5.00 %"}, {"says": "stopped after 9 s"}]
    assert line("heuristic", [2000, 8000], found).split() == [
        *("heuristic", "1.00", "-", "-", "20", "-", "-"),
        *("stopped", "after", "9", "s"),
    ]


@pytest.mark.parametrize("name", ["checkpoint", "capuchin"])
@pytest.mark.parametrize("make", [blocks, random_step])
def test_what_runs_again_is_not_listed_for_gaps_that_nobody_asks_about(
    monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    trace: Trace = make(2000, 0)
    listed, listing = list[int](), recompute._recompute_each

    def counted(*given: Any) -> Any:
        found = listing(*given)
        listed.append(len(found[3]))
        return found

    monkeypatch.setattr(recompute, "_recompute_each", counted)
    with suppress(NotReached):
        PLANNERS[name](trace, MACHINE, trace.peak_live_bytes * 6 // 10, seconds=5)
    assert sum(listed) < LISTED * trace.n, sum(listed) / trace.n
