"""Whole training steps, their buffers from a planned slab or from an allocator that is asked at each op; and within
limits, what does not fit moved by planned copies or by prefetches of unified memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from cuda.bindings import driver as api
from cuda.core import Buffer

from benchmarks.gpu.buffers import Source, available, done
from benchmarks.gpu.planned import at, bytes_of, machine_of, timed
from benchmarks.gpu.shared import MIB, Bench, Row, models
from benchmarks.gpu.unified import Unified
from gpumem import Machine, best_fit
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.execute import Views, prepare
from gpumem.execute.cuda import Cuda
from gpumem.execute.layout import Block
from gpumem.execute.models.graph import Model
from gpumem.kernels import device as kernels
from gpumem.trace import Trace
from gpumem.trace.kinds import WORKSPACE

TITLE = "training steps by where their buffers come from: ms of a step on the clock, MiB reserved at most"
PERCENT = (80, 60)
SHARE = 0.5  # of the free memory, at most, for what runs in unified memory: beyond that the driver decides what moves


class Loose(Cuda):
    """One stream, and views of buffers at any address: a block's offset is where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = [self._keep(self.device.create_stream())]
        self.slabs, self.scratched = (Buffer.from_handle(0, 0),) * 2, (0, 0)


class Step:
    """A training step that gets each buffer right before the first op that touches it and gives it after the last.

    An op is bound to its addresses once: allocators as a rule give out the same ones in each iteration.
    """

    def __init__(self, model: Model, memory: Loose, source: Source) -> None:
        self.trace, self.model, self.memory, self.source = model.trace, model, memory, source
        b, n = self.trace.buffers, self.trace.n
        self.where: dict[int, int] = {}
        self.launch, self.bound, self.generators = model.launch(kernels), [{} for _ in range(n)], {}
        self.sizes = np.maximum(b.size, 1).tolist()
        passing = [i for i in range(len(b)) if i not in model.initial]
        self.first = [[i for i in passing if b.start[i] == op] for op in range(n)]
        self.last = [[i for i in passing if b.end[i] == op + 1] for op in range(n)]
        self.ops = [(op, (*op.reads, *op.writes)) for op in self.trace.ops]
        for i, value in model.initial.items():
            self.where[i] = source.get(self.sizes[i])
            memory.streams[0].sync()
            done(*api.cuMemcpyHtoD(self.where[i], np.ascontiguousarray(value), value.nbytes))

    def run(self, *, watch: bool = False) -> int:
        """Issue an iteration; return the most that was reserved, where it is asked for."""
        most, stream = 0, self.memory.streams[0]
        for (op, touched), first, last, bound in zip(self.ops, self.first, self.last, self.bound):
            for i in first:
                self.where[i] = self.source.get(self.sizes[i])
            if watch:
                most = max(most, self.source.reserved())
            key = tuple([self.where[i] for i in touched])
            if key not in bound:
                bound[key] = self.bind(op)
            bound[key](stream)
            for i in last:
                self.source.give(self.where.pop(i))
        return most

    def bind(self, op: Any) -> Any:
        """Return what starts an op on its buffers where they are now."""
        b = self.trace.buffers
        blocks = {i: Block(i, i, False, self.where[i], int(b.size[i])) for i in (*op.reads, *op.writes)}
        spare = next((blocks[i] for i in op.writes if b.kind[i] == WORKSPACE), None)
        return self.launch(op, Views(self.memory, op, blocks, op.writes, spare, self.generators, 0, op.id))

    def read(self) -> dict[int, Any]:
        """Return what persists."""
        self.memory.streams[0].sync()
        found = {}
        for i, value in self.model.initial.items():
            found[i] = np.empty(value.nbytes, np.uint8)
            done(*api.cuMemcpyDtoH(found[i], self.where[i], value.nbytes))
        return found

    def close(self) -> None:
        """Give all buffers back."""
        self.memory.streams[0].sync()
        while self.where:
            self.source.give(self.where.popitem()[1])
        self.memory.streams[0].sync()
        self.source.close()


def steps(bench: Bench) -> list[Row]:
    """A line for each model and where its buffers come from."""
    rows: list[Row] = []
    machine, ways = machine_of(), {n: b for n, b in models(bench.quick).items() if n in ("mlp", "cnn")}
    for k, (name, build) in enumerate(ways.items()):
        if not bench.late(name):
            with work.part(name, 1 / (len(ways) - k)):
                rows += [{"model": name} | row for row in _model(bench, name, build(), machine)]
    return rows


def _model(bench: Bench, name: str, model: Model, machine: Machine) -> list[Row]:
    trace = timed(model)
    each = int(trace.ops.duration.sum()) / 1e9
    iterations = bench.times(each, 2 if bench.quick else 20, 0.5 / (5 + 2 * len(PERCENT)), least=2)
    height = best_fit(trace).height
    took, want = _program(Cuda(), model, trace, iterations)

    def row(way: str, ms: float, reserved: int, got: list[bytes]) -> Row:
        beside = {"MiB": reserved / MIB, "of the slab": reserved / height}
        return {"buffers from": way, "iterations": iterations, "ms": ms, **beside, "identical": str(got == want)}

    rows = [row("planned slab", took, height, want)]
    with Loose() as memory:
        for way, source in available(bench, memory.streams[0]).items():
            if not bench.late(f"{name}, {way}"):
                rows.append(row(way, *_step(Step(model, memory, source), iterations)))
    for percent in PERCENT:
        if bench.late(f"{name} at {percent} %"):
            continue
        try:
            found = at(trace, machine, percent)
        except (Infeasible, NotReached) as stop:
            print(f"# {name} at {percent} %: {stop}")
            break
        took, got = _program(Cuda(), model, found.trace, iterations)
        rows.append(row(f"slab, {percent} %", took, found.placement.height, got))
        if why := _no_room(bench, trace):
            print(f"# {name} at {percent} %, unified: left out: {why}")
            continue
        took, got = _program(Unified(), model, found.trace, iterations)
        rows.append(row(f"unified, {percent} %", took, found.trace.peak_live_bytes, got))
    return rows


def _no_room(bench: Bench, trace: Trace) -> str:
    """Why unified memory is left out, or nothing."""
    if not bench.device.properties.concurrent_managed_access:
        return "no concurrent managed access"
    free, room = done(*api.cuMemGetInfo()), int(trace.buffers.size.sum())
    return f"{room // MIB} MiB, {int(free) // MIB} MiB free" if room > free * SHARE else ""


def _program(backend: Cuda, model: Model, trace: Trace, iterations: int) -> tuple[float, list[bytes]]:
    """Milliseconds of a step of a program, and what it leaves."""
    with backend:
        placement, host = best_fit(trace), best_fit(trace.host_side())
        program = prepare(trace, placement, backend, model.launch(kernels), host=host)
        program.write(model.initial)
        program.run(2)
        begin = time.perf_counter()
        program.run(iterations)
        took = (time.perf_counter() - begin) / iterations * 1e3
        return took, bytes_of(model, program.read())


def _step(step: Step, iterations: int) -> tuple[float, int, list[bytes]]:
    """Milliseconds of a step, the most that was reserved, what is left."""
    try:
        most = step.run(watch=True)
        step.run()
        step.memory.streams[0].sync()
        begin = time.perf_counter()
        for _ in range(iterations):
            step.run()
        step.memory.streams[0].sync()
        took = (time.perf_counter() - begin) / iterations * 1e3
        return took, max(most, step.source.reserved()), bytes_of(step.model, step.read())
    finally:
        step.close()
