"""What planning costs: seconds of one AutoSwap plan over the size of the trace, for each score.

Synthetic traces at 70 % of the peak live bytes with one target, `peaks="all"`, `gtx1080ti`; compiled before. The last
columns are the time of one score relative to the size, the first line being 1.
"""

from __future__ import annotations

import argparse

from benchmarks.speed._bench import SHARED, header, synthetic
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.work import now
from gpumem.io import read
from gpumem.simulator.machine import Machine
from gpumem.swap.autoswap.planner import TARGETS, autoswap, candidates
from gpumem.swap.autoswap.scores import SCORES
from gpumem.trace import Trace

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
MACHINE = Machine.named("gtx1080ti")


def seconds(trace: Trace, percent: int, score: str, targets: tuple[float, ...] = (1.0,)) -> float | None:
    """Return the best of three runs, None where the limit is out of reach."""
    best = float("inf")
    for _ in range(3):
        begin = now()
        try:
            autoswap(trace, MACHINE, trace.peak_live_bytes * percent // 100, score=score, peaks="all", targets=targets)
        except (Infeasible, NotReached):
            return None
        best = min(best, now() - begin)
    return best


def growth(seed: int) -> None:
    """Print a line a size."""
    print(f"{'ops':>8}{'candidates':>12}" + "".join(f"{s:>9}" for s in SCORES) + "   seconds; relative to the size")
    first: list[float] = []
    for n in SIZES:
        trace = synthetic(n, seed)
        found = candidates(trace, MACHINE, trace.peak_live_bytes * 70 // 100, peaks="all")
        row = [seconds(trace, 70, s) or 0.0 for s in SCORES]
        first = first or row
        ratio = [x * SIZES[0] / (y * n) for x, y in zip(row, first)]
        print(f"{n:>8}{len(found):>12}" + "".join(f"{x:>9.4f}" for x in row) + "   " + _cells(ratio, ".2f", 6))


def recorded(name: str) -> None:
    """Print a line a limit for a recorded trace, with one target and with all."""
    trace = read(SHARED / "traces" / f"{name}.json.gz")
    print(f"\n## {name}: {trace.n} ops, seconds a plan; then the same with targets {TARGETS}\n")
    for percent in (90, 80, 70, 60, 50, 40):
        row = [seconds(trace, percent, s, targets) for targets in ((1.0,), TARGETS) for s in SCORES]
        print(f"{percent:>8}" + _cells(row, ".3f", 9))


def _cells(row: list[float | None] | list[float], form: str, width: int) -> str:
    return "".join(f"{'-' if x is None else format(x, form):>{width}}" for x in row)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("nets", nargs="*", default=["tacotron2_t40_b32"])
    args = parser.parse_args()
    print(header(args.seed))
    seconds(synthetic(100), 70, "swdoa")
    growth(args.seed)
    for net in args.nets:
        if (SHARED / "traces" / f"{net}.json.gz").exists():
            recorded(net)


if __name__ == "__main__":
    main()
