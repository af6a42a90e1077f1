"""How far above the peak live bytes does the pool end when the trace is rewritten: best fit, first fit, search?

Every trace as it is, and rewritten by AutoSwap (`swdoa`, `peaks="all"`, `gtx1080ti`) for load limits in percent of
its peak live bytes; limits that AutoSwap does not reach are left out. Every placement is checked.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.rewriting import rewritten
from benchmarks.speed._bench import SHARED, header
from gpumem import check
from gpumem.base.work import now
from gpumem.io import BUNDLED, bundled_path as path_of, read
from gpumem.pool import best_fit, first_fit, search
from gpumem.trace import Trace


def line(trace: Trace, effort: float, seed: int) -> tuple[list[float], float]:
    """Return the three ratios and the seconds of the search."""
    greedy = [planner(trace) for planner in (best_fit, first_fit)]
    begin = now()
    found = search(trace, effort=effort, seed=seed)
    seconds = now() - begin
    for placed in (*greedy, found):
        check.placement(trace, placed)
    return [placed.ratio(trace) for placed in (*greedy, found)], seconds


def main() -> None:
    """Print a line for each trace and limit, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--limits", type=int, nargs="*", default=[100, 70, 50, 40])
    parser.add_argument("nets", nargs="*", help="names of recorded traces; all of them where left out")
    args = parser.parse_args()
    print(header(args.seed))
    files = sorted(SHARED.glob("traces/*.json.gz")) or [path_of(name) for name in BUNDLED]
    search(Trace.from_lifetimes([45, 34, 56], [5, 6, 1], [9, 12, 3], n=7), alignment=1)
    print(f"\n{'trace':30}{'limit':>6}{'ops':>7}{'buffers':>9}{'best-fit':>10}{'first-fit':>10}{'search':>9}{'s':>7}")
    rows = []
    for path in files:
        name = path.name.split(".")[0]
        if args.nets and name not in args.nets:
            continue
        whole = read(path)
        for percent in args.limits:
            trace = rewritten(whole, percent)
            if trace is None:
                continue
            ratios, seconds = line(trace, args.effort, args.seed)
            rows.append(ratios)
            count = int((~trace.buffers.host).sum())
            cells = f"{ratios[0]:>10.4f}{ratios[1]:>10.4f}{ratios[2]:>9.4f}{seconds:>7.2f}"
            print(f"{name:30}{percent:>5}%{trace.n:>7}{count:>9}{cells}", flush=True)
    table = np.array(rows)
    for what, value in (("mean", table.mean(axis=0)), ("worst", table.max(axis=0))):
        print(f"{what:52}" + f"{value[0]:>10.4f}{value[1]:>10.4f}{value[2]:>9.4f}")
    print(f"{'within 1.01':52}" + "".join(f"{int(x):>{w}}" for x, w in zip((table <= 1.01).sum(axis=0), (10, 10, 9))))
    print(f"{'above 1.05':52}" + "".join(f"{int(x):>{w}}" for x, w in zip((table > 1.05).sum(axis=0), (10, 10, 9))))


if __name__ == "__main__":
    main()
