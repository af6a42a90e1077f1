"""Throughput of the simulator, time of best-fit, and memory of a million-op trace, after compilation."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed._bench import header, synthetic
from gpumem.io import read, write
from gpumem.pool import best_fit
from gpumem.simulator._iteration import Clock, Reservations, Steps
from gpumem.simulator.hazards import hazards
from gpumem.simulator.host_threads import Hosts
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.autoswap.planner import autoswap
from gpumem.trace import Trace
from gpumem.trace.placement import Placement

SEED = 0
PAIRS = 21
MACHINE = Machine.named("gtx1080ti")


def median(run: Callable[[], object], times: int = 5) -> float:
    """Return the median seconds of a few runs, after one that is not counted."""
    run()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def stacked(trace: Trace) -> Placement:
    """A valid placement that costs no time to find: no two buffers share bytes."""
    top = trace.buffers.size.cumsum()
    return Placement(top - trace.buffers.size, int(top[-1]))


def clocks() -> None:
    """Print ops a second: iterations simulated, times ops, over the time of `simulate` as a whole."""
    print(f"\n{'ops':>10}{'clock':>12}{'iterations':>12}{'seconds':>10}{'Mop/s':>8}")
    for n in (10_000, 100_000, 1_000_000):
        trace = synthetic(n, SEED)
        for name, options in {
            "free": {},
            "placed": {"placement": stacked(trace)},
            "capacity": {"capacity": trace.peak_live_bytes},
        }.items():
            done = simulate(trace, MACHINE, **options).first + 1  # type: ignore[arg-type]
            seconds = median(lambda t=trace, o=options: simulate(t, MACHINE, **o), 3)  # type: ignore[misc]
            print(f"{n:>10}{name:>12}{done:>12}{seconds:>10.3f}{done * n / seconds / 1e6:>8.2f}")


def hosted() -> None:
    """Print what part of its rate the clock keeps with the host on: of `simulate` as a whole, and of its bare loop."""
    print(f"\n{'ops':>10}{'clock':>12}{'host us':>10}{'simulate':>10}{'loop':>8}")
    for n in (10_000, 100_000):
        trace = synthetic(n, SEED)
        for name, placement, capacity in (
            ("free", None, None),
            ("placed", stacked(trace), None),
            ("capacity", None, trace.peak_live_bytes),
        ):
            for host_ns in (1e3, 2e5):
                whole, loop = kept(trace, placement, capacity, host_ns)
                print(f"{n:>10}{name:>12}{host_ns / 1e3:>10g}{whole:>10.2f}{loop:>8.2f}")


def kept(trace: Trace, placement: Placement | None, capacity: int | None, host_ns: float) -> tuple[float, float]:
    """Return both rates with the host on over those with it off: medians over pairs of runs."""

    def whole(machine: Machine) -> int:
        return simulate(trace, machine, placement, capacity=capacity).first + 1

    def loop(clock: Clock) -> int:
        turns = 500_000 // trace.n
        for _ in range(turns):
            clock.advance()
        return turns

    machines = MACHINE, MACHINE.with_(host_ns=host_ns)
    memory = Reservations.make(trace, capacity), Reservations.make(trace, capacity)
    steps = [Steps.make(trace, m, placement) for m in machines]
    clocks = [Clock(s, r, Hosts.make(trace, m, None)) for s, r, m in zip(steps, memory, machines)]
    pairs = [[*(rate(whole, m) for m in machines), *(rate(loop, c) for c in clocks)] for _ in range(PAIRS)]
    ratios = [(on / off, loop_on / loop_off) for off, on, loop_off, loop_on in pairs]
    return statistics.median(r for r, _ in ratios), statistics.median(r for _, r in ratios)


def rate(iterate: Callable[[Any], int], what: object) -> float:
    """Return iterations a second of CPU time; `iterate` says how many it ran."""
    begin = time.process_time()
    done = iterate(what)
    return done / (time.process_time() - begin)


def swapped() -> None:
    """The same on rewritten traces: three streams, hazards between them, bytes reused."""
    print(f"\n{'swapped':>10}{'clock':>12}{'copies':>12}{'seconds':>10}{'Mop/s':>8}")
    for n in (10_000, 30_000):
        trace = synthetic(n, SEED)
        limit = trace.peak_live_bytes * 7 // 10
        after = autoswap(trace, MACHINE, limit, score="wdoa", threshold=2**16).apply(trace)
        for name, options in {"placed": {"placement": best_fit(after)}, "capacity": {"capacity": limit}}.items():
            done = simulate(after, MACHINE, **options).first + 1  # type: ignore[arg-type]
            seconds = median(lambda t=after, o=options: simulate(t, MACHINE, **o), 3)  # type: ignore[misc]
            print(f"{after.n:>10}{name:>12}{after.n - n:>12}{seconds:>10.3f}{done * after.n / seconds / 1e6:>8.2f}")


def pools() -> None:
    """Print the time of best-fit and of the hazards of its placement."""
    print(f"\n{'buffers':>10}{'best-fit s':>12}{'ratio':>8}{'hazards s':>12}")
    for n in (1_000, 10_000, 30_000):
        trace = synthetic(n, SEED)
        placed = best_fit(trace)
        seconds = median(lambda t=trace: best_fit(t), 3)  # type: ignore[misc]
        edges = median(lambda t=trace, p=placed: hazards(t, p), 3)  # type: ignore[misc]
        print(f"{n:>10}{seconds:>12.3f}{placed.ratio(trace):>8.4f}{edges:>12.3f}")


def million(path: str) -> None:
    """In a process of its own: read a million ops, simulate with a byte limit, tell the memory it took."""
    begin = time.perf_counter()
    trace = read(path)
    seconds = time.perf_counter() - begin
    line = simulate(trace, MACHINE, capacity=trace.peak_live_bytes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{trace.n} ops, {len(trace.buffers)} buffers: read in {seconds:.1f} s, one iteration {line.makespan} ns, ")
    print(f"peak memory of the process {peak:.2f} GiB")


def main() -> None:
    """Print all tables; with the word `host` only what the host costs."""
    if len(sys.argv) > 1 and sys.argv[1] != "host":
        million(sys.argv[1])
        return
    print(header(SEED))
    hosted()
    if len(sys.argv) > 1:
        return
    clocks()
    swapped()
    pools()
    with tempfile.TemporaryDirectory() as folder:
        trace = synthetic(1_000_000, SEED)
        path = Path(folder) / "million.json.gz"
        write(path, trace, machine=MACHINE)
        subprocess.run([sys.executable, "-m", "benchmarks.speed.speed", str(path)], check=True)


if __name__ == "__main__":
    main()
