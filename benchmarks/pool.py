"""Competitive ratio and time of the pool planners on every instance there is."""

from __future__ import annotations

import time

from _bench import SHARED, header

from gpumem import check
from gpumem.io import BUNDLED, bundled_path as path_of, read
from gpumem.pool import PLANNERS
from gpumem.trace import Trace


def main() -> None:
    """Print a line an instance."""
    print(header())
    files = [*SHARED.glob("traces/*.json.gz"), *SHARED.glob("dsa/*/*.csv")] or [path_of(name) for name in BUNDLED]
    for planner in PLANNERS.values():
        planner(Trace.from_lifetimes([1], [0], [1]))
    columns = "".join(f"{name:>12}{'ms':>10}" for name in PLANNERS)
    print(f"\n{'instance':30}{'buffers':>9}{columns}{'better':>10}")
    for path in sorted(files):
        trace = read(path)
        cells, ratios = "", []
        for planner in PLANNERS.values():
            begin = time.perf_counter()
            placed = planner(trace, alignment=256 if len(trace.ops) else 1)
            ms = (time.perf_counter() - begin) * 1e3
            check.placement(trace, placed)
            ratios.append(placed.ratio(trace))
            cells += f"{ratios[-1]:>12.4f}{ms:>10.2f}"
        print(f"{path.name.split('.')[0]:30}{len(trace.buffers):>9}{cells}{min(ratios):>10.4f}")


if __name__ == "__main__":
    main()
