"""Ways of sharing by node groups, halves and whole iterations; jobs that come and go; `gpumem jobs` with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import Machine, bundled, check, io, simulate
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs import Job, Outcome
from gpumem.jobs.waterwave import (
    WAYS,
    Pipeline,
    Together,
    halves,
    round_ns,
    searched,
    simulate_together,
    temporal,
    together,
    waterwave,
    waterwave_s,
)
from gpumem.simulator.sharing import share
from gpumem.trace import Buffers, Ops, Trace
from tests.conftest import Cli, shared
from tests.strategies import nets, steps

MACHINE = Machine.named("v100")


def judged(traces: Sequence[Trace], both: Together, limit: int | None = None) -> None:
    check.together(traces, both.trace, both.job, both.turn, both.op, both.lag, both.slot)
    if limit is not None:
        check.budget(both.trace, limit)


@given(st.lists(st.one_of(nets(), steps(streams=1)), min_size=1, max_size=3), st.data())
def test_ways_keep_jobs_and_the_limit(traces: list[Trace], data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(WAYS)))
    limit = data.draw(st.integers(1, 1 + 2 * sum(trace.peak_load for trace in traces)))
    try:
        found = WAYS[name](traces, MACHINE, limit)
    except (Infeasible, NotReached) as error:
        least = error.needs if isinstance(error, Infeasible) else error.reached
        assert least > limit
        if isinstance(error, Infeasible):
            WAYS[name](traces, MACHINE, least)
        return
    judged(traces, together(found, MACHINE), limit)
    assert name == "waterwave-s" or found.bound().max() <= limit


def test_temporal_sharing_takes_the_time_of_all_and_the_memory_of_one():
    traces = [bundled("vgg16"), bundled("resnet18")]
    both = together(temporal(traces, MACHINE), MACHINE)
    alone = [simulate(trace, MACHINE).makespan for trace in traces]
    assert simulate(both.trace, MACHINE).makespan == sum(alone)
    parts = both.pipeline.parts
    assert both.trace.peak_load == max(part.peak - part.rest for part in parts) + sum(part.rest for part in parts)


def test_node_groups_hold_less_than_halves_and_take_less_than_turns():
    """Where kernels disturb each other little, what runs side by side is gained."""
    traces = [bundled("vgg16")] * 2
    halves = together(waterwave_s(traces, MACHINE), MACHINE).trace.peak_load
    limit = int(1.3 * bundled("vgg16").peak_load)
    assert limit < halves
    with pytest.raises(NotReached, match="node groups get lower"):
        waterwave_s(traces, MACHINE, limit)
    both, turns = (together(way(traces, MACHINE, limit), MACHINE).trace for way in (waterwave, temporal))
    assert both.peak_load <= limit
    for slowdown, most in ((0.0, 0.95), (0.5, 0.98), (1.0, 1.0)):
        ns = [simulate(share(trace, MACHINE, slowdown), MACHINE).makespan for trace in (both, turns)]
        assert ns[0] <= most * ns[1]


def test_the_split_that_is_told_is_taken():
    trace = bundled("vgg16")
    fine, coarse = (waterwave([trace] * 2, MACHINE, split=split).period for split in (20 * 2**20, 200 * 2**20))
    assert fine > 2 * coarse


# Jobs that come and go


def ran(jobs: Sequence[Job], limit: int, way=waterwave, **options) -> tuple[Outcome, list[tuple[list[str], Together]]]:
    told: list[tuple[list[str], Together]] = []
    out = simulate_together(
        jobs, MACHINE, limit, way, made=lambda inside, both: told.append(([j.name for j in inside], both)), **options
    )
    for job in out.jobs:
        ends = [event.ns for event in out.log if event.kind == "iteration" and event.job == job.name]
        assert list(job.end) == ends == sorted(ends)
        assert len(job.start) == len(job.end) and (not ends or job.leave >= ends[-1])
    assert [event.ns for event in out.log] == sorted(event.ns for event in out.log)
    return out, told


def test_an_iteration_takes_a_round():
    trace = bundled("vgg16")
    out, told = ran([Job("a", trace, iterations=6), Job("b", trace, iterations=6)], int(1.5 * trace.peak_load))
    (_, both), *_ = told
    period = simulate(share(both.trace, MACHINE, 1.0), MACHINE).makespan
    for job in out.jobs:
        assert set(np.diff(job.end)[:-1].tolist()) == {period} and np.diff(job.end)[-1] <= period
    assert out.peak == both.trace.peak_load


def test_jobs_come_and_go_between_rounds():
    trace = bundled("vgg16")
    limit, alone = int(1.5 * trace.peak_load), simulate(trace, MACHINE).makespan
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
    out, told = ran(jobs, trace.peak_load + 2**20)
    assert [names for names, _ in told] == [["a"], ["b"]]
    a, b, c = out.jobs
    assert b.launch >= a.leave and c.launch == -1 and c.refused == small.peak_load
    with pytest.raises(ValueError, match="no jobs"):
        simulate_together([], MACHINE, 1)
    with pytest.raises(ValueError, match="two jobs of one name"):
        simulate_together([jobs[0]] * 2, MACHINE, 1)


def test_who_waits_makes_no_new_pipeline():
    trace = bundled("vgg16")
    alone = simulate(trace, MACHINE).makespan
    out, told = ran([Job("a", trace, iterations=4), Job("b", trace, alone + 1, 1)], trace.peak_load + 1)
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


@given(st.lists(st.tuples(nets(), st.integers(0, 60_000), st.integers(1, 5)), min_size=1, max_size=4), st.data())
def test_every_job_runs_its_iterations_or_is_refused(rows: list[tuple[Trace, int, int]], data: st.DataObject):
    jobs = [Job(str(k), trace, arrival, count) for k, (trace, arrival, count) in enumerate(rows)]
    limit = data.draw(st.integers(1, 1 + sum(job.trace.peak_load for job in jobs)))
    out, _ = ran(jobs, limit, data.draw(st.sampled_from([waterwave, temporal])))
    assert out.peak <= limit
    for job, mine in zip(jobs, out.jobs):
        refused = job.trace.peak_load > limit
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
    out, told = ran(jobs, int(limit * bundled("resnet18").peak_load), slowdown=0.0, **more)
    ((_, both),) = told
    assert [list(job.end) for job in out.jobs] == slot_by_slot(both.pipeline, 4)


def test_a_job_ends_with_its_iterations_whatever_a_round_has():
    jobs = [Job("a", bundled("vgg16"), iterations=11), Job("b", bundled("vgg16"), iterations=4)]
    out, _ = ran(jobs, 2**34, weights=[3, 1])
    assert [len(job.end) for job in out.jobs] == [11, 4]


def test_halves_are_the_better_of_two():
    """At the peak, or where the first gradient begins."""
    for name in ("vgg16", "resnet18", "mlp3"):
        both = [together(one, MACHINE).trace.peak_load for one in halves([bundled(name)] * 2, MACHINE)]
        assert together(waterwave_s([bundled(name)] * 2, MACHINE), MACHINE).trace.peak_load == min(both)


def test_priorities_are_iterations_in_a_round():
    trace = bundled("vgg16")
    jobs = [Job("a", trace, iterations=12), Job("b", trace, iterations=4)]
    for way in (waterwave, temporal):
        out, told = ran(jobs, int(1.5 * trace.peak_load), way, weights=[3, 1])
        assert [len(names) for names, _ in told] == [2] and [len(job.end) for job in out.jobs] == [12, 4]
        judged([trace] * 2, told[0][1])
        assert [turn.job for turn in told[0][1].pipeline.turns].count(0) == 3
        a, b = ((job.end[-1] - job.launch) / len(job.end) for job in out.jobs)
        assert 2 * a < b
    with pytest.raises(ValueError, match="weights: 1 of them for 2 jobs"):
        simulate_together(jobs, MACHINE, 2**30, weights=[1])


@pytest.mark.jit
def test_searched_groups_are_never_slower():
    traces = [bundled("vgg16"), bundled("resnet18")]
    for limit, slowdown in ((680, 0.0), (680, 0.5), (2000, 0.5)):
        both = [way(traces, MACHINE, limit * 2**20, slowdown=slowdown) for way in (waterwave, searched)]
        slow, fast = (round_ns(one, MACHINE, slowdown=slowdown) for one in both)
        assert fast <= slow
        judged(traces, together(both[1], MACHINE), limit * 2**20)
        assert slowdown or fast < 0.95 * slow


# The command line


@pytest.mark.jit
def test_one_command_for_all_ways(cli: Cli, tmp_path: Path):
    rows = {}
    for planner in (*WAYS, "tensile"):
        given_ = ("jobs", "vgg16", "vgg16", "--limit", "70%", "--iterations", "6", "--slowdown", "0.5")
        ran_ = cli(*given_, "--planner", planner, "--json")
        assert ran_.status == 0
        rows[planner] = ran_.json["together"]
        assert rows[planner]["peak"] <= ran_.json["capacity"]
    assert rows["waterwave"]["msr"] > 0.3 and rows["waterwave"]["makespan_ns"] <= rows["temporal"]["makespan_ns"]


def test_the_round_is_written_as_one_trace(cli: Cli, tmp_path: Path):
    path = tmp_path / "both.json.gz"
    ran_ = cli("jobs", "vgg16", "mlp3", "--planner", "waterwave", "--split", "50MiB", "--trace", path)
    assert ran_.status == 0 and "pairs" in ran_.err[0]
    loaded = io.load(path)
    assert loaded.trace.ops.streams == ("compute 0", "compute 1")
    check.placement(loaded.trace, loaded.placement)
    assert cli("jobs", path, "--iterations", "1", "--json").status == 0  # and runs as a job of its own


def test_the_round_that_is_written_is_that_of_most_jobs(cli: Cli, tmp_path: Path):
    path = tmp_path / "both.json.gz"
    cli("jobs", "mlp3", "mlp3", "--planner", "temporal", "--arrive", "0,3ms", "--iterations", "9,1", "--trace", path)
    assert io.load(path).trace.n == 2 * bundled("mlp3").n + 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--planner", "waterwave", "--split", "x"], "--split: 'x' is not an amount"),
        (["--planner", "waterwave", "--split", "0"], "--split: "),
        (["--planner", "waterwave", "--order", "deep"], "--order: 'deep' is unknown; there are recorded, depth"),
        (["--planner", "waterwave", "--host-threads", "3"], "--host-threads: 3 is neither 1 nor 2"),
        (["--planner", "waterwave", "--ratio", "0.5"], "--ratio: no use to waterwave"),
        (["--planner", "waterwave", "--priority", "0"], "--priority: '0' is not a number of iterations"),
        (["--planner", "waterwave", "--priority", "2,1"], "--priority: 2 values for 1 jobs"),
        (
            ["--planner", "waterwave-s", "--priority", "2"],
            "--priority: no use to waterwave-s; it is",
        ),
        (["--planner", "temporal", "--no-rest"], "--no-rest: no use to temporal"),
        (["--planner", "temporal", "--split", "1MiB"], "--split: no use to temporal; it is an option of waterwave"),
        (["--planner", "tensile", "--split", "1MiB"], "--split: no use to tensile; it is an option of waterwave"),
        (["--planner", "waterwve"], "--planner: 'waterwve' is unknown; there are tensile, none"),
        (["--planner", "waterwave", "--trace", "/nowhere/at/all.json"], "/nowhere/at/all.json: "),
        (["--planner", "waterwave", "--trace", "round.csv"], "--trace: 'round.csv' ends in none of .json, .json.gz"),
        (["--planner", "waterwave", "--trace", "round.txt"], "--trace: 'round.txt' ends in none of .json"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, options: list[str], message: str):
    assert message in cli.refuses("jobs", "mlp3", "--iterations", "2", *options)


def test_jobs_that_cannot_run_together_take_turns_or_are_refused(cli: Cli):
    ran_ = cli("jobs", "mlp3", "mlp3", "--limit", "60%", "--iterations", "2", "--planner", "waterwave", "--json")
    first, second = ran_.json["jobs"]
    assert ran_.status == 0 and second["launch"] == first["leave"]
    ran_ = cli("jobs", "mlp3", "mlp3", "--limit", "30%", "--iterations", "2", "--planner", "waterwave")
    assert ran_.status == 3 and "refused: the limit is" in ran_.err[-1]


# Real traces


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda path: path.name.split(".")[0])
def test_two_of_each_recorded_job(path: Path):
    trace = io.read(path)
    part = temporal([trace], MACHINE).parts[0]
    limit = int(1.1 * (part.peak + part.rest))
    both = together(waterwave([trace] * 2, MACHINE, limit), MACHINE)
    judged([trace] * 2, both, limit)
    assert simulate(share(both.trace, MACHINE, 1.0), MACHINE).makespan <= 2.01 * simulate(trace, MACHINE).makespan
