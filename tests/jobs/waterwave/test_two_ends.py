"""Turns from both ends of a pool: valid in any order, within what the pipeline was told, no stream waits in a slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import Machine, best_fit, bundled, check
from gpumem.jobs.waterwave import Partition, Pipeline, co_schedule, in_pool, partition, pipeline, two_ends
from gpumem.pool import stacked
from gpumem.simulator.hazards import hazards
from gpumem.trace import SYNC, Placement, Trace
from tests.strategies import nets, steps

MACHINE = Machine.named("v100")
PACES = (
    0.01,
    0.5,
    1.0,
    2.0,
    100.0,
)  # of stream 1: one group of a slot before the other, or both at once


def stacks(line: Pipeline, alignment: int = 8) -> list[Placement]:
    return [stacked(part.trace, alignment=alignment) for part in line.parts]


def highest(trace: Trace, placed: Placement, between: bool = False) -> list[int]:
    """The highest byte in use at each op, or also at the one before, rounded up: buffer by buffer."""
    b, unit, found = trace.buffers, placed.alignment, [0] * trace.n
    for i in np.flatnonzero(~b.host & (b.size > 0)).tolist():
        for at in range(int(b.start[i]) + between, int(b.end[i])):
            found[at % trace.n] = max(found[at % trace.n], -int(-(placed.offset[i] + b.size[i]) // unit) * unit)
    return found


@st.composite
def lines(draw: st.DrawFn) -> Pipeline:
    """Pipelines of one job and more, under a memory limit on addresses, where one is drawn."""
    jobs = draw(st.lists(st.one_of(nets(), steps(streams=1)), min_size=1, max_size=3))
    parts = [partition(job, MACHINE, draw(st.integers(1, 150))) for job in jobs]
    tall = [in_pool(part, stacked(part.trace, alignment=8)) for part in parts]
    least = max(part.peak - part.rest for part in tall) + sum(part.rest for part in tall)
    limit = draw(st.none() | st.integers(least, 2 * least))
    return pipeline(tall, limit, wrap=draw(st.booleans()))


@given(lines())
def test_a_round_from_two_ends_is_valid_in_any_order_within_a_slot(line: Pipeline):
    both = co_schedule(line, MACHINE)
    try:
        placed = two_ends(both, stacks(line))
    except ValueError as error:
        assert "two are too few" in str(error) and len(line.turns) > 2
        return
    assert placed.height == line.bound().max()
    for pace in PACES:
        check.placement(co_schedule(line, MACHINE, pace=pace).trace, placed)


@given(st.one_of(nets(), steps(streams=1)), st.integers(1, 150))
def test_a_part_in_a_pool_is_as_high_as_its_addresses(trace: Trace, split: int):
    part = partition(trace, MACHINE, split)
    placed = stacked(part.trace, alignment=8)
    tall, high = in_pool(part, placed), highest(part.trace, placed)
    crossing = np.flatnonzero(part.trace.crossing & ~part.trace.buffers.host)
    kept = max((int(placed.offset[i] + part.trace.buffers.size[i]) for i in crossing), default=0)
    assert tall.rest == tall.held[-1] >= kept
    behind = [max(tall.rest, top) for top in highest(part.trace, placed, between=True)]
    assert [behind[cut] for cut in part.cuts[1:-1]] == tall.held[1:-1].tolist()
    for k in range(len(part)):
        assert tall.held[k] + tall.inside[k] == max(tall.rest, *high[part.cuts[k] : part.cuts[k + 1]])


def vgg() -> Partition:
    return partition(bundled("vgg16"), MACHINE, 50 * 2**20)


def test_no_stream_waits_for_another_but_between_slots():
    part = vgg()
    stack = stacked(part.trace)
    line = pipeline([in_pool(part, stack)] * 2, 600 * 2**20)
    both = co_schedule(line, MACHINE)
    own = both.trace.ops.role != SYNC

    def waits(placed: Placement) -> int:
        after = hazards(both.trace, placed).after
        return int(np.diff(after.ptr)[own].sum())

    assert line.pairs > 3
    assert waits(two_ends(both, [stack] * 2)) == 0
    assert waits(best_fit(both.trace)) > 0


def test_a_limit_on_addresses_is_kept_and_one_on_bytes_is_not():
    part, limit = vgg(), 600 * 2**20
    stack = stacked(part.trace)
    both = co_schedule(pipeline([in_pool(part, stack)] * 2, limit), MACHINE)
    assert two_ends(both, [stack] * 2, limit).height == limit
    check.placement(both.trace, two_ends(both, [stack] * 2, limit + 100))
    by_bytes = co_schedule(pipeline([part] * 2, limit), MACHINE)
    with pytest.raises(
        ValueError, match=r"capacity: 600.00 MiB is below the .* MiB that the round takes from two ends"
    ):
        two_ends(by_bytes, [stack] * 2, limit)


def test_what_does_not_belong_is_refused():
    part = vgg()
    stack = stacked(part.trace)
    both = co_schedule(pipeline([in_pool(part, stack)] * 2), MACHINE)
    with pytest.raises(ValueError, match="placements: there are 1, one for each of 2 jobs would do"):
        two_ends(both, [stack])
    with pytest.raises(ValueError, match=r"placements: alignments \[8, 256\] differ"):
        two_ends(both, [stack, stacked(part.trace, alignment=8)])
    with pytest.raises(ValueError, match="placement: 2 offsets, but trace 'vgg16_cifar_b100' has 368 buffers"):
        in_pool(part, Placement.at(Trace.from_lifetimes([1, 1], [0, 0], [1, 1]), [0, 1]))


def test_three_turns_that_meet_are_refused():
    part = in_pool(vgg(), stacked(vgg().trace))
    line = pipeline([part] * 3, wrap=True)
    meeting = replace(line, turns=tuple(replace(turn, slot=line.turns[0].slot) for turn in line.turns))
    both = replace(co_schedule(line, MACHINE), pipeline=meeting)
    with pytest.raises(ValueError, match=r"turns [01] and 2 meet, and others leave them one end: two are too few"):
        two_ends(both, [stacked(part.trace)] * 3)


@pytest.mark.parametrize(
    ("jobs", "wrap", "loose", "fits"),
    [(3, True, 1.1, False), (3, False, 1.1, True), (4, True, 1.1, True), (3, False, 2.0, False)],
)
def test_more_than_two_jobs_need_a_tight_limit_and_an_odd_number_flat_rounds(
    jobs: int, wrap: bool, loose: float, fits: bool
):
    stack = stacked(vgg().trace)
    part = in_pool(vgg(), stack)
    limit = int(loose * (jobs * part.rest + part.peak - part.rest))
    both = co_schedule(pipeline([part] * jobs, limit, wrap=wrap), MACHINE)
    if fits:
        check.placement(both.trace, two_ends(both, [stack] * jobs, limit))
        return
    with pytest.raises(ValueError, match=r"two are too few; a lower limit, pipeline\(..., wrap=False\) or best_fit"):
        two_ends(both, [stack] * jobs, limit)
