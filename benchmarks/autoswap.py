"""AutoSwap's figure 9: overhead over load limits and scores, and the most that costs nothing.

Load limit and capacity clock, batch 100, the paper's hardware (`gtx1080ti`). `--bayes` adds the score whose weights
Bayesian optimization finds. `no plan` is what an iteration costs before there is one: on demand, each copy blocking.
"""

from __future__ import annotations

import argparse

from _bench import SHARED, header

from gpumem.errors import Infeasible, NotReached
from gpumem.evaluate import overhead_at
from gpumem.io import bundled, read
from gpumem.machine import Machine
from gpumem.simulate import simulate
from gpumem.swap import on_demand
from gpumem.swap.autoswap.bayes import bayes
from gpumem.swap.autoswap.planner import PEAKS, autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.timeline import Timeline
from gpumem.trace import Trace

FREE = 0.005  # an overhead up to this counts as none
BAYES = "bayes"
NETS = ("vgg11", "vgg16", "resnet18", "resnet50")


def overhead(trace: Trace, machine: Machine, base: Timeline, percent: float, score: str, peaks: str) -> float | None:
    """Return the overhead at a limit, None where the planner does not get there."""
    limit = int(trace.peak_load * percent / 100)
    try:
        if score == BAYES:
            plan = bayes(trace, machine, limit, peaks=peaks)
        else:
            plan = autoswap(trace, machine, limit, score=score, peaks=peaks)
    except (Infeasible, NotReached):
        return None
    return simulate(plan.apply(trace), machine, capacity=limit).overhead(base)


def table(trace: Trace, machine: Machine, peaks: str, scores: list[str]) -> None:
    """Print a line a limit, a column a score, then the knee of each."""
    base = simulate(trace, machine)
    print(f"\n## {trace.name}: peak load {trace.peak_load / 2**20:.1f} MiB, peaks={peaks}: overhead in %\n")
    print(f"{'limit %':>8}" + "".join(f"{s:>8}" for s in [*scores, "best", "no plan"]))
    for percent in range(90, 25, -5):
        row = [overhead(trace, machine, base, percent, s, peaks) for s in scores]
        best = min((x for x in row if x is not None), default=None)
        row += [best, overhead_at(trace, machine, on_demand, int(trace.peak_load * percent / 100))]
        print(f"{percent:>8}" + "".join(f"{'-' if x is None else format(100 * x, '.2f'):>8}" for x in row))
    knees = [knee(trace, machine, base, s, peaks) for s in SCORES]
    print(
        f"{'free':>8}"
        + "".join(f"{k:>8.1f}" for k in knees)
        + f"{'':>8}" * (len(scores) - len(SCORES))
        + f"{max(knees):>8.1f}"
        + "   % saved at no more than 0.5 % overhead"
    )


def knee(trace: Trace, machine: Machine, base: Timeline, score: str, peaks: str) -> float:
    """Return the largest saving, in % of the peak load and steps of 0.5, up to which all limits cost nothing."""
    saved = 0.0
    while saved < 99:
        cost = overhead(trace, machine, base, 100 - saved - 0.5, score, peaks)
        if cost is None or cost > FREE:
            return saved
        saved += 0.5
    return saved


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", default="gtx1080ti")
    parser.add_argument("--peaks", default="all", choices=PEAKS)
    parser.add_argument("--bayes", action="store_true")
    parser.add_argument("nets", nargs="*", default=NETS)
    args = parser.parse_args()
    machine = Machine.named(args.machine)
    print(header())
    for net in args.nets:
        path = SHARED / "traces" / f"{net}_cifar_b100.json.gz"
        table(
            read(path) if path.exists() else bundled(net),
            machine,
            args.peaks,
            [*SCORES, *([BAYES] if args.bayes else [])],
        )


if __name__ == "__main__":
    main()
