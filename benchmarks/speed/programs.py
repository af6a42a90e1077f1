"""Integer programs on real traces: how far from the best, alone and from the best plan known.

    python -m benchmarks.speed.programs [FILE...] [--machine NAME] [--ratio R] [--seconds S] [--started] [--mosos]

Of each trace at a load limit, a part of its peak (or what some op must hold at least, where that is more): the
overhead of the heuristic and of `search`, the certified least overhead, and of the swapping program alone (started from
the heuristic) and from `search`'s plan: overhead, gap and status. `gap` is what the plan may be above the best possible
iteration, as a part of its time; the bound is the program's own, no certified figure is handed to it. `--started`
leaves out the bound and the program alone. With `--mosos` the program of MO-SOS takes that plan to start from; its gap
holds for schedules of its nodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.speed._bench import header
from gpumem import bundled, io, swap
from gpumem.base.errors import Infeasible, NotReached
from gpumem.base.work import now
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.swap.facts.limits import floor
from gpumem.trace import Trace


def overhead(trace: Trace, machine: Machine, limit: int, plan: swap.Plan) -> float:
    """By the byte-counting simulation, against the unswapped iteration."""
    line = simulate(plan.apply(trace), machine, capacity=limit)
    return line.makespan / simulate(trace, machine).makespan - 1


def proved(solve: Callable[[], Any], base: int) -> tuple[str, swap.Plan | None]:
    """What a program says: overhead, gap, status, seconds; and its plan."""
    begin = now()
    try:
        found = solve()
    except (Infeasible, NotReached) as stop:
        return f"{type(stop).__name__:>28} {now() - begin:6.1f}", None
    seconds = now() - begin
    return f"{found.makespan / base - 1:9.2%} {found.gap:8.2%} {found.status:>9} {seconds:6.1f}", found.plan


def row_of(trace: Trace, machine: Machine, args: argparse.Namespace) -> str:
    """Measure one trace."""
    limit = max(int(args.ratio * trace.peak_live_bytes), floor(trace)[1])
    base, cells, best = simulate(trace, machine).makespan, [], None
    for name, options in (("heuristic", {}), ("search", {"seconds": args.seconds / 4})):
        try:
            plan = swap.PLANNERS[name](trace, machine, limit, **options)
        except NotReached:
            cells.append("-")
        else:
            cells.append(f"{overhead(trace, machine, limit, plan):.2%}")
            best = plan
    row = f"{trace.name:30} {limit / trace.peak_live_bytes:6.1%} {cells[0]:>9} {cells[1]:>8}"
    program = partial(swap.solve_ilp, trace, machine, limit, seconds=args.seconds)
    if not args.started:
        least = swap.least_stall(trace, machine, limit, rounds=8).stall_ns / base
        row += f" | {least:8.2%} | {proved(program, base)[0]}"
    ours, found = proved(partial(program, start=best), base)
    row += f" | {ours}"
    if args.mosos:
        program = partial(swap.solve_mosos, trace, machine, limit, start=found or best, seconds=args.seconds)
        row += f" | {proved(program, base)[0]}"
    return row


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file", nargs="*", type=Path)
    p.add_argument("--machine", default="rtx2080ti")
    p.add_argument("--ratio", type=float, default=0.6)
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--started", action="store_true")
    p.add_argument("--mosos", action="store_true")
    args = p.parse_args()
    machine = Machine.named(args.machine)
    print(header())
    print(f"on {machine.name}, load limit {args.ratio:.0%} of the peak, {args.seconds:g} s for each program\n")
    told = f"{'overhead':>9} {'gap':>8} {'status':>9} {'s':>6}"
    parts = [f"{'trace':30} {'limit':>6} {'heuristic':>9} {'search':>8}"]
    parts += [] if args.started else [f"{'least':>8}", told]
    print(" | ".join([*parts, told, *([told] if args.mosos else [])]))
    for trace in [io.read(file) for file in args.file] or [bundled(name) for name in ("vgg16", "resnet18", "mlp3")]:
        print(row_of(trace, machine, args), flush=True)


if __name__ == "__main__":
    sys.exit(main())
