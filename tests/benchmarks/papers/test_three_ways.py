"""Three ways to share a GPU: what none of them can, what each must, and that estimates alone are planned with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.papers import three_ways
from benchmarks.papers.three_ways import WAYS, Crowd, _after_another
from gpumem.io import bundled
from gpumem.jobs import makespan
from gpumem.jobs.waterwave import Pipeline, temporal
from gpumem.simulator import Machine, Uncertainty
from gpumem.trace import Trace

MACHINE = Machine.named("rtx2080ti")


def crowd(slowdown: float, spread: float = 0.3) -> Crowd:
    return Crowd((bundled("vgg16"), bundled("resnet18")), MACHINE, slowdown, Uncertainty(spread=spread))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("apart", [0.0, 2.5])
def test_kernels_that_share_the_throughput_gain_nothing(way: str, apart: float) -> None:
    """Of `k` that run at once each takes `k` times as long: no way ends before the jobs one after another."""
    mine = crowd(1.0)
    jobs = mine.jobs(apart, iterations=3)
    for draw in range(2):
        out = WAYS[way](mine, jobs, 2**40, draw)
        assert makespan(out) >= _after_another(mine, jobs, draw) * (1 - 1e-6)


def test_in_turn_takes_what_the_jobs_take_alone_with_true_durations() -> None:
    mine = crowd(0.5)
    jobs = mine.jobs(0.0, iterations=3)
    for draw in range(3):
        expected = _after_another(mine, jobs, draw)
        assert abs(makespan(WAYS["in turn"](mine, jobs, 2**40, draw)) / expected - 1) < 1e-3
        assert abs(expected / _after_another(crowd(0.5, 0.0), jobs, draw) - 1) > 1e-3  # draws are not the estimates


def test_pipelines_are_made_for_the_estimates() -> None:
    seen: list[Any] = []

    def way(traces: Sequence[Trace], machine: Machine, limit: int | None = None) -> Pipeline:
        seen.extend(machine.durations(trace).sum() for trace in traces)
        return temporal(traces, machine, limit)

    mine = crowd(0.5)
    three_ways._by_rounds(way, mine, mine.jobs(0.0, iterations=1), 2**40, 0)
    assert {*seen} == {MACHINE.durations(trace).sum() for trace in mine.traces}
