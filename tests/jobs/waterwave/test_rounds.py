"""Jobs that come, run together round by round, and go: when iterations end, who waits, who is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import Machine, NotReached, bundled, simulate
from gpumem.jobs import Job, Outcome
from gpumem.jobs.waterwave import (
    SHARING_POLICIES,
    CoSchedule,
    Pipeline,
    co_schedule,
    rounds,
    simulate_together,
    temporal,
    waterwave,
    waterwave_s,
)
from gpumem.simulator.sharing import share
from gpumem.trace import Buffers, Ops, Trace
from tests.jobs.waterwave.jobs_together import MACHINE, judged
from tests.strategies import nets


def ran(
    jobs: Sequence[Job], limit: int, way=waterwave, **options
) -> tuple[Outcome, list[tuple[list[str], CoSchedule]]]:
    told: list[tuple[list[str], CoSchedule]] = []
    out = simulate_together(
        jobs, MACHINE, limit, way, made=lambda inside, both: told.append(([j.name for j in inside], both)), **options
    )
    for job in out.jobs:
        ends = [event.ns for event in out.log if event.kind == "iteration" and event.job == job.name]
        assert list(job.end) == ends == sorted(ends)
        assert len(job.start) == len(job.end) and (not ends or job.leave >= ends[-1])
    assert [event.ns for event in out.log] == sorted(event.ns for event in out.log)
    return out, told


@pytest.fixture(autouse=True)
def boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a run in which time stands still."""
    boundary, asked = rounds._Session.boundary, Counter[rounds._Session]()

    def counted(session: rounds._Session) -> CoSchedule | None:
        asked[session] += 1
        assert asked[session] < 1000, "the run does not end"
        return boundary(session)

    monkeypatch.setattr(rounds._Session, "boundary", counted)


def test_an_iteration_takes_a_round():
    trace = bundled("vgg16")
    out, told = ran([Job("a", trace, iterations=6), Job("b", trace, iterations=6)], int(1.5 * trace.peak_live_bytes))
    (_, both), *_ = told
    period = simulate(share(both.trace, MACHINE, 1.0), MACHINE).makespan
    for job in out.jobs:
        assert set(np.diff(job.end)[:-1].tolist()) == {period} and np.diff(job.end)[-1] <= period
    assert out.peak == both.trace.peak_live_bytes


def test_jobs_come_and_go_between_rounds():
    trace = bundled("vgg16")
    limit, alone = int(1.5 * trace.peak_live_bytes), simulate(trace, MACHINE).makespan
    jobs = [Job("a", trace, iterations=12), Job("b", trace, arrival=2 * alone + 1, iterations=3)]
    out, told = ran(jobs, limit)
    assert [names for names, _ in told] == [["a"], ["a", "b"], ["a"]]
    assert [len(job.end) for job in out.jobs] == [12, 3]
    a, b = out.jobs
    assert b.launch == a.end[2]  # the round in which it arrived has ended
    for names, both in told:
        judged([trace] * len(names), both, limit)


def test_one_that_leaves_in_the_middle_ends_its_iteration():
    trace = bundled("vgg16")
    alone = simulate(trace, MACHINE).makespan
    out, _ = ran([Job("a", trace, iterations=9, leave=3 * alone + alone // 2), Job("b", trace, iterations=9)], 2**34)
    a, b = out.jobs
    assert a.end[-1] >= 3 * alone + alone // 2 > a.end[-2] and len(a.end) < 9 and len(b.end) == 9
    assert a.leave >= a.end[-1]


def test_who_does_not_fit_waits_in_turn_and_who_never_does_is_refused():
    trace, small = bundled("vgg16"), bundled("resnet18")
    jobs = [Job("a", trace, iterations=2), Job("b", trace, iterations=2), Job("c", small, iterations=2)]
    out, told = ran(jobs, trace.peak_live_bytes + 2**20)
    assert [names for names, _ in told] == [["a"], ["b"]]
    a, b, c = out.jobs
    assert b.launch >= a.leave and c.launch == -1 and c.refused == small.peak_live_bytes
    with pytest.raises(ValueError, match="no jobs"):
        simulate_together([], MACHINE, 1)
    with pytest.raises(ValueError, match="two jobs of one name"):
        simulate_together([jobs[0]] * 2, MACHINE, 1)


def test_who_waits_makes_no_new_pipeline():
    trace = bundled("vgg16")
    alone = simulate(trace, MACHINE).makespan
    out, told = ran([Job("a", trace, iterations=4), Job("b", trace, alone + 1, 1)], trace.peak_live_bytes + 1)
    assert [names for names, _ in told] == [["a"], ["b"]] and out.replans == ()
    assert [event.ns for event in out.log if event.kind == "wait"] == [2 * alone]  # between rounds
    assert [job.end for job in out.jobs] == [tuple(range(alone, 5 * alone, alone)), (5 * alone,)]


def test_nobody_overtakes_who_waits():
    small, large = bundled("vgg16"), bundled("resnet18")
    limit = int(temporal([small, small], MACHINE).bound().max())
    jobs = [Job("a", small, iterations=2), Job("b", large, iterations=1), Job("c", small, iterations=1)]
    out, _ = ran(jobs, limit, temporal)
    a, b, c = out.jobs
    assert (b.launch, c.launch) == (a.leave, b.leave)  # c would have fit beside a


def test_ops_that_take_no_time_hold_up_nobody():
    trace = Trace(Buffers.make([8], [0], [1]), Ops.make([[], []], [[0], []], duration=[0, 0]))
    jobs = [Job("a", trace, iterations=9, leave=5), Job("b", trace, arrival=7, iterations=2)]
    out, _ = ran(jobs, 16)
    assert [(job.end, job.leave) for job in out.jobs] == [((0,) * 9, 0), ((7,) * 2, 7)]


def held(name: str, *rows: tuple[int, int, int]) -> Trace:
    """Ten ops of 100 ns, and buffers of (bytes, op that writes it, op that reads it)."""
    size, start, last = zip(*rows)
    touched = [[[b for b, at in enumerate(column) if at == i] for i in range(10)] for column in (last, start)]
    return Trace(Buffers.make(size, start, [at + 1 for at in last]), Ops.make(*touched, duration=[100] * 10), name=name)


def three() -> list[Job]:
    """Three jobs, of which `b` ends first."""
    a, c = held("a", (90, 3, 9), (10, 4, 9)), held("c", (90, 0, 5), (10, 4, 5))
    b = held("b", *((1, i, i + 1) for i in range(9)))
    return [Job("a", a, iterations=5), Job("b", b, iterations=1), Job("c", c, iterations=5)]


def test_what_fits_in_issue_order_alone_waits():
    """Side by side, `a` takes and `c` gives back: 190 bytes as they are launched, 200 if `a` is the faster one."""
    a, _, c = three()
    limit = co_schedule(waterwave_s([a.trace, c.trace], MACHINE), MACHINE).trace.peak_live_bytes
    assert waterwave_s([a.trace, c.trace], MACHINE, limit).bound().max() == limit + 10
    assert [names for names, _ in ran([a, c], limit, waterwave_s)[1]] == [["a"], ["c"]]
    assert [names for names, _ in ran([a, c], limit + 10, waterwave_s)[1]] == [["a", "c"]]


def test_those_that_fit_only_beside_one_that_has_left_take_turns():
    def way(traces: Sequence[Trace], machine: Machine, limit: int) -> Pipeline:
        if [trace.name for trace in traces] == ["a", "c"]:
            raise NotReached(201, limit)
        return waterwave_s(traces, machine, limit)

    jobs, limit = three(), 200
    out, told = ran(jobs, limit, way)
    assert [names for names, _ in told] == [["a", "b", "c"], ["a", "c"]]
    assert [len(job.end) for job in out.jobs] == [5, 1, 5] and out.peak <= limit
    judged([jobs[0].trace, jobs[2].trace], told[1][1], limit)
    assert told[1][1].pipeline.pairs == 0


@given(st.lists(st.tuples(nets(), st.integers(0, 60_000), st.integers(1, 5)), min_size=1, max_size=4), st.data())
def test_every_job_runs_its_iterations_or_is_refused(rows: list[tuple[Trace, int, int]], data: st.DataObject):
    jobs = [Job(str(k), trace, arrival, count) for k, (trace, arrival, count) in enumerate(rows)]
    limit = data.draw(st.integers(1, 1 + sum(job.trace.peak_live_bytes for job in jobs)))
    out, _ = ran(jobs, limit, data.draw(st.sampled_from([*SHARING_POLICIES.values()])))
    assert out.peak <= limit
    for job, mine in zip(jobs, out.jobs):
        refused = job.trace.peak_live_bytes > limit
        assert (mine.refused > limit) == refused and len(mine.end) == (0 if refused else job.iterations)
        assert refused or (mine.launch >= job.arrival and mine.leave >= mine.end[-1])


def slot_by_slot(line: Pipeline, count: int) -> list[list[int]]:
    """When iterations of each job end where groups do not disturb each other, by the rules of a pipeline alone."""
    ends: list[list[int]] = [[] for _ in line.parts]
    now = 0
    for at in range((count + 2) * line.period):
        takes = [0]
        for turn in line.turns:
            part = line.parts[turn.job]
            for group, slot in enumerate(turn.slot):
                if at >= slot and (at - slot) % line.period == 0 and (at - slot) // line.period < count:
                    takes.append(int(part.ns[group]))
                    if group == len(part) - 1:
                        ends[turn.job].append(now + takes[-1])
        now += max(takes)
    return ends


@pytest.mark.parametrize(
    ("limit", "weights"), [(1.3, (1, 1)), (1.5, (1, 1)), (4, (1, 1)), (1.6, (2, 1)), (1.6, (3, 2))]
)
def test_pipelines_fill_and_drain(limit: float, weights: tuple[int, int]):
    traces = [bundled("vgg16"), bundled("resnet18")]
    jobs = [Job(str(k), trace, iterations=4 * weight) for k, (trace, weight) in enumerate(zip(traces, weights))]
    more = {} if weights == (1, 1) else {"weights": weights}
    out, told = ran(jobs, int(limit * bundled("resnet18").peak_live_bytes), slowdown=0.0, **more)
    ((_, both),) = told
    assert [list(job.end) for job in out.jobs] == slot_by_slot(both.pipeline, 4)


def test_a_job_ends_with_its_iterations_whatever_a_round_has():
    jobs = [Job("a", bundled("vgg16"), iterations=11), Job("b", bundled("vgg16"), iterations=4)]
    out, _ = ran(jobs, 2**34, weights=[3, 1])
    assert [len(job.end) for job in out.jobs] == [11, 4]


def test_priorities_are_iterations_in_a_round():
    trace = bundled("vgg16")
    jobs = [Job("a", trace, iterations=12), Job("b", trace, iterations=4)]
    for way in (waterwave, temporal):
        out, told = ran(jobs, int(1.5 * trace.peak_live_bytes), way, weights=[3, 1])
        assert [len(names) for names, _ in told] == [2] and [len(job.end) for job in out.jobs] == [12, 4]
        judged([trace] * 2, told[0][1])
        assert [turn.job for turn in told[0][1].pipeline.turns].count(0) == 3
        a, b = ((job.end[-1] - job.launch) / len(job.end) for job in out.jobs)
        assert 2 * a < b
    with pytest.raises(ValueError, match="weights: 1 of them for 2 jobs"):
        simulate_together(jobs, MACHINE, 2**30, weights=[1])
