"""Jobs together on the CUDA backend, over the fake driver: on two compute streams, in rounds that overlap."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from cuda.core import Device

from fake_cuda import control
from fake_cuda.backend_checks import cuda, held, library
from gpumem import Machine, best_fit, bundled
from gpumem.execute import Emulator, GenericOp, in_issue_order, initial, prepare, run, scaled
from gpumem.execute.models import cnn
from gpumem.jobs.waterwave import (
    CoSchedule,
    co_schedule,
    in_pool,
    partition,
    pipeline,
    run_online,
    run_together,
    two_ends,
)
from gpumem.kernels import reference
from gpumem.pool import MultiStream, stacked
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

MACHINE, UNIT, ROUNDS = Machine.named("v100"), 2**16, 4
State = dict[int, np.ndarray]


def recorded() -> list[Trace]:
    """Two recorded traces."""
    return [bundled("resnet18"), bundled("vgg16")]


def models() -> list[Trace]:
    """Two models of which one draws random numbers and keeps statistics."""
    net = cnn(batch=8, side=4, channels=[2, 3], classes=3, norm=True, drop=0.25)
    return [net.trace, cnn(batch=8, side=8, channels=[4], classes=3, optimiser="adam").trace]


@cache
def case(what: Any, unit: int) -> tuple[list[Trace], CoSchedule, Placement, list[State]]:
    """Traces of which `unit` bytes have become one, all in one trace, its placement, what each leaves alone."""
    traces = what()
    parts = [partition(trace, MACHINE, trace.peak_live_bytes // 8) for trace in traces]
    limit = int(sum(p.rest for p in parts) + 1.1 * max(p.peak - p.rest for p in parts))
    both = co_schedule(pipeline(parts, limit), MACHINE)
    assert (both.lag > 0).any()
    small, placement = scaled(both.trace, best_fit(both.trace, alignment=unit))
    few, left = [], []
    for trace in traces:
        one, there = scaled(trace, best_fit(trace, alignment=unit))
        state = initial(one, seed=1)
        run(one, there, Emulator(in_issue_order), GenericOp(one, reference), ROUNDS, state=state)
        few.append(one)
        left.append(state)
    return few, replace(both, trace=small), placement, left


def right(what: Any, unit: int, seed: int, options: dict[str, bool]) -> bool:
    """Whether each job ends with the bytes that it ends with alone."""
    traces, both, placement, want = case(what, unit)
    states = [initial(trace, seed=1) for trace in traces]
    control.seed(seed)
    with cuda(**options) as backend:
        launches = [GenericOp(trace, library) for trace in traces]
        run_together(both, placement, backend, launches, ROUNDS, state=states)
    assert not any(held().values()), held()
    return all(np.array_equal(state[of], value) for state, end in zip(states, want) for of, value in end.items())


def check_jobs_together_end_with_the_bytes_of_each_alone() -> None:
    for what, unit in ((recorded, UNIT), (models, 256)):
        for options in ({}, {"graph": True}, {"timing": True}):
            for seed in range(5):
                assert right(what, unit, seed, options), (what, options, seed)


def check_graphs_and_rounds_in_which_ops_are_left_out() -> None:
    """A prologue is behind the graph of the run before, a graph behind the prologue, an epilogue behind the graph."""
    traces, both, placement, _ = case(models, 256)
    values = [initial(trace, seed=1) for trace in traces]
    state = {of + first: value for one, first in zip(values, both.buffers) for of, value in one.items()}
    launches = [GenericOp(trace, library) for trace in traces]
    for seed in range(10):
        left = []
        for options, runs, replays in (({}, 1, 0), ({"graph": True}, 1, 6), ({"graph": True}, 2, 5)):
            control.seed(seed)
            control.reset_counts()
            with cuda(**options) as backend:
                program = prepare(both.trace, placement, backend, both.launch(launches))
                program.write(state)
                for _ in range(runs):
                    line = program.run(8 // runs, lag=both.lag)
                left.append(program.read())
                assert control.count("graph_launches") == replays
                assert line.makespan > 0
        assert all(np.array_equal(left[0][of], other[of]) for other in left for of in state), seed


@cache
def unscaled(alignment: int = 256) -> tuple[list[Trace], CoSchedule, Placement, list[State]]:
    """The models as they are: a pipeline that counts addresses, from two ends, and what each leaves alone."""
    traces = models()
    parts = [partition(trace, MACHINE, trace.peak_live_bytes // 8) for trace in traces]
    stacks = [stacked(part.trace, alignment=alignment) for part in parts]
    tall = [in_pool(part, stack) for part, stack in zip(parts, stacks)]
    limit = int(sum(p.rest for p in tall) + 1.1 * max(p.peak - p.rest for p in tall))
    both = co_schedule(pipeline(tall, limit), MACHINE)
    assert (both.lag > 0).any()
    left = []
    for trace in traces:
        state = initial(trace, seed=1)
        run(trace, best_fit(trace), Emulator(in_issue_order), GenericOp(trace, reference), ROUNDS, state=state)
        left.append(state)
    return traces, both, two_ends(both, stacks, limit), left


class Careless(MultiStream):
    """Gives away what another stream may still be using."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self._waited()
        return super().allocate(size, stream=stream)


def right_online(memory: Any, seed: int, capacity: int) -> bool:
    """Whether each job ends with the bytes of alone, memory being asked for as ops are launched."""
    traces, both, _, want = unscaled()
    states = [initial(trace, seed=1) for trace in traces]
    control.seed(seed)
    with cuda() as backend:
        launches = [GenericOp(trace, library) for trace in traces]
        enter = lambda stream: Device(0).set_current()  # noqa: E731
        run_online(both, memory, backend, launches, ROUNDS, state=states, capacity=capacity, enter=enter, timeout=60.0)
    assert not any(held().values()), held()
    return all(np.array_equal(state[of], value) for state, end in zip(states, want) for of, value in end.items())


def check_allocator_barrier_and_executor_in_one_run() -> None:
    _, both, placed, _ = unscaled()
    capacity = 4 * both.trace.peak_live_bytes
    for seed in range(10):
        assert right_online(MultiStream(capacity=capacity, allow_growth=False), seed, capacity), seed
        assert right_online(placed, seed, placed.height), seed
    careless = [right_online(Careless(capacity=capacity, allow_growth=False), seed, capacity) for seed in range(10)]
    assert not all(careless)
