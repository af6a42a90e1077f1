"""Groups that are searched: the cheapest walk of all, and pipelines that pass what all others pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import Machine, bundled, simulate
from gpumem.base.errors import Infeasible
from gpumem.jobs.waterwave import Partition, Pipeline, atoms, balanced, co_schedule, partition, pipeline, takes
from gpumem.trace import Trace
from tests.jobs.waterwave.jobs_together import checked, made
from tests.strategies import nets, steps

MACHINE = Machine.named("v100")


def slots(first: Partition, second: Partition, i: int, j: int, room: int) -> Iterator[tuple[int, int, float, float]]:
    """Each slot that may begin behind `i` atoms of the one and `j` of the other: where it ends, what each takes."""
    for p, q in product(range(i, len(first) + 1), range(j, len(second) + 1)):
        above = [
            max([part.held[x], *(part.held[k] + part.inside[k] for k in range(x, y))]) - part.rest
            for part, x, y in ((first, i, p), (second, j, q))
        ]
        if (p, q) != (i, j) and sum(above) <= room:
            yield p, q, *(float(part.ns[x:y].sum()) for part, x, y in ((first, i, p), (second, j, q)))


def cheapest(parts: Sequence[Partition], limit: int, slowdown: float, sync: float) -> float:
    """What the best round takes, of all there are: orders of jobs, where each pair ends, slots."""
    room = limit - sum(part.rest for part in parts)

    def pair(a: Partition, b: Partition, end: int) -> dict[int, float]:
        """What it takes to come from A's `end` to A's last cut, by how much of B has then run."""
        cost = {(end, 0): 0.0}
        for i, j in product(range(end, len(a) + 1), range(len(b) + 1)):
            for p, q, x, y in slots(a, b, i, j, room) if (i, j) in cost else ():
                found = cost[i, j] + max(x, y) + slowdown * min(x, y) + sync
                cost[p, q] = min(found, cost.get((p, q), np.inf))
        return {j: c for (i, j), c in cost.items() if i == len(a)}

    best = np.inf
    for rest in permutations(range(1, len(parts))):
        jobs = [parts[j] for j in (0, *rest)]
        tables = [[pair(a, b, end) for end in range(len(a) + 1)] for a, b in zip(jobs, [*jobs[1:], jobs[0]])]
        for ends in product(*(range(len(job) + 1) for job in jobs)):
            ring = zip(tables, ends, [*ends[1:], ends[0]])
            best = min(best, sum(table[end].get(behind, np.inf) for table, end, behind in ring))
    return best


@st.composite
def small(draw: st.DrawFn) -> tuple[list[Trace], list[Partition], int]:
    """Two or three jobs of a few atoms, and a limit in which they can run."""
    jobs = draw(st.lists(st.one_of(nets(), steps(streams=1)), min_size=2, max_size=3))
    count = 5 if len(jobs) == 2 else 3
    order = draw(st.sampled_from(["recorded", "depth"]))
    parts = [atoms(job, MACHINE, count, order=order) for job in jobs]
    least = max(part.peak - part.rest for part in parts) + sum(part.rest for part in parts)
    return jobs, parts, draw(st.integers(least, 2 * least))


@given(small(), st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.0, 1000.0]))
@settings(max_examples=15)
def test_no_round_is_cheaper(given_: tuple[list[Trace], list[Partition], int], slowdown: float, sync: float):
    jobs, parts, limit = given_
    found = balanced(parts, MACHINE, limit, slowdown=slowdown, sync_ns=sync)
    best = cheapest(parts, limit, slowdown, sync)
    assert takes(found, slowdown=slowdown, sync_ns=sync) == pytest.approx(best, rel=1e-9)
    checked(jobs, co_schedule(found, MACHINE), limit)


@given(small())
@settings(max_examples=15)
def test_by_the_clock_a_round_takes_what_it_should(given_: tuple[list[Trace], list[Partition], int]):
    found = balanced(given_[1], MACHINE, given_[2])
    line = simulate(co_schedule(found, MACHINE).trace, MACHINE)
    if line.cycle == 1:
        assert line.makespan == takes(found)


def whole(names: Sequence[str], factor: float) -> tuple[list[Trace], list[Partition], int]:
    jobs = [bundled(name) for name in names]
    parts = [atoms(job, MACHINE) for job in jobs]
    least = max(part.peak - part.rest for part in parts) + sum(part.rest for part in parts)
    return jobs, parts, int(factor * least)


@pytest.mark.jit  # too slow without the compiler
@pytest.mark.parametrize("names", [("vgg16", "vgg16"), ("vgg16", "resnet18"), ("resnet18", "mlp3", "vgg16")])
@pytest.mark.parametrize("factor", [1.1, 1.4, 3.0])
def test_never_worse_than_any_split(names: Sequence[str], factor: float):
    jobs, parts, limit = whole(names, factor)
    found = balanced(parts, MACHINE, limit)
    checked(jobs, co_schedule(found, MACHINE), limit)
    for k in (2, 3, 5, 8, 13, 21, 34):
        split = max(part.peak - part.rest for part in parts) // k
        other: Pipeline = pipeline([partition(job, MACHINE, split) for job in jobs], limit)
        for slowdown in (0.0, 0.5, 1.0):
            assert takes(found, slowdown=slowdown) <= takes(other, slowdown=slowdown) * 1.0001


@pytest.mark.jit  # too slow without the compiler
def test_with_ample_memory_jobs_run_beside_each_other_all_the_time():
    _, parts, limit = whole(("vgg16", "resnet18"), 3.0)
    assert takes(balanced(parts, MACHINE, limit)) == max(part.ns.sum() for part in parts)
    assert takes(balanced(parts, MACHINE), slowdown=1.0) == sum(part.ns.sum() for part in parts)


@pytest.mark.jit  # too slow without the compiler
def test_a_sync_that_costs_makes_fewer_slots():
    _, parts, limit = whole(("vgg16", "vgg16"), 1.2)
    free, dear = (balanced(parts, MACHINE, limit, sync_ns=ns) for ns in (0.0, 1e6))
    assert dear.period < free.period and takes(dear) > takes(free)
    assert takes(dear, sync_ns=1e6) < takes(free, sync_ns=1e6)


def test_one_job_and_what_is_refused():
    jobs, parts, _ = whole(("vgg16",), 1.0)
    alone = balanced(parts, MACHINE, parts[0].peak)
    checked(jobs, co_schedule(alone, MACHINE), parts[0].peak)
    assert takes(alone) == parts[0].ns.sum()
    with pytest.raises(Infeasible):
        balanced(parts * 2, MACHINE, parts[0].peak)
    with pytest.raises(ValueError, match="balanced: no jobs"):
        balanced([], MACHINE)
    with pytest.raises(ValueError, match=r"slowdown: 1.5 is not in \[0, 1\]"):
        balanced(parts, MACHINE, slowdown=1.5)
    with pytest.raises(ValueError, match="sync_ns: -1"):
        balanced(parts, MACHINE, sync_ns=-1)
    with pytest.raises(ValueError, match="count: 0 groups is below 1"):
        atoms(jobs[0], MACHINE, 0)


@pytest.mark.jit  # too slow without the compiler
def test_two_jobs_of_5000_ops_are_planned_in_two_seconds():
    """As a net of 2,500 layers would be."""
    found = made([(5000, 2500)] * 2)
    jobs = [part.trace for part in found]
    limit = int(1.2 * found[0].peak)
    warm = [atoms(job, MACHINE, 4) for job in jobs]
    balanced(warm, MACHINE, limit)
    began = perf_counter()
    both = co_schedule(balanced([atoms(job, MACHINE) for job in jobs], MACHINE, limit), MACHINE)
    assert perf_counter() - began < 2
    assert both.pipeline.bound().max() <= limit
