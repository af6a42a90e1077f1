"""Competitive ratio and time of the pool planners on every instance there is.

With files as arguments: how long the search takes to their published capacity, the number in the name, with ten seeds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.speed._bench import SHARED, header
from gpumem import check
from gpumem.io import BUNDLED, bundled_path as path_of, read
from gpumem.pool import PLANNERS, search
from gpumem.trace import Trace

SEEDS = 10


def capacity(paths: list[Path]) -> None:
    """Print a line an instance: seeds that reach the capacity, and the process time they take."""
    search(Trace.from_lifetimes([3, 3, 3, 5, 2], [1, 2, 2, 4, 4], [4, 3, 5, 5, 6]), alignment=1)
    print(f"\n{'instance':30}{'buffers':>9}{'seeds':>7}{'reach it':>10}{'median ms':>11}{'most ms':>9}")
    for path in paths:
        trace, target, took, reached = read(path), int(path.name.split(".")[1]), [], 0
        for seed in range(SEEDS):
            begin = time.process_time()
            placed = search(trace, alignment=1, target=target, seed=seed)
            took.append((time.process_time() - begin) * 1e3)
            check.placement(trace, placed)
            reached += placed.height <= target
        cells = f"{SEEDS:>7}{reached:>10}{median(took):>11.1f}{max(took):>9.1f}"
        print(f"{path.name.split('.')[0]:30}{len(trace.buffers):>9}{cells}")


def main() -> None:
    """Print a table."""
    print(header())
    if len(sys.argv) > 1:
        capacity([Path(name) for name in sys.argv[1:]])
    else:
        ratios()


def ratios() -> None:
    """Print a line an instance: height over the peak live bytes, and time."""
    files = [*SHARED.glob("traces/*.json.gz"), *SHARED.glob("dsa/*/*.csv")] or [path_of(name) for name in BUNDLED]
    for planner in PLANNERS.values():
        planner(Trace.from_lifetimes([1], [0], [1]))
    columns = "".join(f"{name:>12}{'ms':>10}" for name in PLANNERS)
    print(f"\n{'instance':30}{'buffers':>9}{columns}{'better':>10}")
    for path in sorted(files):
        trace = read(path)
        cells, found = "", []
        for planner in PLANNERS.values():
            begin = time.perf_counter()
            placed = planner(trace, alignment=256 if len(trace.ops) else 1)
            ms = (time.perf_counter() - begin) * 1e3
            check.placement(trace, placed)
            found.append(placed.ratio(trace))
            cells += f"{found[-1]:>12.4f}{ms:>10.2f}"
        print(f"{path.name.split('.')[0]:30}{len(trace.buffers):>9}{cells}{min(found):>10.4f}")


if __name__ == "__main__":
    main()
