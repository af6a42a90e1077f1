"""AutoSwap's figure 9: overhead over load limits and scores, and the most that costs nothing.

Load limit, byte-counting simulation, batch 100, on `gtx1080ti`, as in the paper. `--bayes` adds the score whose weights
Bayesian optimization finds. `--one-target` is the paper's rule for when the selection stops, `--as-printed` its other
rules too (the first peak's candidates, taken whether they help or not); without, several targets are tried, which is
ours. `no plan` is what an iteration costs before there is one: on demand, with blocking
copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.papers.zero_overhead_limit import overhead_at
from benchmarks.speed._bench import SHARED, header
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, read
from gpumem.simulator import workspaces
from gpumem.simulator.machine import Machine
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap import on_demand
from gpumem.swap.autoswap.bayes import bayes
from gpumem.swap.autoswap.planner import PEAKS, PRINTED, TARGETS, autoswap
from gpumem.swap.autoswap.scores import SCORES
from gpumem.trace import Trace

FREE = 0.005  # an overhead up to this counts as none
BAYES = "bayes"
NETS = ("vgg11", "vgg16", "resnet18", "resnet50")


Options = Mapping[str, Any]


def overhead(
    trace: Trace, machine: Machine, base: Timeline, percent: float, score: str, options: Options
) -> float | None:
    """Return the overhead at a limit, None where the planner does not get there."""
    limit = int(trace.peak_live_bytes * percent / 100)
    try:
        if score == BAYES:
            plan = bayes(trace, machine, limit, **options)
        else:
            plan = autoswap(trace, machine, limit, score=score, **options)
    except (Infeasible, NotReached):
        return None
    return simulate(plan.apply(trace), machine, capacity=limit).overhead(base)


def table(trace: Trace, machine: Machine, options: Options, scores: list[str], workspace: str) -> None:
    """Print a line a limit, a column a score, then the lowest zero-overhead limit of each."""
    base = simulate(trace, machine)
    told = f"peak live bytes {trace.peak_live_bytes / 2**20:.1f} MiB, workspaces={workspace}"
    rule = "one target" if "targets" in options else f"targets={TARGETS} (ours)"
    rule = "as printed" if "as_printed" in options else f"peaks={options['peaks']}, {rule}"
    print(f"\n## {trace.name}: {told}, {rule}: overhead in %\n")
    print(f"{'limit %':>8}{'MB':>8}" + "".join(f"{s:>8}" for s in [*scores, "best", "no plan"]))
    for percent in range(90, 25, -5):
        row = [overhead(trace, machine, base, percent, s, options) for s in scores]
        best = min((x for x in row if x is not None), default=None)
        row += [best, overhead_at(trace, machine, on_demand, int(trace.peak_live_bytes * percent / 100))]
        mb = f"{percent:>8}{trace.peak_live_bytes * percent / 1e8:>8.0f}"
        print(mb + "".join(f"{'-' if x is None else format(100 * x, '.2f'):>8}" for x in row))
    limits = [lowest_free(trace, machine, base, s, options) for s in SCORES]
    print(
        f"{'free':>16}"
        + "".join(f"{k:>8.1f}" for k in limits)
        + f"{'':>8}" * (len(scores) - len(SCORES))
        + f"{max(limits):>8.1f}"
        + "   % saved at no more than 0.5 % overhead"
    )


def lowest_free(trace: Trace, machine: Machine, base: Timeline, score: str, options: Options) -> float:
    """Return the largest saving, in % of the peak live bytes and steps of 0.5, up to which all limits cost nothing."""
    saved = 0.0
    while saved < 99:
        cost = overhead(trace, machine, base, 100 - saved - 0.5, score, options)
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
    parser.add_argument("--one-target", action="store_true")
    parser.add_argument("--as-printed", action="store_true")
    parser.add_argument("--workspaces", default="none", choices=("none", "fastest"))
    parser.add_argument("nets", nargs="*", default=NETS)
    args = parser.parse_args()
    machine, scores = Machine.named(args.machine), [*SCORES, *([BAYES] if args.bayes else [])]
    options: dict[str, Any] = {"peaks": args.peaks} | ({"targets": PRINTED} if args.one_target else {})
    options = {"as_printed": True} if args.as_printed else options
    print(header())
    for net in args.nets:
        path = SHARED / "traces" / f"{net}_cifar_b100.json.gz"
        trace = workspaces.add(read(path) if path.exists() else bundled(net), rule=args.workspaces)
        table(trace, machine, options, scores, args.workspaces)


if __name__ == "__main__":
    main()
