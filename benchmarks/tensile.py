"""What TENSILE's planning costs: CPU seconds of one schedule, and the same over the time of an iteration.

Recorded traces where they are, and synthetic ones by size; the sum of peaks brought down to 70 % or 50 %, or as low as
swaps get. One job, and three copies of it on the common link. Compiled before; the best of three runs. The machine is
`rtx2080ti`, for synthetic traces with as much pinned memory as they want.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial

from _bench import SHARED, header, synthetic

from gpumem.io import read
from gpumem.machine import Machine
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import schedule
from gpumem.trace import Trace

SIZES = (1_000, 10_000, 100_000)
MACHINE = Machine.named("rtx2080ti")
WIDE = MACHINE.with_(pinned=2**60)
NAMES = ("vgg16_224_b2", "resnet50_224_b64", "resnet152_224_b64", "gpt2_s512_b8", "tacotron2_t40_b32")
GOALS = {"70 %": {}, "50 %": {}, "least": {"least": True, "recompute": False}}


def measured(tasks: Sequence[Task], machine: Machine, goal: str) -> tuple[float, list[Scheduled]]:
    """Return CPU seconds and the schedule."""
    whole = sum(task.trace.peak_load for task in tasks)
    capacity = whole if goal == "least" else whole * int(goal.split()[0]) // 100
    call, best = partial(schedule, tasks, machine, capacity, **GOALS[goal]), float("inf")
    for _ in range(3):
        begin = time.process_time()
        found = call()
        best = min(best, time.process_time() - begin)
    return best, found


def line(trace: Trace, machine: Machine, copies: int) -> None:
    """Print a line for each goal."""
    ns = machine.durations(trace)
    tasks = [Task(trace, ns)] * copies
    for goal in GOALS:
        seconds, found = measured(tasks, machine, goal)
        swaps = sum(len(job.plan.swaps) for job in found)
        again = sum(len(job.plan.decisions) for job in found) - swaps
        reached = sum(job.peak for job in found) / (copies * trace.peak_load)
        part = seconds / (int(ns.sum()) / 1e9)
        cells = f"{goal:>7}{reached:>9.1%}{swaps:>8}{again:>9}{seconds:>10.3f}{part:>12.2f}"
        print(f"{trace.name[:24]:24}{trace.n:>8}{copies:>6}{cells}", flush=True)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(header(args.seed))
    titles = f"{'goal':>7}{'reached':>9}{'swaps':>8}{'recomp.':>9}{'seconds':>10}{'iterations':>12}"
    print(f"\n{'trace':24}{'ops':>8}{'jobs':>6}{titles}")
    schedule([Task(synthetic(100, args.seed), MACHINE.durations(synthetic(100, args.seed)))], MACHINE, 1)  # compile
    for name in NAMES:
        path = SHARED / "traces" / f"{name}.json.gz"
        if path.exists():
            for copies in (1, 3):
                line(read(path), MACHINE, copies)
    for n in SIZES:
        line(synthetic(n, args.seed), WIDE, 1)


if __name__ == "__main__":
    main()
