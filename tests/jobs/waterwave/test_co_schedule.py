"""Jobs together as one trace (`together`): it is what they are alone, and the oracle sees whatever is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import Placement, best_fit, bundled, check, simulate
from gpumem.jobs.waterwave import Pipeline, co_schedule, partition, pipeline
from gpumem.trace import Buffers, Csr, Ops, Trace
from tests.conftest import objects
from tests.jobs.waterwave.jobs_together import MACHINE, checked, made, sets


@given(sets(), st.sampled_from([0.3, 1.0, 2.5]), st.integers(1, 2))
def test_jobs_together_are_what_they_are_alone(
    given_: tuple[list[Trace], Pipeline, int | None], pace: float, hosts: int
):
    jobs, found, limit = given_
    checked(jobs, co_schedule(found, MACHINE, pace=pace, hosts=hosts), limit)


@given(sets())
@settings(max_examples=10)
def test_by_the_clock_slots_follow_one_another(given_: tuple[list[Trace], Pipeline, int | None]):
    both = co_schedule(given_[1], MACHINE)
    start, end = check.naive_clock(both.trace, MACHINE.durations(both.trace))
    for k in range(1, 3):
        for slot in range(1, both.pipeline.period):
            computes = (both.slot == slot) & (both.turn >= 0)
            assert start[k, computes].min() >= end[k, both.slot < slot].max()
    line = simulate(both.trace, MACHINE)
    check.timeline(both.trace, line, MACHINE.durations(both.trace))
    placed = best_fit(both.trace)
    check.placement(both.trace, placed)
    line = simulate(both.trace, MACHINE, placed)
    check.timeline(both.trace, line, MACHINE.durations(both.trace), placement=placed)


def test_what_crosses_the_boundary_of_a_job_goes_from_turn_to_turn():
    """Buffers that an iteration leaves to the next one, within a round and from round to round."""
    ops = Ops.make([[0, 1], [], [], []], [[], [2], [1], [0]], duration=[3, 1, 1, 3])
    job = Trace(Buffers.make([8, 4, 2], [3, 2, 1], [5, 5, 2], persistent=[False, True, False]), ops)
    other = Trace(Buffers.make([16], [0], [3]), Ops.make([[], [0], [0]], [[0], [], []], duration=[2] * 3))
    for turns in ([0, 1], [0, 1, 0], [0, 0, 1, 0]):
        found = pipeline([partition(trace, MACHINE, 4) for trace in (job, other)], turns=turns)
        checked([job, other], co_schedule(found, MACHINE))


def test_what_gives_memory_back_comes_first_at_one_instant():
    found = pipeline(made([(4, 2), (4, 2)]), overlap=0)
    both = co_schedule(found, MACHINE)
    paired = [slot for slot, pair in enumerate(zip(*found.rows())) if None not in pair]
    assert paired
    for slot in paired:
        turn, op = (column[(both.slot == slot) & (both.turn >= 0)].tolist() for column in (both.turn, both.op))
        takes = [k < found.parts[found.turns[t].job].angs for t, k in zip(turn, op)]
        assert takes == sorted(takes)


def test_pace_says_who_is_issued_first():
    part = partition(bundled("vgg16"), MACHINE, 100 * 2**20)
    found = pipeline([part, part])
    fast, slow = (co_schedule(found, MACHINE, pace=pace) for pace in (10.0, 0.1))
    behind = [
        np.flatnonzero((both.trace.ops.stream == 1) & (both.turn >= 0) & (both.slot == 1)) for both in (fast, slow)
    ]
    assert behind[0].mean() < behind[1].mean()


def test_the_oracle_sees_what_is_wrong_together():
    jobs = [bundled("vgg16"), bundled("resnet18")]
    both = co_schedule(pipeline([partition(job, MACHINE, 80 * 2**20) for job in jobs], 750 * 2**20), MACHINE)
    checked(jobs, both, 750 * 2**20)
    trace, ops = both.trace, both.trace.ops
    columns = {name: getattr(both, name) for name in ("trace", "job", "turn", "op", "lag", "slot")}

    def judged(**wrong: object) -> None:
        check.together(jobs, *(columns | wrong).values())

    with objects("slot", "does not wait for all"):
        judged(trace=replace(trace, ops=replace(ops, reads=without(ops.reads, [name == "wait" for name in ops.name]))))
    with objects("ops", "each once"):
        judged(turn=np.where(both.op == 7, 0, both.turn))
    with objects("ops", "duration"):
        judged(trace=replace(trace, ops=replace(ops, duration=ops.duration + 1)))
    for wrong in ({"lag": both.lag * 0}, {"trace": longer(trace)}):
        with objects("held", "lives during"):
            judged(**wrong)
    with objects("slot", "on another stream"):
        judged(
            trace=replace(trace, ops=replace(ops, stream=np.where(np.arange(trace.n) == 9, 1 - ops.stream, ops.stream)))
        )
    with objects("ops", "computes or takes time"):
        judged(trace=replace(trace, ops=replace(ops, duration=np.where(both.turn < 0, 5, ops.duration))))
    with objects("ops", "blocking"):
        judged(trace=trace.with_blocking())
    with objects("value", "statistics"):
        judged(trace=replace(trace, ops=replace(ops, statistics=Csr.of([[]] * trace.n))))
    table = trace.buffers
    with objects("held", "no op of the jobs touches"):
        judged(trace=replace(trace, buffers=Buffers.joined([table, Buffers.make([8], [0], [trace.n])])))
    crossing = (table.end > trace.n) & ~table.persistent
    assert crossing.any()
    with objects("held", "persistent"):
        judged(trace=replace(trace, buffers=replace(table, persistent=table.persistent | crossing)))


def test_the_oracle_sees_a_round_that_does_not_wait_for_the_one_before():
    job = bundled("vgg16")
    both = co_schedule(pipeline([partition(job, MACHINE, 100 * 2**20)] * 2), MACHINE)
    checked([job, job], both)
    ops = both.trace.ops
    free = replace(ops, reads=without(ops.reads, [name == "wait" and k < 4 for k, name in enumerate(ops.name)]))
    with objects("slot", "op 4: does not wait for all"):
        checked([job, job], replace(both, trace=replace(both.trace, ops=free)))


def without(rows: Csr, which: Sequence[bool]) -> Csr:
    return Csr.of([[] if gone else row for row, gone in zip(rows.tolist(), which)])


def longer(trace: Trace) -> Trace:
    end = trace.buffers.end.copy()
    end[np.argmin(end - trace.buffers.start)] += 1
    return replace(trace, buffers=replace(trace.buffers, end=end))


def test_a_split_below_the_largest_op_makes_groups_of_single_ops():
    trace = bundled("vgg16")
    parts = partition(trace, MACHINE, 1)
    checked(
        [trace, trace],
        co_schedule(pipeline([parts, parts], int(1.3 * trace.peak_live_bytes)), MACHINE),
        int(1.3 * trace.peak_live_bytes),
    )


def test_hosts_and_streams():
    part = partition(bundled("vgg16"), MACHINE, 50 * 2**20)
    both = co_schedule(pipeline([part, part]), MACHINE, hosts=2)
    assert (both.trace.ops.host == both.trace.ops.stream).all() and len(both.trace.ops.hosts) == 2
    for wrong_, told in (({"hosts": 3}, "hosts: 3"), ({"pace": 0.0}, "pace: 0.0")):
        with pytest.raises(ValueError, match=told):
            co_schedule(both.pipeline, MACHINE, **wrong_)


def test_placed_jobs_do_not_meet():
    """An offline placement of the trace of all needs no allocator: memory goes from job to job."""
    trace = bundled("vgg16")
    part = partition(trace, MACHINE, 60 * 2**20)
    both = co_schedule(pipeline([part, part], int(1.4 * trace.peak_live_bytes)), MACHINE).trace
    placed: Placement = best_fit(both)
    check.placement(both, placed)
    assert placed.height < 1.6 * trace.peak_live_bytes
