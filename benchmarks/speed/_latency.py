"""The table that latency prediction learns from: each op of small training steps, alone and beside another job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from cuda.core import Device, EventOptions

from gpumem import best_fit
from gpumem.execute import Launch, Program, prepare
from gpumem.execute.cuda import Cuda, DeviceArray
from gpumem.execute.cuda.memory import for_numba
from gpumem.execute.latency import Measurement, model_samples
from gpumem.execute.models import cnn, mlp
from gpumem.execute.models.graph import Model
from gpumem.trace import F64, I64, MAX_NS

TITLE = (
    "ops measured for latency prediction, by type: ns alone, and how many times that beside a GPU busy with another job"
)
UTILISATIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
SIDE = 512  # rows and columns of the other job's products: its shortest kernel takes some 0.1 ms
INNER = (1, 4, 16, 64)  # lengths of their sums in SIDEs, which the kernel's time grows with
SMALL, FEW = 16, 1000  # the side, and the most steps of `delay`, where it is only tried whether all of this runs
AHEAD = (
    900  # launches that may wait on a stream: from about 1,000 on, a launch blocks the host (NVIDIA forum, topic 68937)
)


class Neighbour:
    """Another job, on a stream of its own: a matrix product of zeros, then a pause, over and over.

    The pause is a kernel of one thread, which leaves the GPU to others.
    """

    def __init__(self, device: Device, library: ModuleType, array: Any, *, quick: bool) -> None:
        self.device, self.library, self.stream = device, library, device.create_stream()
        side, self.most = (SMALL, FEW) if quick else (SIDE, 2**62)
        self.inner = [side * times for times in INNER]
        self.memory = device.allocate(4 * side * (self.inner[-1] + side), stream=self.stream)
        self.word = device.allocate(8, stream=self.stream)
        self.memory.fill(0, stream=self.stream)
        at, real = int(self.memory.handle), np.dtype(np.float32)
        self.operands = {
            n: [array(DeviceArray(at, real, shape)) for shape in ((side, n), (n, side))] for n in self.inner
        }
        self.result = array(DeviceArray(at + 4 * side * self.inner[-1], real, (side, side)))
        self.out = array(DeviceArray(int(self.word.handle), np.dtype(np.uint64), (1,)))
        self.end = self._event()
        self._product(side), self._pause(1)  # compiles
        self.busy = {n: self._ns(partial(self._product, n), 10) for n in self.inner}
        self.step = max(self._ns(partial(self._pause, 100_000), 3) / 100_000, 1e-3)

    def _event(self) -> Any:
        return self.device.create_event(EventOptions(timing_enabled=True))

    def _product(self, inner: int) -> None:
        self.library.matmul(self.stream, *self.operands[inner], self.result)

    def _pause(self, steps: int) -> None:
        self.library.delay(self.stream, steps, self.out)

    def _ns(self, start: Any, times: int) -> float:
        """How long one call takes."""
        begin, end = self._event(), self._event()
        self.stream.record(begin)
        for _ in range(times):
            start()
        self.stream.record(end)
        end.sync()
        return float(end - begin) * 1e6 / times

    def steps(self, ns: float) -> int:
        """How many steps of `delay` take so long."""
        return max(min(round(ns / self.step), self.most), 1)

    def queue(self, utilisation: float, ns: float) -> None:
        """Be busy for the share `utilisation` of the time (counted when alone), for `ns` as far as a queue reaches.

        The shortest kernel that reaches is taken: the ops beside it should meet many turns.
        """
        need = ns * utilisation
        inner = next((n for n in self.inner if need / self.busy[n] < AHEAD // 2 - 1), self.inner[-1])
        pause = self.busy[inner] * (1 - utilisation) / utilisation
        for _ in range(min(int(need / self.busy[inner]) + 1, AHEAD // 2)):
            self._product(inner)
            if pause:
                self._pause(self.steps(pause))
        self.stream.record(self.end)

    def lasted(self) -> bool:
        """Whether it is still at it; wait for it."""
        running = not self.end.is_done
        self.stream.sync()
        return running

    def close(self) -> None:
        """Give everything back."""
        for buffer in (self.memory, self.word):
            buffer.close()
        self.stream.sync()


@dataclass(slots=True)
class Backlog:
    """Holds the device up at op 0 until the host has issued the iteration: else small ops take what issuing takes."""

    launch: Launch
    neighbour: Neighbour
    steps: int = 1

    def __call__(self, op: Any, views: Any) -> Any:
        """Bind an op as `launch` does."""
        call = self.launch(op, views)
        if op.id or call is None:
            return call

        def late(stream: Any) -> None:
            self.neighbour.library.delay(stream, self.steps, self.neighbour.out)
            call(stream)

        return late


def training_steps(quick: bool, seed: int) -> Iterator[Model]:
    """Training steps of random sizes, log-uniform."""
    rng = np.random.default_rng(seed)

    def size(low: int, high: int) -> int:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))

    if quick:
        yield mlp(batch=4, features=8, hidden=(6,))
        yield cnn(batch=2, side=4, channels=(2,), optimiser="adam")
        return
    for k in range(24):
        hidden = tuple(size(32, 4096) for _ in range(4))
        yield mlp(size(64, 8192), size(32, 4096), hidden, size(10, 1000), optimiser=("sgd", "adam")[k % 2])
    for k in range(24):
        channels = tuple(size(8, 128) for _ in range(2))
        kind = {"conv": ("direct", "im2col", "winograd")[k % 3], "optimiser": ("sgd", "adam")[k // 2 % 2]}
        yield cnn(size(4, 64), 4 * size(4, 16), channels, size(10, 1000), **kind)


def measurements(
    device: Device,
    library: ModuleType,
    *,
    quick: bool,
    seed: int,
    array: Any = for_numba,
    late: Callable[[str], bool] = lambda what: False,
) -> tuple[list[Measurement], int]:
    """Measure; return also how many runs the other job did not outlast, which do not count."""
    rows: list[Measurement] = []
    missed = 0
    neighbour = Neighbour(device, library, array, quick=quick)
    for k, model in enumerate(training_steps(quick, seed)):
        if late(f"training step {k}"):
            continue
        held = Backlog(model.launch(library), neighbour)
        with Cuda(timing=True, array=array) as backend:
            program = prepare(model.trace, best_fit(model.trace), backend, held)
            program.write(model.initial)
            program.run()  # compiles
            begin = time.perf_counter_ns()
            alone = program.run().makespan
            issuing = time.perf_counter_ns() - begin
            held.steps = neighbour.steps(issuing)
            for utilisation in UTILISATIONS:
                lasting = 0 if not utilisation else 2 * (issuing + 3 * alone)
                took = ran(program, neighbour, utilisation, lasting, 3 if quick else 7)
                missed += sum(times is None for times in took)
                rows += told(model, utilisation, [times for times in took if times is not None])
    neighbour.close()
    return rows, missed


def ran(program: Program, neighbour: Neighbour, utilisation: float, lasting: float, times: int) -> list[I64 | None]:
    """What each op took in each run, None for runs that outlasted the neighbour."""
    took: list[I64 | None] = []
    for _ in range(times):
        if utilisation:
            neighbour.queue(utilisation, lasting)
        line = program.run()
        beside = neighbour.lasted() if utilisation else True
        took.append(line.end - line.start if beside else None)
    return took


def told(model: Model, utilisation: float, took: list[I64]) -> list[Measurement]:
    """A measurement for each op but the first: the median alone, the mean beside kernels that come and go."""
    if not took:
        return []
    ns: F64 = np.mean(took, axis=0) if utilisation else np.median(took, axis=0)
    whole = np.clip(np.rint(ns).astype(np.int64), 1, MAX_NS - 1).tolist()  # a clock may say 0
    return [Measurement(op, utilisation, n) for op, n in zip(model_samples(model), whole)][1:]


def summary(rows: list[Measurement]) -> list[dict[str, Any]]:
    """A line a type: distinct ops, median ns alone, the median ratio beside."""
    alone = {row.sample: row.ns for row in rows if not row.utilisation}
    found = []
    for name in sorted({op.name for op in alone}):
        line: dict[str, Any] = {"type": name, "ops": sum(op.name == name for op in alone)}
        line["alone us"] = float(np.median([ns for op, ns in alone.items() if op.name == name])) / 1e3
        for utilisation in UTILISATIONS[1:]:
            ratios = [
                row.ns / alone[row.sample] for row in rows if (row.sample.name, row.utilisation) == (name, utilisation)
            ]
            line[f"x at {utilisation}"] = float(np.median(ratios)) if ratios else "missed"
        found.append(line)
    return found
