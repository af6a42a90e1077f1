"""What a GPU says: the link alone and under load, the executor's own cost, planned against unmanaged, jobs, allocators.

One command, under eight minutes: `python benchmarks/gpu.py [--json FILE] [--quick]`. Prints tables; with `--json`
writes all figures. With `--latency FILE` it also measures ops of many sizes, alone and beside another job, and writes
the table that latency prediction learns from. Needs a device (see `gpumem doctor`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _bench import header
from _jobs import TITLE as JOBS, side_by_side
from _latency import TITLE as OPS, measurements, summary
from _limits import TITLE as LIMITS, limits
from _requests import TITLE as REQUESTS, requests
from cuda.bindings import driver as api
from cuda.core import Buffer, Device, EventOptions, LegacyPinnedMemoryResource

from gpumem import Machine, autoswap, best_fit
from gpumem.columns import Ops
from gpumem.errors import Infeasible, NotReached
from gpumem.evaluate.combined import in_pool
from gpumem.execute import Launch, prepare
from gpumem.execute.cuda import Cuda, devices, driver
from gpumem.kernels import device as kernels
from gpumem.latency import LatencyTable, write_table
from gpumem.models import cnn, mlp
from gpumem.models.graph import Model
from gpumem.models.measure import measured, measured_machine
from gpumem.simulate import simulate
from gpumem.trace import Trace

SEED = 0
MIB = 2**20
LONG = 50_000_000  # steps of `delay`, some tenths of a second: longer than the copies
BASE = Machine.named("h200")
Row = dict[str, Any]


def show(title: str, rows: list[Row]) -> list[Row]:
    """Print rows as a table; return them."""
    print(f"\n{title}")
    if rows:
        print("".join(f"{key:>17}" for key in rows[0]))
    for row in rows:
        print("".join(f"{value:>17.4g}" if isinstance(value, float) else f"{value!s:>17}" for value in row.values()))
    sys.stdout.flush()
    return rows


class Link:
    """Pinned and device memory, three streams, timing events."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        self.out, self.into, self.compute = (device.create_stream() for _ in range(3))
        self.there = [device.allocate(size, stream=self.out) for _ in range(2)]
        self.here = [LegacyPinnedMemoryResource().allocate(size) for _ in range(2)]
        self.work = device.allocate(8, stream=self.compute)
        self.sync()

    def sync(self) -> None:
        """Wait for all three streams."""
        for stream in (self.out, self.into, self.compute):
            stream.sync()

    def _event(self) -> Any:
        return self.device.create_event(EventOptions(timing_enabled=True))

    def seconds(self, directions: str, copies: int, *, steps: int = 0) -> dict[str, float]:
        """Copy so many times in each of the directions `o`, `i`, beside a kernel of `steps` dependent steps."""
        plan = {"o": (self.out, self.here[0], self.there[0]), "i": (self.into, self.there[1], self.here[1])}
        start = {d: self._event() for d in directions}
        end = {d: self._event() for d in directions}
        if steps:
            from gpumem.kernels._numba import cuda

            spec = {"shape": (1,), "typestr": "<u8", "data": (int(self.work.handle), False), "version": 3}
            kernels.delay(self.compute, steps, cuda.from_cuda_array_interface(spec, sync=False))
        for d in directions:
            plan[d][0].record(start[d])
        for _ in range(copies):
            for d in directions:
                stream, target, source = plan[d]
                target.copy_from(source, stream=stream)
        for d in directions:
            plan[d][0].record(end[d])
        self.sync()
        return {d: (end[d] - start[d]) / 1e3 for d in directions}

    def close(self) -> None:
        """Give everything back."""
        for buffer in (*self.there, *self.here, self.work):
            buffer.close()
        self.sync()


def bandwidth(device: Device, sizes: list[int]) -> list[Row]:
    """GB/s of pinned copies: each direction alone, both, and both while a kernel runs that outlasts them."""
    rows = []
    for size in sizes:
        link = Link(device, size)
        copies = max(4, 2**30 // size // 4)
        link.seconds("oi", 2, steps=1)
        ran = {}
        for name, directions, steps in (
            ("out", "o", 0),
            ("in", "i", 0),
            ("both", "oi", 0),
            ("under load", "oi", LONG),
            ("out load", "o", LONG),
        ):
            times = [link.seconds(directions, copies, steps=steps) for _ in range(5)]
            for d in directions:
                ran[name, d] = size * copies / statistics.median(t[d] for t in times) / 1e9
        peak = ran["out", "o"], ran["in", "i"]
        both = ran["both", "o"], ran["both", "i"]
        load = ran["under load", "o"], ran["under load", "i"]
        rows.append(
            {
                "MiB": size / MIB, "out GB/s": peak[0], "in GB/s": peak[1], "both out": both[0], "both in": both[1],
                "load out": load[0], "load in": load[1],
                "load/both out": load[0] / both[0], "load/both in": load[1] / both[1],
                "load/alone out": ran["out load", "o"] / peak[0],
            }
        )  # fmt: skip
        link.close()
    return show("pinned copies, GB/s; `load`: both directions beside a running kernel", rows)


def overhead(counts: list[int]) -> list[Row]:
    """Microseconds an op costs the host and the device when it does nearly nothing: op by op, and as a graph."""
    rows = []
    for n in counts:
        model = chain(n)
        row: Row = {"ops": n}
        for name, options in {"stream": {}, "graph": {"graph": True}}.items():
            with Cuda(**options) as backend:
                program = prepare(model, best_fit(model), backend, tiny(model))
                program.run(4)
                begin = time.perf_counter()
                line = program.run(50)
                row[f"{name} us/op"] = line.makespan / n / 1e3
                row[f"{name} wall us/op"] = (time.perf_counter() - begin) / 50 / n * 1e6
        rows.append(row)
    return show("executor, ops that do nearly nothing on two streams with a wait every tenth op", rows)


def chain(n: int) -> Trace:
    """`n` ops that each touch 8 bytes, every tenth on a second stream."""
    from gpumem.columns import Buffers

    stream = (np.arange(n) % 10 == 9).astype(np.int64)
    reads = [[i % 2] for i in range(n)]
    ops = Ops.make(reads, reads, stream=stream, streams=["a", "b"], name=["delay"] * n)
    return Trace(Buffers.make([8, 8], [0, 0], [n, n], persistent=[True, True]), ops, name="chain")


def tiny(trace: Trace) -> Launch:
    """Launch a kernel of one step for each op."""

    def launch(op: Any, views: Any) -> Any:
        out = views(op.writes[0], np.uint64, (1,))
        return lambda stream: kernels.delay(stream, 1, out)

    return launch


def models(quick: bool) -> dict[str, Callable[[], Model]]:
    """The models at sizes that keep a GPU busy."""
    if quick:
        return {"mlp": mlp, "cnn": partial(cnn, batch=4)}
    return {
        "mlp": partial(mlp, batch=8192, features=1024, hidden=(1024,) * 8),
        "mlp-adam": partial(mlp, batch=8192, features=1024, hidden=(1024,) * 8, optimiser="adam"),
        "cnn": partial(cnn, batch=128, side=64, channels=(32, 64, 128)),
        "cnn-im2col": partial(cnn, batch=64, side=32, channels=(32, 64), conv="im2col"),
    }


def planned(quick: bool) -> list[Row]:
    """Models at 100 to 40 % of their peak load: overhead measured and predicted, bits compared."""
    rows: list[Row] = []
    with Cuda(timing=True) as backend:
        machine = measured_machine(BASE, backend)
    for name, build in models(quick).items():
        model = build()
        launch = model.launch(kernels)
        with Cuda(timing=True) as backend:
            trace = measured(model.trace, backend, launch, state=model.initial)
        base, want = ran(model, trace, launch)
        predicted = simulate(trace, machine, best_fit(trace)).makespan
        for percent in (100, 90, 80, 70, 60, 50, 40):
            swap = partial(autoswap, machine=machine, threshold=0, peaks="all")
            try:
                found = in_pool(
                    trace, trace.peak_load * percent // 100, pool=best_fit,
                    swap=lambda t, limit, swap=swap: swap(t, limit=limit),
                )  # fmt: skip
            except (Infeasible, NotReached) as stop:
                print(f"# {name} at {percent} %: {stop}")
                if percent == 100:
                    continue
                break
            took, got = ran(model, found.trace, launch)
            fore = simulate(found.trace, machine, found.placement).makespan
            rows.append(
                {
                    "model": name, "limit %": percent, "swaps": len(found.plan.swaps),
                    "base ms": base / 1e6, "planned ms": took / 1e6, "overhead %": 100 * (took / base - 1),
                    "predicted %": 100 * (fore / predicted - 1), "identical": str(got == want),
                }
            )  # fmt: skip
    return show("planned against unmanaged, 20 iterations, medians of three runs", rows)


def ran(model: Model, trace: Trace, launch: Launch) -> tuple[int, list[bytes]]:
    """The median time of an iteration in ns, and the persistent bytes after the first run of 20."""
    with Cuda() as backend:
        program = prepare(trace, best_fit(trace), backend, launch, host=best_fit(trace.host_side()))
        program.run(2)
        program.write(model.initial)
        times = [program.run(20).makespan]
        state = program.read()
        times += [program.run(20).makespan for _ in range(2)]
    return int(statistics.median(times)), [state[i].tobytes() for i in sorted(model.initial)]


def jobs(quick: bool) -> list[Row]:
    """Two models at once: TENSILE against unmanaged."""
    with Cuda(timing=True) as backend:
        machine = measured_machine(BASE, backend)
    pair = {name: build() for name, build in models(quick).items() if name in ("mlp", "cnn")}
    options: dict[str, Any] = {"iterations": 6, "percent": (80,)} if quick else {"iterations": 60}
    return show(JOBS, side_by_side(pair, kernels, machine, **options))


def allocators(device: Device, quick: bool) -> list[Row]:
    """Microseconds to get a buffer of 1 MiB and give it back."""
    stream, size, times = device.create_stream(), MIB, 200 if quick else 2000
    slab = device.allocate(16 * size, stream=stream)

    def planned_offset() -> None:
        Buffer.from_handle(int(slab.handle) + 4 * size, size, owner=slab)

    def driver_alloc() -> None:
        api.cuMemFree(api.cuMemAlloc(size)[1])

    ways: dict[str, Callable[[], object]] = {
        "planned offset": planned_offset,
        "cuMemAllocAsync": lambda: device.allocate(size, stream=stream).close(stream),
        "cuMemAlloc": driver_alloc,
    }
    try:
        import cupy

        ways["CuPy's pool"] = lambda: cupy.empty(size, cupy.uint8)
    except ImportError:
        pass
    try:
        import torch

        ways["PyTorch's caching"] = lambda: torch.empty(size, dtype=torch.uint8, device="cuda")
    except ImportError:
        pass
    rows = []
    for name, get in ways.items():
        get()
        begin = time.perf_counter()
        for _ in range(times):
            get()
        stream.sync()
        rows.append({"way": name, "us": (time.perf_counter() - begin) / times * 1e6})
    slab.close()
    stream.sync()
    return show("getting a buffer of 1 MiB and giving it back", rows)


def latency(device: Device, path: str, quick: bool) -> list[Row]:
    """Write the table for latency prediction; show it by type of op."""
    rows, missed = measurements(device, kernels, quick=quick, seed=SEED)
    versions = f"numba-cuda {_version('numba-cuda')}, numba {_version('numba')}"
    write_table(
        path, LatencyTable(tuple(rows), f"{devices()[0]}, driver {driver()[0]}, {versions}, {' '.join(sys.argv)}")
    )
    shown = show(OPS, summary(rows))
    print(f"# {len(rows)} measurements in {path}; {missed} runs outlasted the other job and do not count")
    return shown


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--latency", metavar="FILE", help="measure ops for latency prediction, and write the table there"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    args = parser.parse_args()
    begin = time.perf_counter()
    versions = {name: _version(name) for name in ("numba-cuda", "cuda-core", "cuda-bindings", "numba", "numpy")}
    device = Device(0)
    device.set_current()
    print(header(SEED))
    print(f"# device: {devices()[0]}, driver {driver()[0]}, {versions}")
    result = {
        "device": devices()[0],
        "driver": driver()[0],
        "versions": versions,
        "command": " ".join(sys.argv),
        "bandwidth": bandwidth(device, [MIB] if args.quick else [MIB, 16 * MIB, 256 * MIB]),
        "executor": overhead([100] if args.quick else [100, 1000]),
        "models": planned(args.quick),
        "jobs": jobs(args.quick),
        "allocators": allocators(device, args.quick),
        "requests": show(REQUESTS, requests(3 if args.quick else 21)),
    }
    if _version("torch") != "absent":
        result["limits"] = show(LIMITS, limits(args.quick))
    if args.latency:
        result["latency"] = latency(device, args.latency, args.quick)
    print(f"\n# took {time.perf_counter() - begin:.0f} s")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    main()
