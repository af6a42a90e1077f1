"""What the first iterations of a program cost on the transparent device, by the clock: on demand, then planned.

A recorded step is played as a program that knows nothing of plans. The overhead of an iteration is over one without a
limit, whose ops run one behind the other. What the plan was to cost, byte-counting simulation said before: a
device whose copies wait where the plan's need not, or that leaves the plan, shows in the column beside it.

    python -m benchmarks.speed.first_iterations [LIMIT ...]
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.speed._bench import SHARED, header
from gpumem import Machine, bundled, io, simulate
from gpumem.runtime import Adaptive, LimitError, ManagedReport, OnClock, play
from gpumem.trace import Trace

PLANNERS = ("on-demand", "heuristic", "autoswap", "tensile", "capuchin")
MACHINE = Machine.named("gtx1080ti")
ITERATIONS, LARGEST = 9, 2500  # ops


def traces() -> dict[str, Trace]:
    """The shared ones, or those that ship with the package."""
    files = sorted(Path(SHARED, "traces").glob("*.json.gz"))
    found = {path.name.removesuffix(".json.gz"): io.load(path).trace for path in files}
    found = found or {name: bundled(name) for name in ("vgg16", "resnet18", "mlp3")}
    return {name: trace for name, trace in found.items() if trace.n <= LARGEST}


def played(trace: Trace, limit: int, planner: str) -> tuple[ManagedReport, float]:
    """What came of a program, and seconds that it took."""
    begin = time.perf_counter()
    with Adaptive(OnClock(MACHINE), limit, planner=planner, wait=True) as device:
        play(trace, None, device, ITERATIONS)
    return device.report(), time.perf_counter() - begin


def row(name: str, trace: Trace, share: float, planner: str) -> dict[str, float] | None:
    """Print what came of one, in percent over an iteration without a limit."""
    timed = replace(trace, ops=replace(trace.ops, duration=MACHINE.durations(trace)))
    base, limit = simulate(timed, MACHINE).makespan, int(trace.peak_live_bytes * share)
    try:
        report, took = played(timed, limit, planner)
    except LimitError as error:
        print(f"{name[:26]:26} {trace.n:5} {planner:10} {str(error).partition(';')[0]}", flush=True)
        return None
    whole = [x for x in report.iterations if x.ops == trace.n]
    cost = [100 * (x.seconds * 1e9 / base - 1) for x in whole]
    planned = [c for c, x in zip(cost, whole) if x.state == "planned"]
    told = [note.split()[-1] for note in report.notes if note.endswith("%")]
    said = f"{told[-1]:>8}" if told else "       -"
    after = f"{planned[0]:8.2f}% {planned[-1]:8.2f}%" if planned else f"{'-':>9} {'-':>9}"
    print(f"{name[:26]:26} {trace.n:5} {planner:10} {cost[0]:8.2f}% {after} {said}  {took:5.1f} s", flush=True)
    if planner == "on-demand" or not planned or not told:
        return None
    return {"demand": cost[0], "first": planned[0], "steady": planned[-1], "said": float(told[-1].rstrip("%"))}


def main() -> None:
    """Print a table for each limit."""
    print(header())
    for share in [float(x) for x in sys.argv[1:]] or [0.7, 0.5]:
        print(f"\nlimit {share:.0%} of the peak live bytes, {MACHINE.name}; overhead of an iteration")
        heads = f"{'on demand':>9} {'first':>9} {'steady':>9} {'said':>8}"
        print(f"{'trace':26} {'ops':>5} {'planner':10} {heads}  all of it")
        found: dict[str, list[dict[str, float]]] = {planner: [] for planner in PLANNERS}
        for name, trace in traces().items():
            for planner in PLANNERS:
                if made := row(name, trace, share, planner):
                    found[planner].append(made)
        for planner, rows in found.items():
            if rows:
                middle = {key: statistics.median(x[key] for x in rows) for key in rows[0]}
                worst = max(x["steady"] - x["said"] for x in rows)
                told = ", ".join(f"{key} {value:.2f}%" for key, value in middle.items())
                print(f"{planner}: {len(rows)} traces, medians: {told}; steady at most {worst:.2f} above what was said")


if __name__ == "__main__":
    main()
