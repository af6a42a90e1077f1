"""Allocator, barrier and executor in one run: each job ends with the bytes that it ends with alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpumem import Placement, best_fit, check
from gpumem.base.errors import ExecutionError
from gpumem.execute import Emulator, GenericOp, carried, in_issue_order, initial, run
from gpumem.jobs.waterwave import CoSchedule, co_schedule, in_pool, online_run, pipeline, run_online, two_ends
from gpumem.kernels import reference
from gpumem.pool import MultiStream, stacked
from gpumem.pool.allocators.protocol import Allocator
from gpumem.trace import SYNC
from tests.jobs.waterwave.cases import CASES, MACHINE, case
from tests.jobs.waterwave.in_threads import WATCHDOG
from tests.jobs.waterwave.jobs_together import sets
from tests.jobs.waterwave.models import alone, model

ROUNDS = 2
pytestmark = pytest.mark.usefixtures("often")


class Careless(MultiStream):
    """Gives away what another stream may still be using."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self._waited()
        return super().allocate(size, stream=stream)


def capacity(both: CoSchedule) -> int:
    """Enough for threads that come in any order, and chunks of 256 bytes; best fit takes what is untouched last."""
    return 4 * int(both.pipeline.bound().max())


def served(both: CoSchedule, kind: type[MultiStream] = MultiStream) -> MultiStream:
    return kind(capacity=capacity(both), allow_growth=False)


def from_two_ends(name: str) -> tuple[tuple[str, ...], CoSchedule, Placement]:
    """A case whose pipeline counts addresses."""
    jobs, both, _ = case(name)
    line = both.pipeline
    stacks = [stacked(part.trace) for part in line.parts]
    tall = pipeline([*map(in_pool, line.parts, stacks)], turns=[turn.job for turn in line.turns])
    again = co_schedule(tall, MACHINE)
    return jobs, again, two_ends(again, stacks)


def wrong(
    jobs: tuple[str, ...], both: CoSchedule, memory: Allocator | Placement, emulator: Emulator, rounds: int = ROUNDS
) -> list[str]:
    """Which jobs end with other bytes than alone."""
    states = [model(job).state() for job in jobs]
    launches = [model(job).launch(reference) for job in jobs]
    options = {} if isinstance(memory, Placement) else {"capacity": capacity(both)}
    run_online(both, memory, emulator, launches, rounds, state=states, timeout=WATCHDOG, **options)
    turns = [turn.job for turn in both.pipeline.turns]
    found = []
    for j, (job, state) in enumerate(zip(jobs, states)):
        want = alone(job, rounds * turns.count(j))
        found += [job] * any(value.tobytes() != want[of].tobytes() for of, value in state.items())
    return found


@pytest.mark.parametrize("name", CASES)
def test_models_that_ask_for_memory_as_they_run_end_with_the_bytes_of_each_alone(name: str):
    jobs, both, _ = case(name)
    for seed in range(3):
        pool = served(both)
        assert not wrong(jobs, both, pool, Emulator(seed, races=False), rounds=4), seed
        assert pool.statistics.blocks.total > 3 * pool.statistics.blocks.peak


def test_models_that_ask_for_memory_as_they_run_in_two_hundred_orders():
    jobs, both, _ = case("tight")
    for seed in range(200):
        assert not wrong(jobs, both, served(both), Emulator(seed, races=False)), seed


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_models_that_ask_for_memory_as_they_run_in_two_hundred_orders(name: str):
    jobs, both, _ = case(name)
    for seed in range(200):
        assert not wrong(jobs, both, served(both), Emulator(seed, races=False), rounds=4), seed


@pytest.mark.parametrize("name", ["tight", "flat", "turns"])
def test_models_from_two_ends_end_with_the_bytes_of_each_alone(name: str):
    jobs, both, placed = from_two_ends(name)
    for seed in range(10):
        assert not wrong(jobs, both, placed, Emulator(seed, races=False)), seed


@given(sets(), st.integers(0, 99), st.integers(1, 3))
@settings(max_examples=15)
def test_random_jobs_that_ask_for_memory_read_what_they_read_alone(given_: tuple, seed: int, rounds: int):
    jobs, line, _ = given_
    both = co_schedule(line, MACHINE)
    generic, states = [GenericOp(trace) for trace in jobs], [initial(trace, seed=1) for trace in jobs]
    room = 512 * len(both.trace.buffers)
    pool = MultiStream(capacity=room, allow_growth=False)
    run_online(both, pool, Emulator(seed, races=False), generic, rounds, state=states, capacity=room, timeout=WATCHDOG)
    turns = [turn.job for turn in line.turns]
    for j, trace in enumerate(jobs):
        op, want = GenericOp(trace), initial(trace, seed=1)
        run(trace, best_fit(trace), Emulator(in_issue_order), op, rounds * turns.count(j), state=want)
        assert (op.seen == generic[j].seen).all()
        assert all((want[of] == states[j][of]).all() for of in carried(trace))


# What holds it together


def often_wrong(jobs: tuple[str, ...], both: CoSchedule, memory: Callable[[], Allocator | Placement]) -> int:
    """In how many of 20 orders bytes are wrong, or an index that is poison."""
    found = 0
    for seed in range(20):
        try:
            with np.errstate(all="ignore"):
                found += bool(wrong(jobs, both, memory(), Emulator(seed, races=False)))
        except ExecutionError:
            found += 1
    return found


def test_without_the_order_between_slots_bytes_are_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(online_run._Enqueuer, "_in_order", lambda self: None)
    jobs, both, _ = case("tight")
    assert often_wrong(jobs, both, lambda: served(both)) > 10


def test_an_allocator_that_forgets_streams_gives_wrong_bytes():
    jobs, both, _ = case("tight")
    assert often_wrong(jobs, both, lambda: served(both, Careless)) > 2


def test_a_placement_that_stands_on_issue_order_gives_wrong_bytes():
    jobs, both, placed = case("tight")
    assert often_wrong(jobs, both, lambda: placed) > 2


@pytest.mark.parametrize("name", ["tight", "flat"])
def test_streams_are_put_in_order_once_a_slot_and_memory_is_given_back(name: str):
    jobs, both, _ = case(name)
    ran = Counter[int]()

    class Counting(Emulator):
        def submit(self, work, reads, writes, after):
            ran[work.op] += 1
            return super().submit(work, reads, writes, after)

    pool = served(both)
    assert not wrong(jobs, both, pool, Counting(1, races=False))
    role, slots = both.trace.ops.role, both.pipeline.period * ROUNDS
    assert {ran[x] for x in np.flatnonzero(role != SYNC).tolist()} == {ROUNDS}
    syncs = [ran[x] for x in np.flatnonzero(role == SYNC).tolist()]
    assert sum(syncs) <= 4 * (slots + both.pipeline.period) and max(syncs) <= ROUNDS + 1
    assert pool.syncs <= sum(syncs) // 4
    kept = both.trace.eternal & (both.trace.buffers.size > 0)
    assert pool.statistics.blocks.current == kept.sum()


def test_what_ran_when_is_as_the_pipeline_says():
    jobs, both, _ = case("tight")
    launches = [model(job).launch(reference) for job in jobs]
    log = run_online(both, served(both), Emulator(1, races=False), launches, 3, capacity=capacity(both))
    traces = {str(j): part.trace for j, part in enumerate(both.pipeline.parts)}
    ns = {name: MACHINE.durations(trace) for name, trace in traces.items()}
    check.waterwave(log, traces, 2**62, ns)
    assert len(log.groups) == 3 * sum(len(turn.slot) for turn in both.pipeline.turns)


# What is refused


def test_what_cannot_be_run():
    jobs, both, placed = case("tight")
    launches = [model(job).launch(reference) for job in jobs]
    calm = Emulator(races=False)
    with pytest.raises(ValueError, match="capacity: None, but an allocator does not tell"):
        run_online(both, served(both), calm, launches)
    with pytest.raises(ValueError, match="backend: it looks for races at addresses that do not change; races=False"):
        run_online(both, served(both), Emulator(), launches, capacity=capacity(both))
    with pytest.raises(ValueError, match=r"memory: bytes \d+..\d+, the capacity is 512"):
        run_online(both, served(both), calm, launches, capacity=512)
    with pytest.raises(ValueError, match="launches: there are 1, one for each of 2 jobs"):
        run_online(both, placed, calm, launches[:1])
    with pytest.raises(ValueError, match="placement: 1 offsets"):
        run_online(both, Placement(placed.offset[:1], 8), calm, launches)


def test_a_pool_that_is_too_small_says_for_whom():
    jobs, both, _ = case("tight")
    launches = [model(job).launch(reference) for job in jobs]
    rest = served(both)
    with pytest.raises(MemoryError) as raised:
        small = MultiStream(capacity=int(both.trace.buffers.size[both.trace.eternal].sum()) * 3, allow_growth=False)
        run_online(both, small, Emulator(races=False), launches, capacity=rest.device.capacity, timeout=WATCHDOG)
    assert any(note.startswith("job '") for note in raised.value.__notes__)
