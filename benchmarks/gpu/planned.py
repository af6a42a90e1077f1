"""Training steps within limits: what a plan costs, measured and predicted, and whether the bits are the same."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial

from benchmarks.gpu.shared import BASE, Bench, Row, models
from benchmarks.speed._jobs import side_by_side
from gpumem import Machine, autoswap, best_fit
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.execute import Launch, prepare
from gpumem.execute.cuda import Cuda
from gpumem.execute.latency.measured import measured, measured_machine
from gpumem.execute.models.graph import Model
from gpumem.kernels import device as kernels
from gpumem.pipeline.swap_and_place import Combined, in_pool
from gpumem.simulator.simulate import simulate
from gpumem.trace import Trace

TITLE = "planned against unmanaged, medians of three runs"
MOST, LEAST, RUNS = 20, 3, 3  # iterations of a run, and runs


def machine_of() -> Machine:
    """Return the machine with this device's link."""
    with Cuda(timing=True) as backend:
        return measured_machine(BASE, backend)


def timed(model: Model) -> Trace:
    """Return the model's trace with the durations of its ops on this device."""
    with Cuda(timing=True) as backend:
        return measured(model.trace, backend, model.launch(kernels), place=best_fit, state=model.initial)


def at(trace: Trace, machine: Machine, percent: int) -> Combined:
    """Plan for a pool of so much of the peak live bytes."""
    swap = partial(autoswap, machine=machine, threshold=0, peaks="all")
    limit = trace.peak_live_bytes * percent // 100
    return in_pool(trace, limit, pool=best_fit, swap=lambda t, load_limit: swap(t, limit=load_limit))


def planned(bench: Bench) -> list[Row]:
    """Models at 100 to 40 % of their peak live bytes."""
    rows: list[Row] = []
    machine, ways = machine_of(), models(bench.quick)
    percents = (100, 80, 60) if bench.quick else (100, 90, 80, 70, 60, 50, 40)
    for k, (name, build) in enumerate(ways.items()):
        if bench.late(name):
            continue
        with work.part(name, 1 / (len(ways) - k)):
            rows += _limits(bench, name, build(), machine, percents)
    return rows


def _limits(bench: Bench, name: str, model: Model, machine: Machine, percents: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = []
    trace, launch = timed(model), model.launch(kernels)
    each = int(trace.ops.duration.sum()) / 1e9
    iterations = bench.times(each, 4 if bench.quick else MOST, 0.5 / (1 + len(percents)) / RUNS, least=LEAST)
    base, want = ran(model, trace, launch, iterations)
    predicted = simulate(trace, machine, best_fit(trace)).makespan
    for percent in percents:
        if bench.late(f"{name} at {percent} %"):
            continue
        try:
            found = at(trace, machine, percent)
        except (Infeasible, NotReached) as stop:
            print(f"# {name} at {percent} %: {stop}")
            if percent == 100:
                continue
            break
        took, got = ran(model, found.trace, launch, iterations)
        fore = simulate(found.trace, machine, found.placement).makespan
        rows.append(
            {
                "model": name, "limit %": percent, "swaps": len(found.plan.swaps), "iterations": iterations,
                "base ms": base / 1e6, "planned ms": took / 1e6, "overhead %": 100 * (took / base - 1),
                "predicted %": 100 * (fore / predicted - 1), "identical": str(got == want),
            }
        )  # fmt: skip
    return rows


def ran(model: Model, trace: Trace, launch: Launch, iterations: int) -> tuple[int, list[bytes]]:
    """The median time of an iteration in ns, and the persistent bytes after the first run."""
    with Cuda() as backend:
        program = prepare(trace, best_fit(trace), backend, launch, host=best_fit(trace.host_side()))
        program.run(2)
        program.write(model.initial)
        times = [program.run(iterations).makespan]
        state = program.read()
        times += [program.run(iterations).makespan for _ in range(RUNS - 1)]
    return int(statistics.median(times)), bytes_of(model, state)


def bytes_of(model: Model, state: Mapping[int, object]) -> list[bytes]:
    """The bytes of all that persists, in order."""
    return [state[i].tobytes() for i in sorted(model.initial)]  # type: ignore[attr-defined]


def jobs(bench: Bench) -> list[Row]:
    """Two models at once: TENSILE against unmanaged."""
    pair = {name: build() for name, build in models(bench.quick).items() if name in ("mlp", "cnn")}
    percent = (80,) if bench.quick else (90, 80, 70, 60)

    def iterations(ns: int) -> int:
        return bench.times(ns / 1e9, 6 if bench.quick else 60, 0.5 / (1 + len(percent)), least=6)

    return side_by_side(
        pair, kernels, machine_of(), iterations=iterations, percent=percent, late=lambda n: bench.late(f"at {n} %")
    )
