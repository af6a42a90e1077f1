"""The link: pinned copies each way and both ways, alone, beside a kernel that only computes and beside one that
does nothing but read and write memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.core import LegacyPinnedMemoryResource

from benchmarks.gpu.shared import MIB, Bench, Row
from gpumem.execute.cuda import DeviceArray, for_numba
from gpumem.kernels import device as kernels, prebound

TITLE = "pinned copies beside a load: GB/s, and of the rate alone; `add` reads and writes memory, `delay` computes"
LONG = 0.04  # seconds of copies in one measurement
REPEATS = 5
QUEUE = 400  # launches that may wait: from about 1,000 on, a launch blocks the host
WAYS = ("o", "i", "oi")


class Link:
    """Pinned and device memory, three streams; a load is how many times its kernel is to run."""

    def __init__(self, bench: Bench, size: int) -> None:
        self.bench, self.size, device = bench, size, bench.device
        self.out, self.into, self.compute = (device.create_stream() for _ in range(3))
        self.there = [device.allocate(size, stream=self.out) for _ in range(2)]
        self.here = [LegacyPinnedMemoryResource().allocate(size) for _ in range(2)]
        floats = 2**12 if bench.quick else 2**26  # 256 MiB an array: no cache holds them
        self.work = device.allocate(12 * floats, stream=self.compute)
        self.work.fill(0, stream=self.compute)
        self.sync()
        at = int(self.work.handle)
        a, b, c = (for_numba(DeviceArray(at + 4 * k * floats, np.dtype(np.float32), (floats,))) for k in range(3))
        word = for_numba(DeviceArray(at, np.dtype(np.uint64), (1,)))
        self.adding, self.bytes = prebound(kernels.add, a, b, c), 12 * floats
        self.delaying: Callable[[int], Any] = lambda steps: prebound(kernels.delay, steps, word)
        self.kernels("add", 1), self.kernels("delay", 1)  # compiles
        self.takes = {"add": self.kernels("add", 8) / 8, "delay": self.kernels("delay", 10_000) / 10_000}
        self.copy = self.run("oi", 2)["o"] / 2

    def sync(self) -> None:
        """Wait for all three streams."""
        for stream in (self.out, self.into, self.compute):
            stream.sync()

    def start(self, load: str, much: int) -> None:
        """Issue a load: so many `add`s, or one `delay` of so many steps."""
        if load == "delay":
            self.delaying(much)(self.compute)
        else:
            for _ in range(much):
                self.adding(self.compute)

    def kernels(self, load: str, much: int) -> float:
        """Return what a load takes alone, in seconds."""
        begin, end = self.bench.event(), self.bench.event()
        self.compute.record(begin)
        self.start(load, much)
        self.compute.record(end)
        self.sync()
        return float(end - begin) / 1e3

    def run(self, directions: str, copies: int, load: str = "none", much: int = 0) -> dict[str, float]:
        """Copy so many times in each of the directions `o`, `i`; return the seconds of each, and of the load."""
        plan = {"o": (self.out, self.here[0], self.there[0]), "i": (self.into, self.there[1], self.here[1])}
        streams = {d: plan[d][0] for d in directions} | ({"load": self.compute} if much else {})
        start, end = ({name: self.bench.event() for name in streams} for _ in range(2))
        for name in reversed(streams):  # the load begins first
            streams[name].record(start[name])
            if name == "load":
                self.start(load, much)
        for _ in range(copies):
            for d in directions:
                stream, target, source = plan[d]
                target.copy_from(source, stream=stream)
        for name, stream in streams.items():
            stream.record(end[name])
        self.sync()
        return {name: float(end[name] - start[name]) / 1e3 for name in streams}

    def close(self) -> None:
        """Give everything back."""
        for buffer in (*self.there, *self.here, self.work):
            buffer.close()
        self.sync()


def bandwidth(bench: Bench) -> list[Row]:
    """A line for each size, load and direction."""
    rows: list[Row] = []
    for size in [MIB] if bench.quick else [MIB, 16 * MIB, 256 * MIB]:
        if bench.late(f"copies of {size // MIB} MiB"):
            continue
        link = Link(bench, size)
        copies = max(min(int(LONG / max(link.copy, 1e-9)), 4 if bench.quick else 1000), 2)
        alone: dict[str, float] = {}
        for load in ("none", "delay", "add"):
            for directions in WAYS:
                if not bench.late(f"{size // MIB} MiB, {directions} beside {load}"):
                    rows.append(_row(link, copies, load, directions, alone))
        link.close()
    return rows


def _row(link: Link, copies: int, load: str, directions: str, alone: dict[str, float]) -> Row:
    """A line of the table; what copies do alone is noted in `alone`."""
    much = 0
    if load != "none":  # it is to outlast the copies a little
        most = 2 if link.bench.quick else {"add": QUEUE, "delay": 2**40}[load]
        much = max(min(int(1.5 * link.copy * copies * len(directions) / link.takes[load]), most), 1)
    ran = [link.run(directions, copies, load, much) for _ in range(REPEATS)]
    took = {name: statistics.median(each[name] for each in ran) for name in ran[0]}
    rate = {d: link.size * copies / took[d] / 1e9 for d in directions}
    if load == "none" and len(directions) == 1:
        alone |= rate
    row: Row = {"MiB": link.size / MIB, "load": load, "ways": {"o": "out", "i": "in", "oi": "both"}[directions]}
    for d, name in (("o", "out"), ("i", "in")):
        row[f"{name} GB/s"] = rate.get(d, "")
        row[f"{name} of alone"] = rate[d] / alone[d] if d in rate and d in alone else ""
    adds = load == "add"
    row["load GB/s"] = link.bytes * much / took["load"] / 1e9 if adds else ""
    row["load of alone"] = link.takes["add"] * much / took["load"] if adds else ""
    return row
