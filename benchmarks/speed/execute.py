"""What running costs and proves: waits before and after the reduction, dropped waits caught, ops a second."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.speed._bench import SHARED, header, synthetic
from gpumem.base.errors import Infeasible, NotReached
from gpumem.execute import Emulator, GenericOp, Race, in_issue_order, initial, late, prepare, scaled
from gpumem.io import load
from gpumem.pool import best_fit
from gpumem.simulator import hazards as ordering
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import autoswap
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

MACHINE = Machine.named("gtx1080ti")
BUNDLED = Path(__file__).resolve().parents[2] / "src" / "gpumem" / "data"
ITERATIONS = 3


def planned(trace: Trace, percent: int) -> tuple[Trace, int]:
    """The trace under AutoSwap at `percent` of its peak live bytes, or the lowest feasible above that."""
    limit = trace.peak_live_bytes * percent // 100
    try:
        return autoswap(trace, MACHINE, limit).apply(trace), limit
    except (Infeasible, NotReached) as stop:
        limit = max(limit, stop.needs if isinstance(stop, Infeasible) else 0)
        return autoswap(trace, MACHINE, limit, peaks="all", threshold=0).apply(trace), limit


def candidates(trace: Trace, placement: Placement) -> int:
    """Waits on other streams, the last op of each, before the transitive reduction."""
    reduce, ordering._reduce = ordering._reduce, lambda *arguments: None
    try:
        return len(ordering.hazards(trace, placement).after.idx)
    finally:
        ordering._reduce = reduce


class Bench:
    """One trace and its plan, shrunk, and what the unswapped run leaves."""

    def __init__(self, trace: Trace) -> None:
        self.swapped, self.limit = planned(trace, 70)
        self.placement = best_fit(self.swapped)
        self.whole, there = scaled(trace, best_fit(trace))
        self.small, self.placed = scaled(self.swapped, self.placement)
        self.state = initial(self.whole, seed=1)
        self.want = self.go(self.whole, there, Emulator(in_issue_order))[:2]

    def go(self, trace: Trace, placement: Placement, emulator: Emulator, drop=None, *, iterations: int = ITERATIONS):
        """Run; return what is left, what was read, ops a second."""
        launch = GenericOp(self.whole)
        program = prepare(trace, placement, emulator, launch)
        over = program.crossing()
        program.write({of: value[: over[of][0].size] for of, value in self.state.items() if of in over})
        if drop is not None:
            program.after[drop[1]].remove(drop[0])
        begin = time.perf_counter()
        program.run(iterations)
        return program.read(), launch.seen, iterations * trace.n / (time.perf_counter() - begin)

    def tiny(self) -> tuple[Trace, Placement]:
        """The plan at a byte for each 8 KiB, placed anew."""
        b = self.swapped.buffers
        small = Trace(replace(b, size=-(-b.size // 2**13)), self.swapped.ops, name=self.swapped.name)
        return small, best_fit(small, alignment=1)

    def right(self, got) -> bool:
        """Whether every op read, and every kept buffer holds, what it does unswapped."""
        same = all((self.want[0][of] == value).all() for of, value in got[0].items())
        return bool(same and (got[1] == self.want[1]).all())

    def dropped(self, edges: list[tuple[int, int]]) -> tuple[int, int]:
        """How many dropped waits the race detector catches, and wrong bytes in the order that favours them."""
        raced = wrong = 0
        for y, x in edges:
            try:
                self.go(self.small, self.placed, Emulator(), (y, x))
            except Race:
                raced += 1
            blind = Emulator(late({y + self.small.n}), races=False)
            wrong += not self.right(self.go(self.small, self.placed, blind, (y, x)))
        return raced, wrong


def row(path: Path, orders: int, most: int) -> None:
    """Print one trace's line."""
    bench = Bench(load(path).trace)
    trace, placement = bench.small, bench.placed
    edges = [(y, x) for x, r in enumerate(ordering.hazards(trace, placement).after.tolist()) for y in r]
    bench.go(trace, placement, Emulator(0))
    runs = [bench.go(trace, placement, Emulator(seed)) for seed in range(orders)]
    right = sum(bench.right(r) for r in runs)
    speed = statistics.median(r[2] for r in runs)
    tiny = bench.tiny()
    quick = statistics.median(bench.go(*tiny, Emulator(seed), iterations=10)[2] for seed in range(3))
    some = edges if len(edges) <= most else [edges[i] for i in np.linspace(0, len(edges) - 1, most).astype(int)]
    raced, wrong = bench.dropped(some)
    cells = (trace.n, candidates(trace, placement), len(edges), f"{right}/{orders}", f"{raced}/{len(some)}")
    last = (f"{wrong}/{len(some)}", f"{speed / 1e3:.1f}", f"{quick / 1e3:.1f}")
    print(f"{path.name.split('.')[0]:28}" + "".join(f"{cell:>9}" for cell in (*cells, *last)), flush=True)


def recycled(trace: Trace) -> Placement:
    """A valid placement with much reuse, fast to find: a freed block serves the next request of its size."""
    b = trace.buffers
    free: dict[int, list[tuple[int, int]]] = {}
    offset, top = np.zeros(len(b), np.int64), 0
    for i in np.argsort(b.start, kind="stable").tolist():
        size = int(b.size[i])
        stack = free.setdefault(size, [])
        if stack and stack[0][0] <= b.start[i]:
            offset[i] = stack.pop(0)[1]
        else:
            offset[i], top = top, top + size
        stack.append((int(b.end[i]), int(offset[i])))
        stack.sort()
    return Placement(offset, top)


def large() -> None:
    """Print the time of `hazards` on placed traces of three streams."""
    print(f"\n{'ops':>10}{'streams':>9}{'waits':>9}{'hazards s':>11}")
    for n in (10_000, 100_000):
        trace = synthetic(n)
        size = 2 ** np.ceil(np.log2(trace.buffers.size)).astype(np.int64)
        ops = trace.ops
        stream = np.random.default_rng(0).integers(0, 3, n)
        trace = Trace(replace(trace.buffers, size=size), replace(ops, stream=stream, streams=("a", "b", "c")))
        placement = recycled(trace)
        ordering.hazards(trace, placement)
        begin = time.perf_counter()
        found = ordering.hazards(trace, placement)
        print(f"{n:>10}{3:>9}{len(found.after.idx):>9}{time.perf_counter() - begin:>11.3f}")


def main() -> None:
    """Print all tables; with file names, only of those."""
    print(header(0))
    given = [Path(name) for name in sys.argv[1:]]
    shared = sorted((SHARED / "traces").glob("*.json.gz")) if SHARED.exists() else []
    print("# waits: on other streams, before and after the reduction; dropped: caught by the race detector, by bytes")
    print("# kop/s: generic ops in thousands a second, a byte for each 256; small: a byte for each 8 KiB, placed anew")
    heads = ("ops", "before", "waits", "right", "raced", "wrong", "kop/s", "small")
    print(f"{'AutoSwap at 70 %, best-fit':28}" + "".join(f"{head:>9}" for head in heads))
    for path in given or shared or sorted(BUNDLED.glob("*.json.gz")):
        row(path, 5, 60)
    large()


if __name__ == "__main__":
    main()
