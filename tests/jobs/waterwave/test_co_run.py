"""Waterwave with real bytes: jobs together end with what each of them ends with alone, in every legal order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import best_fit, bundled, simulate
from gpumem.base.errors import ExecutionError
from gpumem.execute import (
    Call,
    Emulator,
    GenericOp,
    Launch,
    Race,
    Simulator,
    Views,
    carried,
    in_issue_order,
    initial,
    prepare,
    run,
    scaled,
)
from gpumem.jobs.waterwave import Pipeline, co_schedule, partition, pipeline, run_together
from gpumem.kernels import reference
from gpumem.trace import SYNC, Buffers, Op, Ops, Trace
from tests.jobs.waterwave.cases import CASES, MACHINE, case
from tests.jobs.waterwave.jobs_together import sets
from tests.jobs.waterwave.models import alone, model

ROUNDS = 4


def wrong(name: str, seed: int) -> list[str]:
    """Which jobs of a case end with other bytes than alone, run in the order of this seed."""
    jobs, both, placement = case(name)
    states = [model(job).state() for job in jobs]
    launches = [model(job).launch(reference) for job in jobs]
    run_together(both, placement, Emulator(seed), launches, ROUNDS, state=states)
    turns = [turn.job for turn in both.pipeline.turns]
    found = []
    for j, (job, state) in enumerate(zip(jobs, states)):
        want = alone(job, ROUNDS * turns.count(j))
        found += [job] * any(value.tobytes() != want[of].tobytes() for of, value in state.items())
    return found


def test_cases_are_what_they_say():
    assert (case("tight")[1].lag > 0).any() and not (case("flat")[1].lag > 0).any()
    assert case("tight")[2].height < case("loose")[2].height
    assert model("net").trace.ops.rng.any() and len(model("net").trace.statistics.idx)


@pytest.mark.parametrize("name", CASES)
def test_models_together_end_with_the_bytes_of_each_alone(name: str):
    for seed in range(3):
        assert not wrong(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_together_in_two_hundred_orders(name: str):
    for seed in range(200):
        assert not wrong(name, seed), seed


# What holds it together


@pytest.mark.parametrize("name", ["tight", "flat"])
def test_without_the_waits_of_sync_ops_it_races(name: str):
    jobs, both, placement = case(name)
    launch = both.launch([model(job).launch(reference) for job in jobs])

    def unwaited(emulator: Emulator) -> dict[int, np.ndarray]:
        program = prepare(both.trace, placement, emulator, launch)
        for x in np.flatnonzero(both.trace.ops.role == SYNC).tolist():
            program.after[x].clear()
        program.write({of + both.buffers[j]: v for j, job in enumerate(jobs) for of, v in model(job).initial.items()})
        program.run(ROUNDS, lag=both.lag)
        return program.read()

    with pytest.raises(Race):
        unwaited(Emulator())
    want = {of + both.buffers[j]: v for j, job in enumerate(jobs) for of, v in alone(job, ROUNDS).items()}
    wrong_ = 0
    for seed in range(20):
        try:
            with np.errstate(all="ignore"):
                got = unwaited(Emulator(seed, races=False))
            wrong_ += any(got[of][: v.nbytes].tobytes() != v.tobytes() for of, v in want.items())
        except ExecutionError:  # an index that is poison
            wrong_ += 1
    assert wrong_ > 5


@pytest.mark.jit
def test_two_recorded_traces_together():
    """With the generic op, so that every op is seen to read what it reads alone."""
    traces, unit = [bundled("mlp3"), bundled("resnet18")], 2**16
    small = [scaled(trace, best_fit(trace, alignment=unit)) for trace in traces]
    want = []
    for trace, placement in small:
        generic, state = GenericOp(trace), initial(trace, seed=1)
        run(trace, placement, Emulator(in_issue_order), generic, ROUNDS, state=state)
        want.append((state, generic.seen))
    both = co_schedule(pipeline([partition(trace, MACHINE, trace.peak_live_bytes // 8) for trace in traces]), MACHINE)
    trace, placement = scaled(both.trace, best_fit(both.trace, alignment=unit))
    both = replace(both, trace=trace)
    for seed in range(2):
        generic, states = [GenericOp(one) for one, _ in small], [initial(one, seed=1) for one, _ in small]
        run_together(both, placement, Emulator(seed), generic, ROUNDS, state=states)
        same(want, [(state, op.seen) for state, op in zip(states, generic)])


def same(want: Sequence[tuple], got: Sequence[tuple]) -> None:
    """Every op has read the same bytes, and what is held over the boundary is the same."""
    for (state, seen), (mine, mine_seen) in zip(want, got):
        assert (seen == mine_seen).all()
        assert all((value == mine[of]).all() for of, value in state.items())


def begun_later(found: Pipeline, by: int) -> Pipeline:
    """The same pipeline with rounds that begin `by` slots later: in the middle of iterations."""
    turns = [
        replace(turn, slot=tuple(k - by + found.period * (turn.slot[0] < by) for k in turn.slot))
        for turn in found.turns
    ]
    return replace(found, turns=tuple(sorted(turns, key=lambda turn: turn.slot[0])))


@given(sets(), st.integers(0, 99), st.integers(1, 4))
@settings(max_examples=15)
def test_random_jobs_together_read_what_they_read_alone(given_: tuple, seed: int, rounds: int):
    jobs, found, _ = given_
    found = begun_later(found, seed % found.period)
    both = co_schedule(found, MACHINE)
    generic = [GenericOp(trace) for trace in jobs]
    states = [initial(trace, seed=1) for trace in jobs]
    try:
        run_together(both, best_fit(both.trace), Emulator(seed), generic, rounds, state=states)
    except ValueError as error:
        assert "over the boundary of its iteration" in str(error) and (both.lag > 0).any()
        return
    turns, want = [turn.job for turn in found.turns], []
    for j, trace in enumerate(jobs):
        op, state = GenericOp(trace), initial(trace, seed=1)
        run(trace, best_fit(trace), Emulator(in_issue_order), op, rounds * turns.count(j), state=state)
        want.append(({of: value for of, value in state.items() if of in carried(trace)}, op.seen))
    same(want, [(state, op.seen) for state, op in zip(states, generic)])


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_op_runs_once_an_iteration(rounds: int):
    jobs, both, placement = case("tight")
    ran = [np.zeros(model(job).trace.n, np.int64) for job in jobs]

    def counting(mine: np.ndarray) -> Launch:
        def launch(op: Op, views: Views) -> Call:
            def call(stream: object) -> None:
                mine[op.of] += 1

            return call

        return launch

    run_together(both, placement, Emulator(1), [counting(mine) for mine in ran], rounds)
    assert all((mine == rounds).all() for mine in ran)


def test_the_simulated_backend_tells_the_time_of_whole_rounds():
    _, both, placement = case("tight")
    want = simulate(both.trace, MACHINE, placement)
    got = run_together(both, placement, Simulator(MACHINE), iterations=2 * want.first + 2)
    assert got.makespan == want.makespan
    assert ((got.end - got.start)[both.turn >= 0] > 0).all()
    few = run_together(both, placement, Simulator(MACHINE))  # no round has all ops: what is left out takes no time
    assert ((few.end - few.start > 0) == ((both.turn >= 0) & (both.lag > 0))).all()


# What is refused


def wrapped() -> Trace:
    """A buffer that holds its value from the last op to the first of the next iteration."""
    ops = Ops.make([[0], [1], [1]], [[1], [], [0]], duration=[1, 1, 1])
    return Trace(Buffers.make([8, 8], [2, 0], [4, 3]), ops, name="wrapped")


def test_a_value_that_is_carried_over_a_boundary_within_the_round_is_refused():
    parts = [partition(wrapped(), MACHINE, 8), partition(model("sgd").trace, MACHINE, 2000)]
    flat = co_schedule(pipeline(parts, turns=[1, 0], wrap=False), MACHINE)
    generic = GenericOp(wrapped())
    state = initial(wrapped(), seed=1)
    want = {of: value.copy() for of, value in state.items()}
    launches = [generic, model("sgd").launch(reference)]
    run_together(flat, best_fit(flat.trace), Emulator(), launches, 3, state=[state, model("sgd").state()])
    run(wrapped(), best_fit(wrapped()), Emulator(), GenericOp(wrapped()), 3, state=want)
    assert (state[0] == want[0]).all()
    halved = replace(flat, lag=(flat.job == 0).astype(np.int64))
    with pytest.raises(ValueError, match=r"job 0 \(wrapped\): buffer 0 is held over .* wrap=False\) would do"):
        run_together(halved, best_fit(flat.trace), Emulator(), launches, 3)


def test_what_does_not_belong_is_refused():
    jobs, both, placement = case("tight")
    launches = [model(job).launch(reference) for job in jobs]
    with pytest.raises(ValueError, match="launches: there are 1, one for each of 2 jobs"):
        run_together(both, placement, Emulator(), launches[:1])
    with pytest.raises(ValueError, match="state: there are 3, one for each of 2 jobs"):
        run_together(both, placement, Emulator(), launches, state=[{}] * 3)
    dies = int(np.flatnonzero(~model("net").trace.eternal)[0])
    with pytest.raises(ValueError, match=f"state of job 1: recorded buffer {dies} carries no value over the boundary"):
        run_together(both, placement, Emulator(), launches, state=[{}, {dies: np.zeros(1, np.uint8)}])
    program = prepare(both.trace, placement, Emulator())
    for lag in (both.lag[:-1], both.lag - 1):
        with pytest.raises(ValueError, match=r"lag: .* is no number of rounds, 0 and more, for each of 146 ops"):
            program.run(lag=lag)
