"""Ways of sharing, by node groups, halves and whole iterations: what each takes and holds; `gpumem jobs` with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem import bundled, check, io, simulate
from gpumem.base.errors import Infeasible, NotReached
from gpumem.jobs.waterwave import (
    SHARING_POLICIES,
    co_schedule,
    halves,
    round_ns,
    searched,
    temporal,
    waterwave,
    waterwave_s,
)
from gpumem.simulator.sharing import share
from gpumem.trace import Trace
from tests.conftest import Cli, shared
from tests.jobs.waterwave.jobs_together import MACHINE, judged
from tests.strategies import nets, steps


@given(st.lists(st.one_of(nets(), steps(streams=1)), min_size=1, max_size=3), st.data())
def test_ways_keep_jobs_and_the_limit(traces: list[Trace], data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(SHARING_POLICIES)))
    limit = data.draw(st.integers(1, 1 + 2 * sum(trace.peak_live_bytes for trace in traces)))
    try:
        found = SHARING_POLICIES[name](traces, MACHINE, limit)
    except (Infeasible, NotReached) as error:
        least = error.needs if isinstance(error, Infeasible) else error.reached
        assert least > limit
        if isinstance(error, Infeasible):
            SHARING_POLICIES[name](traces, MACHINE, least)
        return
    judged(traces, co_schedule(found, MACHINE), limit)
    assert name == "waterwave-s" or found.bound().max() <= limit


def test_temporal_sharing_takes_the_time_of_all_and_the_memory_of_one():
    traces = [bundled("vgg16"), bundled("resnet18")]
    both = co_schedule(temporal(traces, MACHINE), MACHINE)
    alone = [simulate(trace, MACHINE).makespan for trace in traces]
    assert simulate(both.trace, MACHINE).makespan == sum(alone)
    parts = both.pipeline.parts
    assert both.trace.peak_live_bytes == max(part.peak - part.rest for part in parts) + sum(part.rest for part in parts)


def test_node_groups_hold_less_than_halves_and_take_less_than_turns():
    """Where kernels disturb each other little, what runs side by side is gained."""
    traces = [bundled("vgg16")] * 2
    halves = co_schedule(waterwave_s(traces, MACHINE), MACHINE).trace.peak_live_bytes
    limit = int(1.3 * bundled("vgg16").peak_live_bytes)
    assert limit < halves
    with pytest.raises(NotReached, match="node groups get lower"):
        waterwave_s(traces, MACHINE, limit)
    both, turns = (co_schedule(way(traces, MACHINE, limit), MACHINE).trace for way in (waterwave, temporal))
    assert both.peak_live_bytes <= limit
    for slowdown, most in ((0.0, 0.95), (0.5, 0.98), (1.0, 1.0)):
        ns = [simulate(share(trace, MACHINE, slowdown), MACHINE).makespan for trace in (both, turns)]
        assert ns[0] <= most * ns[1]


def test_the_split_that_is_told_is_taken():
    trace = bundled("vgg16")
    fine, coarse = (waterwave([trace] * 2, MACHINE, split=split).period for split in (20 * 2**20, 200 * 2**20))
    assert fine > 2 * coarse


def test_halves_are_the_better_of_two():
    """At the peak, or where the first gradient begins."""
    for name in ("vgg16", "resnet18", "mlp3"):
        both = [co_schedule(one, MACHINE).trace.peak_live_bytes for one in halves([bundled(name)] * 2, MACHINE)]
        assert co_schedule(waterwave_s([bundled(name)] * 2, MACHINE), MACHINE).trace.peak_live_bytes == min(both)


@pytest.mark.jit
def test_searched_groups_are_never_slower():
    traces = [bundled("vgg16"), bundled("resnet18")]
    for limit, slowdown in ((680, 0.0), (680, 0.5), (2000, 0.5)):
        both = [way(traces, MACHINE, limit * 2**20, slowdown=slowdown) for way in (waterwave, searched)]
        slow, fast = (round_ns(one, MACHINE, slowdown=slowdown) for one in both)
        assert fast <= slow
        judged(traces, co_schedule(both[1], MACHINE), limit * 2**20)
        assert slowdown or fast < 0.95 * slow


# The command line


@pytest.mark.jit
def test_one_command_for_all_ways(cli: Cli, tmp_path: Path):
    rows = {}
    for planner in (*SHARING_POLICIES, "tensile"):
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
    both = co_schedule(waterwave([trace] * 2, MACHINE, limit), MACHINE)
    judged([trace] * 2, both, limit)
    assert simulate(share(both.trace, MACHINE, 1.0), MACHINE).makespan <= 2.01 * simulate(trace, MACHINE).makespan
