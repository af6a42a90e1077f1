"""Swap and placement together: the overhead in pools of 70 and 40 % of the peak, beside the certified bounds.

Placed clock, against the placed unswapped iteration. `--of cnmem` takes the percents of CnMem's footprint, as the
AutoSwap paper does in section VI-C1; `cnmem %` is how far below that the pool ends. `bound`: the load below which no
plan is free; `stall`: the least overhead of any plan at that load. Where a bound says that the goal cannot be met, the
last column says so.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.speed._bench import SHARED, header
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.work import now
from gpumem.io import read
from gpumem.pipeline.footprint import replayed
from gpumem.pipeline.swap_and_place import in_pool, refine_limit
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.search.planner import search as pack
from gpumem.pool.smartpool.offline import best_fit
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.bound import least_stall, zero_stall_limit
from gpumem.swap.search.planner import search
from gpumem.trace import Trace

GOALS = {70: 0.005, 40: 0.15}  # overheads
MOST = 0.15  # in other pools


def solve(trace: Trace, machine: Machine, limit: int, effort: float, seeds: int) -> tuple[float, float, float]:
    """Return overhead, height and peak live bytes of the combined plan, the last two as fractions of the peak."""
    base = simulate(trace, machine, best_fit(trace))

    def swap(trace: Trace, load_limit: int, *, seed: int = 0, effort: float = effort / 10):
        return search(trace, machine, load_limit, placed=True, seed=seed, effort=effort)

    def judge(found):
        return simulate(found.trace, machine, found.placement)

    first = in_pool(trace, limit, swap=swap, pool=partial(pack, target=limit, effort=0.2))
    several = [partial(swap, seed=seed, effort=effort) for seed in range(seeds)]
    pool = partial(pack, target=limit)
    found = refine_limit(trace, limit, first, swaps=several, pool=pool, judge=judge, least=base.makespan)
    overhead = judge(found).overhead(base)
    return overhead, found.placement.height / trace.peak_live_bytes, found.trace.peak_live_bytes / trace.peak_live_bytes


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="gtx1080ti")
    parser.add_argument("--effort", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--percent", type=int, action="append")
    parser.add_argument("--of", choices=("load", "cnmem"), default="load")
    parser.add_argument("--workspaces", choices=("none", "fastest"), action="append")
    parser.add_argument("files", nargs="*", type=Path, default=sorted((SHARED / "traces").glob("*.json.gz")))
    args = parser.parse_args()
    machine = Machine.named(args.machine)
    print(header(0))
    heads = ("pool %", "bound %", "stall %", "load %", "height %", "cnmem %", "overhead %", "s")
    print(f"{'trace':30}{'workspaces':>11}{''.join(f'{head:>11}' for head in heads)}")
    for path in args.files:
        for rule in args.workspaces or ["none"]:
            for percent in args.percent or GOALS:
                trace = workspaces.add(read(path), rule=rule)
                print(f"{trace.name:30}{rule:>11}{line(trace, machine, percent, args)}", flush=True)


def line(trace: Trace, machine: Machine, percent: int, args: argparse.Namespace) -> str:
    """Return the figures of one pool, and whether a goal that was missed is out of reach."""
    cnmem, most = replayed(trace, CnMem).size, GOALS.get(percent, MOST)
    limit, begin = (cnmem if args.of == "cnmem" else trace.peak_live_bytes) * percent // 100, now()
    try:
        overhead, height, load = solve(trace, machine, limit, args.effort, args.seeds)
        parts = (load, height, height * trace.peak_live_bytes / cnmem - 1, overhead)
        figures = "".join(f"{100 * part:>11.2f}" for part in parts)
    except (Infeasible, NotReached) as stop:
        overhead, figures = float("inf"), f"{'-':>11}{'-':>11}{'-':>11}{type(stop).__name__:>11}"
    seconds, allowed = now() - begin, ""
    bound = stall = float("nan")
    if overhead > most:  # is it the plan, or is it impossible?
        bound = zero_stall_limit(trace, machine, rounds=6).limit / trace.peak_live_bytes
        try:
            stall = least_stall(trace, machine, limit, rounds=6).stall_ns / simulate(trace, machine).makespan
        except Infeasible:
            stall = float("inf")
        free = bound <= limit / trace.peak_live_bytes
        allowed = "  missed" if stall <= most and (most > 0.005 or free) else "  impossible"
    return f"{percent:>11}{100 * bound:>11.1f}{100 * stall:>11.1f}{figures}{seconds:>11.0f}{allowed}"


if __name__ == "__main__":
    main()
