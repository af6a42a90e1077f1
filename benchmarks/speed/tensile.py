"""What TENSILE's planning costs: CPU seconds of one schedule, and the same over the time of an iteration.

Recorded traces where they are, and synthetic ones by size; the sum of peaks brought down to 70 % or 50 %, or as low as
swaps get. One job, and three copies of it on the common link. Compiled before; the best of three runs. The machine is
`rtx2080ti`, for synthetic traces with as much pinned memory as they want. The extreme case is the last line: a net of
100,002 ops that take so long that nearly all its 166,666 gaps are swapped; `--only-extreme` prints it alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from benchmarks.speed._bench import SHARED, header, synthetic
from gpumem.io import read
from gpumem.simulator.machine import Machine
from gpumem.swap.tasks import Scheduled, Task
from gpumem.swap.tensile.planner import schedule
from gpumem.trace import Buffers, Ops, Trace

SIZES = (1_000, 10_000, 100_000)
LAYERS = 33_334
MACHINE = Machine.named("rtx2080ti")
WIDE = MACHINE.with_(pinned=2**60)
NAMES = ("vgg16_224_b2", "resnet50_224_b64", "resnet152_224_b64", "gpt2_s512_b8", "tacotron2_t40_b32")
GOALS = {"70 %": {}, "50 %": {}, "least": {"least": True, "recompute": False}}


def extreme(layers: int, seed: int) -> Trace:
    """A chain of layers, all forward ops, then all backward ops, then all updates; weights are read by all three.

    An op takes as long as 24 MiB take over the link, more than its own tensors need.
    """
    rng = np.random.default_rng(seed)
    k, back, update = np.arange(layers), 2 * layers - 1 - np.arange(layers), 2 * layers + np.arange(layers)
    weight, kept, slope, gradient = (k + part * layers for part in range(4))  # `slope`: of what the layer reads
    n, whole = 3 * layers, np.full(layers, 3 * layers)
    start = np.concatenate([k * 0, k, back, back])
    end = np.concatenate([whole, back + 1, np.minimum(back + 2, n), update + 1])
    size = rng.integers(1, 4096, len(start)) * 512
    above = np.append(slope[1:], kept[-1])  # the last layer's loss is what it made
    below = np.append(kept[0], kept[:-1])
    reads = [*np.stack([weight, below], 1), *np.stack([weight, kept, above], 1)[::-1], *np.stack([gradient, weight], 1)]
    writes = [*kept[:, None], *np.stack([slope, gradient], 1)[::-1], *weight[:, None]]
    ops = Ops.make([row.tolist() for row in reads], [row.tolist() for row in writes], duration=np.full(n, 2_000_000))
    held = np.repeat([True, False], [layers, 3 * layers])
    return Trace(Buffers.make(size, start, end, persistent=held), ops, name=f"extreme {n}")


def measured(tasks: Sequence[Task], machine: Machine, goal: str) -> tuple[float, list[Scheduled]]:
    """Return CPU seconds and the schedule."""
    whole = sum(task.trace.peak_live_bytes for task in tasks)
    capacity = whole if goal == "least" else whole * int(goal.split()[0]) // 100
    call, best = partial(schedule, tasks, machine, capacity, **GOALS[goal]), float("inf")
    for _ in range(3):
        begin = time.process_time()
        found = call()
        best = min(best, time.process_time() - begin)
    return best, found


def line(trace: Trace, machine: Machine, copies: int, goals: Iterable[str] = GOALS) -> None:
    """Print a line for each goal."""
    ns = machine.durations(trace)
    tasks = [Task(trace, ns)] * copies
    for goal in goals:
        seconds, found = measured(tasks, machine, goal)
        swaps = sum(len(job.plan.swaps) for job in found)
        again = sum(len(job.plan.decisions) for job in found) - swaps
        reached = sum(job.peak for job in found) / (copies * trace.peak_live_bytes)
        part = seconds / (int(ns.sum()) / 1e9)
        cells = f"{goal:>7}{reached:>9.1%}{swaps:>8}{again:>9}{seconds:>10.3f}{part:>12.2f}"
        print(f"{trace.name[:24]:24}{trace.n:>8}{copies:>6}{cells}", flush=True)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-extreme", action="store_true")
    args = parser.parse_args()
    print(header(args.seed))
    titles = f"{'goal':>7}{'reached':>9}{'swaps':>8}{'recomp.':>9}{'seconds':>10}{'iterations':>12}"
    print(f"\n{'trace':24}{'ops':>8}{'jobs':>6}{titles}")
    schedule([Task(synthetic(100, args.seed), MACHINE.durations(synthetic(100, args.seed)))], MACHINE, 1)  # compile
    for name in () if args.only_extreme else NAMES:
        path = SHARED / "traces" / f"{name}.json.gz"
        if path.exists():
            for copies in (1, 3):
                line(read(path), MACHINE, copies)
    for n in () if args.only_extreme else SIZES:
        line(synthetic(n, args.seed), WIDE, 1)
    line(extreme(LAYERS, args.seed), WIDE, 1, ["least"])


if __name__ == "__main__":
    main()
