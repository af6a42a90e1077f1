"""The planning options that commands share, and what they lead to: a plan, placed, simulated and checked."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from gpumem.commands.args import Parser, Progress, amount, choice, choices, self_check, tell

if TYPE_CHECKING:
    from gpumem.combined import Combined
    from gpumem.machine import Machine
    from gpumem.report import Report
    from gpumem.timeline import Timeline
    from gpumem.trace import Trace

QUADRATIC = 20_000  # ops or buffers that quadratic checks are run on


def add_options(p: Parser) -> None:
    """Add the options that `make` reads."""
    size = "bytes, KiB/MiB/GiB or %% of the peak load"
    p.add_argument("--limit", help=f"size of the pool: {size} (placed clock; default: the machine's memory)")
    p.add_argument("--load-limit", help=f"the papers' limit, of the load: {size} (capacity clock)")
    p.add_argument("--machine", default="gtx1080ti", help="preset or JSON file (default: %(default)s)")
    p.add_argument("--swap", "--planner", default="autoswap", help="swap planner (default: %(default)s)")
    score = "AutoSwap's score: doa, aoa, wdoa, swdoa, several, or all: the cheapest counts (default: %(default)s)"
    p.add_argument("--score", default="all", metavar="NAME[,NAME]|all", help=score)
    p.add_argument("--peaks", default="first", help="candidates straddle the first peak, or all (default: %(default)s)")
    p.add_argument("--threshold", default="1MiB", help="smallest buffer to swap (default: %(default)s)")
    p.add_argument("--pool", default="best-fit", help="pool planner (default: %(default)s)")
    p.add_argument("--alignment", type=int, default=256, help="of offsets, in bytes (default: %(default)s)")
    p.add_argument("--no-check", action="store_true", help="do not hold the result against the naive oracles")


def make(trace: Trace, machine: Machine, args: argparse.Namespace, progress: Progress) -> Report:
    """Plan, place, simulate and check."""
    from gpumem import pool, swap
    from gpumem.combined import at_load, cheapest, in_pool
    from gpumem.report import Report, Run
    from gpumem.simulate import simulate
    from gpumem.swap.scores import SCORES

    swapper, placer = choice(args.swap, swap.PLANNERS, "--swap"), choice(args.pool, pool.PLANNERS, "--pool")
    scores = choices(args.score, SCORES, "--score")
    options = {"peaks": args.peaks, "threshold": amount(args.threshold, trace.peak_load, "--threshold", least=0)}
    capacity = None if args.load_limit is None else amount(args.load_limit, trace.peak_load, "--load-limit")
    limit = None if args.limit is None else amount(args.limit, trace.peak_load, "--limit")
    if limit is None and capacity is None:
        limit = machine.capacity
    place = partial(placer, alignment=args.alignment)

    def solve(score: str) -> Combined:
        def plan(trace: Trace, load_limit: int) -> swap.Plan:
            return swapper(trace, machine, load_limit, score=score, **options)

        if capacity is not None and limit is None:
            return at_load(trace, capacity, swap=plan, pool=place)
        assert limit is not None
        told = partial(_told, progress, score)
        return in_pool(trace, limit, swap=plan, pool=place, load_limit=capacity, progress=told)

    def judge(found: Combined) -> Timeline:
        if capacity is not None:
            return simulate(found.trace, machine, capacity=capacity)
        return simulate(found.trace, machine, found.placement)

    progress("placing the unswapped trace")
    placement = place(trace)
    line = simulate(trace, machine, None if capacity is not None else placement)
    score, found, judged = cheapest(scores, solve, judge, least=line.makespan)
    placed = judged if capacity is None else simulate(found.trace, machine, found.placement)
    if not args.no_check:
        _check(trace, found, placed, judged, capacity, machine, progress)
    before, after = Run(trace, placement, line), Run(found.trace, found.placement, judged)
    clock = "placed" if capacity is None else "capacity"
    return Report(machine.name, score, found.plan, before, after, limit, found.load_limit, clock, placed)


def _told(progress: Progress, score: str, text: str) -> None:
    progress(f"{score}: {text}")


def _check(
    trace: Trace,
    found: Combined,
    placed: Timeline,
    judged: Timeline,
    capacity: int | None,
    machine: Machine,
    progress: Progress,
) -> None:
    """Hold the result against the naive oracles; of huge traces not against the quadratic ones."""
    from gpumem import check

    progress("checking the plan")
    swapped, duration, duplex = found.trace, machine.durations(found.trace), machine.duplex
    with self_check():
        check.placement(swapped, found.placement)
        check.data_flow(trace, swapped)
        if max(swapped.n, len(swapped.buffers)) > QUADRATIC:
            tell(f"{swapped.n} ops are too many for the naive oracles of budget and timeline: not checked")
            return
        check.budget(swapped, found.load_limit, host=machine.pinned)
        check.timeline(swapped, placed, duration, placement=found.placement, duplex=duplex)
        if capacity is not None:
            check.timeline(swapped, judged, duration, capacity=capacity, duplex=duplex)
