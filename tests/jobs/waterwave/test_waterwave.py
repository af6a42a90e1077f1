"""Waterwave: node groups, algorithm 1 as printed and mended, and several jobs as one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import Machine, Placement, best_fit, bundled, check, simulate
from gpumem.base.errors import Infeasible
from gpumem.jobs.waterwave import (
    Partition,
    Pipeline,
    Together,
    Turn,
    algorithm1,
    by_depth,
    depth,
    partition,
    pipeline,
    reordered,
    together,
)
from gpumem.jobs.waterwave.algorithm1 import Row, overlap
from gpumem.jobs.waterwave.node_groups import between
from gpumem.jobs.waterwave.pipeline import _folded
from gpumem.trace import Buffers, Csr, Ops, Trace
from tests.conftest import objects
from tests.strategies import nets, steps, traces

MACHINE = Machine.named("v100")
Shape = tuple[int, int]  # node groups, and how many of them are of allocation


def wrong(av: Row, dv: Row, jobs: Sequence[Shape]) -> str:
    """What is wrong with two streams, naively: '' where each group runs once, and each job's in turn."""
    for job, (groups, _) in enumerate(jobs):
        where = [slot for slot, pair in enumerate(zip(av, dv)) for found in pair if found and found[0] == job]
        which = [found[1] for pair in zip(av, dv) for found in pair if found and found[0] == job]
        if sorted(which) != list(range(groups)):
            return f"job {job} runs {which}"
        if which != list(range(groups)) or len(set(where)) < groups:
            return f"job {job} runs {which} in slots {where}"
    return ""


def made(jobs: Sequence[Shape], sizes: Sequence[int] | None = None) -> list[Partition]:
    """Jobs of so many groups: an op a group, each takes a buffer that a later one gives back, and one that stays."""
    found = []
    for k, (groups, angs) in enumerate(jobs):
        size = 10 if sizes is None else sizes[k]
        n = max(groups, 1)
        ends = [n - 1 - i * (n - angs) // max(angs, 1) for i in range(angs)]
        trace = Trace.from_lifetimes([size] * angs, range(angs), [max(e, i + 1) for i, e in enumerate(ends)], n=n)
        found.append(
            Partition.at(
                replace(trace, ops=Ops.make([[]] * n, [[]] * n, duration=[1] * n)), MACHINE, range(n + 1), angs
            )
        )
    return found


shapes = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda x: (x[0] + x[1], x[0])), min_size=1, max_size=5
)


# Algorithm 1


def test_figure_5():
    """The paper's three jobs of six, four and four groups, half of them of allocation."""
    jobs = [(6, 3), (4, 2), (4, 2)]
    av, dv = pipeline(made(jobs), overlap=0, wrap=False).rows()
    assert av == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), None]
    assert dv == [None, None, None, (0, 3), (0, 4), (0, 5), (1, 2), (1, 3), (2, 3)]
    assert (av[3], dv[3]) == ((1, 0), (0, 3)) and (av[6], dv[6]) == ((2, 1), (1, 2))  # the pairs that its text names
    assert algorithm1([g for g, _ in jobs], [a for _, a in jobs]) == (av, dv)


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([(4, 2), (4, 3)], "job 1 runs [0, 1, 2, 3] in slots [2, 3, 4, 4]"),  # in one slot
        ([(4, 3), (4, 3), (4, 3)], "job 1 runs [0, 1, 3, 2] in slots [3, 4, 4, 5]"),  # and in an earlier one
    ],
)
def test_as_printed_it_breaks_the_order_of_groups(jobs: list[Shape], told: str):
    assert wrong(*algorithm1([g for g, _ in jobs], [a for _, a in jobs]), jobs) == told
    assert wrong(*pipeline(made(jobs), overlap=0, wrap=False).rows(), jobs) == ""


def mended(jobs: list[Shape], p: int | None):
    parts = made(jobs)
    assert wrong(*pipeline(parts, overlap=p, wrap=False).rows(), jobs) == ""
    folded = pipeline(parts, overlap=p)
    flat = [None] * folded.period, [None] * folded.period  # two rounds, one behind the other
    rounds = [flat[0] * 3, flat[1] * 3]
    for turn in folded.turns:
        for k, (slot, stream) in enumerate(zip(turn.slot, turn.stream)):
            assert rounds[stream][slot] is None
            rounds[stream][slot] = turn.job, k
            assert rounds[stream][slot + folded.period] is None or slot >= folded.period
        assert turn.slot[-1] - turn.slot[0] < folded.period
    assert wrong(*rounds, jobs) == ""
    assert sum(found is not None for row in folded.rows() for found in row) == sum(g for g, _ in jobs)


@given(shapes, st.none() | st.integers(0, 4))
def test_mended_it_never_does(jobs: list[Shape], p: int | None):
    mended(jobs, p)


@pytest.mark.slow
def test_mended_it_never_does_in_many_cases():
    random = np.random.default_rng(0)
    broken = 0
    for _ in range(20_000):
        ups, downs = random.integers(1, 12, (2, random.integers(1, 7))).tolist()
        jobs = [(u + d, u) for u, d in zip(ups, downs)]
        p = int(random.integers(0, 5))
        mended(jobs, p)
        broken += wrong(*algorithm1([g for g, _ in jobs], [a for _, a in jobs], 0), jobs) != ""
    assert broken > 1000


def test_iterations_of_a_job_do_not_run_into_one_another():
    """Not even where a whole one would fit into slots that the one before leaves free."""
    part = made([(2, 1)])[0]
    flat = Pipeline((part,), (Turn(0, (1, 2), (0, 1)), Turn(0, (4, 7), (0, 1))), 8)  # by 4 slots: 0 to 3 around 1 to 2
    assert _folded(flat, None).period == 7


def test_overlap_is_clamped():
    assert [overlap(limit, 60, 10, [4, 3]) for limit in (50, 60, 79, 80, 99, 200)] == [0, 0, 0, 1, 2, 3]


# The order of ops


@given(st.one_of(nets(), steps(streams=1), traces(streams=1)))
def test_depth_is_the_longest_path(trace: Trace):
    """By Bellman and Ford on the conflicts, each found naively."""
    touch, write = np.zeros((2, trace.n, len(trace.buffers)), np.bool_)
    for i in range(trace.n):
        touch[i, trace.ops.reads[i]] = touch[i, trace.ops.writes[i]] = write[i, trace.ops.writes[i]] = True
    for b in trace.buffers:
        if not (b.persistent and b.end - b.start == trace.n):
            for i in (b.start, (b.end - 1) % trace.n):
                touch[i, b.id] = write[i, b.id] = True
    found = [0] * trace.n
    for i in range(trace.n):
        for j in range(i):
            if (touch[i] & touch[j] & (write[i] | write[j])).any():
                found[i] = max(found[i], found[j] + 1)
    assert depth(trace).tolist() == found


@given(st.one_of(nets(), steps(streams=1)))
def test_by_depth_computes_the_same(trace: Trace):
    check.data_flow(trace, trace)
    check.together(*one(trace, reordered(trace, order := by_depth(trace)), order))


def one(trace: Trace, after: Trace, order):
    """A job alone in another order, as the oracle of several jobs sees it."""
    zeros = np.zeros(trace.n, np.int64)
    return [trace], after, zeros, zeros, order, zeros, zeros


def test_the_oracle_sees_a_wrong_order():
    ops = Ops.make([[], [0]], [[0], [0]])
    trace, order = Trace(Buffers.make([8], [0], [2], persistent=[True]), ops), np.array([1, 0])
    with objects("dependence", "change places"):
        check.together(*one(trace, reordered(trace, order), order))


def test_no_order_makes_a_buffer_live_for_ever():
    """It is freed and made anew in each iteration, be it at once."""
    ops = Ops.make([[], [0, 1], [], []], [[0], [], [], [1]])
    trace = Trace(Buffers.make([8, 8], [0, 3], [2, 6], persistent=[False, True]), ops)
    order = by_depth(trace)
    after = reordered(trace, order)
    assert order.tolist() == [0, 2, 1, 3]
    assert (after.buffers.start[1], after.buffers.end[1]) == (3, 7)
    assert not after.eternal.any()


# Node groups


@given(
    st.one_of(nets(), steps(streams=1), traces(streams=1)), st.integers(1, 200), st.sampled_from(["recorded", "depth"])
)
def test_groups_are_of_one_sign_and_profiled(trace: Trace, split: int, order: str):
    parts = partition(trace, MACHINE, split, order=order)
    load, ns = parts.trace.load(), MACHINE.durations(parts.trace)
    assert parts.cuts[0] == 0 and parts.cuts[-1] == trace.n and (np.diff(parts.cuts) > 0).all()
    for k in range(len(parts)):
        group = parts[k]
        assert group.net >= 0 if k < parts.angs else group.net <= 0
        assert group.ns == ns[group.first : group.last].sum()
        assert parts.held[k] + group.inside == max(load[group.first : group.last].max(), parts.held[k])
        left = [k == parts.angs - 1, k == len(parts) - 1]  # what is left over before the peak, and at the end
        within = between(parts.trace)[group.first + 1 : group.last] - parts.held[k]
        sign = 1 if k < parts.angs else -1
        assert any(left) or (abs(group.net) >= split and (sign * within < split).all())  # and no earlier op would do
    assert parts.held[0] == parts.held[-1] and parts.peak == max(load.max(), parts.held.max())


@given(nets(), st.data())
def test_ranges_are_kept_whole(trace: Trace, data: st.DataObject):
    first = data.draw(st.integers(0, trace.n - 1))
    last = data.draw(st.integers(first + 1, trace.n))
    parts = partition(trace, MACHINE, 1, order=data.draw(st.sampled_from(["recorded", "depth"])), keep=[(first, last)])
    group = np.repeat(np.arange(len(parts)), np.diff(parts.cuts))
    assert len(set(group[np.isin(parts.order, np.arange(first, last))].tolist())) == 1


def test_what_cannot_be_cut_is_told():
    trace = bundled("mlp3")
    with pytest.raises(ValueError, match="split: 0 bytes is below 1"):
        partition(trace, MACHINE, 0)
    with pytest.raises(ValueError, match=r"keep: \[3, 3\) is no range of 40 ops"):
        partition(trace, MACHINE, 1, keep=[(3, 3)])
    with pytest.raises(ValueError, match="no ops"):
        partition(Trace.from_lifetimes([1], [0], [1]), MACHINE, 1)
    with pytest.raises(ValueError, match=r"order.*'deep'.*depth"):
        partition(trace, MACHINE, 1, order="deep")
    with pytest.raises(ValueError, match="no jobs"):
        pipeline([])
    with pytest.raises(ValueError, match=r"turns: \[0\] are not of the 2 jobs"):
        pipeline([partition(trace, MACHINE, 1)] * 2, turns=[0])


# Jobs together


def checked(jobs: Sequence[Trace], found: Together, limit: int | None = None) -> None:
    """All that an oracle knows of jobs together."""
    check.together(jobs, found.trace, found.job, found.turn, found.op, found.lag, found.slot)
    check.budget(found.trace, int(found.pipeline.bound().max()))
    if limit is not None:
        check.budget(found.trace, limit)
        assert found.pipeline.bound().max() <= limit


@st.composite
def sets(draw: st.DrawFn) -> tuple[list[Trace], Pipeline, int | None]:
    """Jobs, what they do together, and the limit that they were told."""
    jobs = draw(st.lists(st.one_of(nets(), steps(streams=1)), min_size=1, max_size=4))
    order = draw(st.sampled_from(["recorded", "depth"]))
    parts = [partition(job, MACHINE, draw(st.integers(1, 150)), order=order) for job in jobs]
    rest = sum(part.rest for part in parts)
    least = max(part.peak - part.rest for part in parts) + rest
    limit = draw(st.none() | st.integers(least, 2 * least))
    turns = draw(
        st.none() | st.permutations([*range(len(jobs)), *draw(st.lists(st.integers(0, len(jobs) - 1), max_size=2))])
    )
    return jobs, pipeline(parts, limit, turns=turns, wrap=draw(st.booleans())), limit


@given(sets(), st.sampled_from([0.3, 1.0, 2.5]), st.integers(1, 2))
def test_jobs_together_are_what_they_are_alone(
    given_: tuple[list[Trace], Pipeline, int | None], pace: float, hosts: int
):
    jobs, found, limit = given_
    checked(jobs, together(found, MACHINE, pace=pace, hosts=hosts), limit)


@given(sets(), st.randoms(use_true_random=False))
def test_the_bound_holds_in_any_order(given_: tuple[list[Trace], Pipeline, int | None], random):
    """However the ops of a pair are handed over, and whatever one stream does before the other has begun."""
    _, found, _ = given_
    bound, now = found.bound(), sum(part.rest for part in found.parts)
    for at in range(3 * found.period):
        rises = []  # of each group of this slot: what it holds op by op, beyond what was held at its start
        for turn in found.turns:
            part = found.parts[turn.job]
            for k in [k for k, slot in enumerate(turn.slot) if slot <= at and slot % found.period == at % found.period]:
                load = part.trace.load()[part.cuts[k] : part.cuts[k + 1]]
                rises.append([0, *(load - part.held[k]).tolist(), int(part.held[k + 1] - part.held[k])])
        while rises:
            row = random.choice(rises)
            now += row[1] - row[0]
            del row[0]
            rises = [row for row in rises if len(row) > 1]
            assert now <= bound[at % found.period]


@given(sets())
@settings(max_examples=10)
def test_by_the_clock_slots_follow_one_another(given_: tuple[list[Trace], Pipeline, int | None]):
    both = together(given_[1], MACHINE)
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
        checked([job, other], together(found, MACHINE))


def test_what_gives_memory_back_comes_first_at_one_instant():
    found = pipeline(made([(4, 2), (4, 2)]), overlap=0)
    both = together(found, MACHINE)
    paired = [slot for slot, pair in enumerate(zip(*found.rows())) if None not in pair]
    assert paired
    for slot in paired:
        turn, op = (column[(both.slot == slot) & (both.turn >= 0)].tolist() for column in (both.turn, both.op))
        takes = [k < found.parts[found.turns[t].job].angs for t, k in zip(turn, op)]
        assert takes == sorted(takes)


def test_pace_says_who_is_issued_first():
    part = partition(bundled("vgg16"), MACHINE, 100 * 2**20)
    found = pipeline([part, part])
    fast, slow = (together(found, MACHINE, pace=pace) for pace in (10.0, 0.1))
    behind = [
        np.flatnonzero((both.trace.ops.stream == 1) & (both.turn >= 0) & (both.slot == 1)) for both in (fast, slow)
    ]
    assert behind[0].mean() < behind[1].mean()


def test_the_oracle_sees_what_is_wrong_together():
    jobs = [bundled("vgg16"), bundled("resnet18")]
    both = together(pipeline([partition(job, MACHINE, 80 * 2**20) for job in jobs], 750 * 2**20), MACHINE)
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
    both = together(pipeline([partition(job, MACHINE, 100 * 2**20)] * 2), MACHINE)
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


def test_jobs_that_cannot_run_together_are_named():
    part = partition(bundled("vgg16"), MACHINE, 50 * 2**20)
    with pytest.raises(Infeasible) as caught:
        pipeline([part, part], part.peak + part.rest - 1)
    assert caught.value.needs == part.peak + part.rest
    assert caught.value.__notes__ == [
        "job 0 (vgg16_cifar_b100) needs 462.03 MiB by itself, beside 114.42 MiB that the others keep"
    ]
    assert pipeline([part, part], part.peak + part.rest).bound().max() == part.peak + part.rest


def test_a_split_below_the_largest_op_makes_groups_of_single_ops():
    trace = bundled("vgg16")
    parts = partition(trace, MACHINE, 1)
    checked(
        [trace, trace],
        together(pipeline([parts, parts], int(1.3 * trace.peak_load)), MACHINE),
        int(1.3 * trace.peak_load),
    )


def test_hosts_and_streams():
    part = partition(bundled("vgg16"), MACHINE, 50 * 2**20)
    both = together(pipeline([part, part]), MACHINE, hosts=2)
    assert (both.trace.ops.host == both.trace.ops.stream).all() and len(both.trace.ops.hosts) == 2
    for wrong_, told in (({"hosts": 3}, "hosts: 3"), ({"pace": 0.0}, "pace: 0.0")):
        with pytest.raises(ValueError, match=told):
            together(both.pipeline, MACHINE, **wrong_)


def test_placed_jobs_do_not_meet():
    """An offline placement of the trace of all needs no allocator: memory goes from job to job."""
    trace = bundled("vgg16")
    part = partition(trace, MACHINE, 60 * 2**20)
    both = together(pipeline([part, part], int(1.4 * trace.peak_load)), MACHINE).trace
    placed: Placement = best_fit(both)
    check.placement(both, placed)
    assert placed.height < 1.6 * trace.peak_load
