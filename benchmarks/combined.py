"""Swap and placement together: the overhead in pools of 70 % and 40 % of the peak load, beside the certified bounds.

Placed clock, against the placed unswapped iteration. `bound`: the load below which no plan is free; `stall`: the
least overhead of any plan at that load. Where a bound says that the goal cannot be met, the last column says so.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from _bench import SHARED, header

from gpumem.errors import Infeasible, NotReached
from gpumem.evaluate.combined import in_pool, settle
from gpumem.io import read
from gpumem.machine import Machine
from gpumem.pool.search.planner import search as pack
from gpumem.pool.smartpool import best_fit
from gpumem.simulate import simulate
from gpumem.swap.bound.certify import least_stall, zero_stall_limit
from gpumem.swap.search.planner import search
from gpumem.trace import Trace

GOALS = ((70, 0.005), (40, 0.15))


def solve(trace: Trace, machine: Machine, limit: int, effort: float, seeds: int) -> tuple[float, float, float]:
    """Return overhead, height and peak load of the combined plan, the last two as fractions of the peak load."""
    base = simulate(trace, machine, best_fit(trace))

    def swap(trace: Trace, load_limit: int, *, seed: int = 0, effort: float = effort / 10):
        return search(trace, machine, load_limit, placed=True, seed=seed, effort=effort)

    def judge(found):
        return simulate(found.trace, machine, found.placement)

    first = in_pool(trace, limit, swap=swap, pool=partial(pack, target=limit, effort=0.2))
    several = [partial(swap, seed=seed, effort=effort) for seed in range(seeds)]
    pool = partial(pack, target=limit)
    found = settle(trace, limit, first, swaps=several, pool=pool, judge=judge, least=base.makespan)
    overhead = judge(found).overhead(base)
    return overhead, found.placement.height / trace.peak_load, found.trace.peak_load / trace.peak_load


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="gtx1080ti")
    parser.add_argument("--effort", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--percent", type=int, action="append")
    parser.add_argument("files", nargs="*", type=Path, default=sorted((SHARED / "traces").glob("*.json.gz")))
    args = parser.parse_args()
    machine = Machine.named(args.machine)
    print(header(0))
    print(
        f"{'trace':30}{'pool %':>7}{'bound %':>9}{'stall %':>9}{'load %':>8}{'height %':>10}{'overhead %':>12}{'s':>7}"
    )
    for path in args.files:
        trace = read(path)
        for percent, most in GOALS:
            if args.percent and percent not in args.percent:
                continue
            limit, begin = trace.peak_load * percent // 100, time.perf_counter()
            try:
                overhead, height, load = solve(trace, machine, limit, args.effort, args.seeds)
                figures = f"{100 * load:>8.1f}{100 * height:>10.1f}{100 * overhead:>12.2f}"
            except (Infeasible, NotReached) as stop:
                overhead, figures = float("inf"), f"{'-':>8}{'-':>10}{type(stop).__name__:>12}"
            seconds, allowed = time.perf_counter() - begin, ""
            bound = stall = float("nan")
            if overhead > most:  # is it the plan, or is it impossible?
                bound = zero_stall_limit(trace, machine, rounds=6).limit / trace.peak_load
                try:
                    least = least_stall(trace, machine, limit, rounds=6).stall_ns
                    stall = least / simulate(trace, machine).makespan
                except Infeasible:
                    stall = float("inf")
                allowed = "  missed" if stall <= most and (most > 0.005 or bound <= percent / 100) else "  impossible"
            head = f"{trace.name:30}{percent:>7}{100 * bound:>9.1f}{100 * stall:>9.1f}"
            print(f"{head}{figures}{seconds:>7.0f}{allowed}", flush=True)


if __name__ == "__main__":
    main()
