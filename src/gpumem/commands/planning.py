"""The planning options that commands share, and what they lead to: a plan, placed, simulated and checked."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumem.commands.args import Parser, Progress, amount, choice, choices, self_check, tell

if TYPE_CHECKING:
    from pathlib import Path

    from gpumem.evaluate.combined import Combined
    from gpumem.machine import Machine
    from gpumem.placement import Placement
    from gpumem.report import Report
    from gpumem.swap.plan import Plan
    from gpumem.timeline import Timeline
    from gpumem.trace import Trace

QUADRATIC = 20_000  # ops or buffers that quadratic checks are run on
SIZE = "bytes, KiB/MiB/GiB or %% of the peak load"
OWN = ("seed", "effort", "seconds", "peaks", "threshold")  # options that some planners take
QUICK = {"effort": 0.03}, {"effort": 0.2}  # of swap and pool planners: to find out which load fits a pool
THOROUGH = {"effort": 0.4}  # of swap planners that are asked for several plans around it
PLANS = 3


def add_limits(p: Parser, otherwise: str = "") -> None:
    """Add the two limits, the machine and how to place."""
    p.add_argument("--limit", help=f"size of the pool: {SIZE} (placed clock{otherwise})")
    p.add_argument("--load-limit", help=f"the papers' limit, of the load: {SIZE} (capacity clock)")
    p.add_argument("--machine", default="gtx1080ti", help="preset or JSON file (default: %(default)s)")
    p.add_argument("--pool", help="pool planner (default: search for a pool that has a limit, else best-fit)")
    p.add_argument("--alignment", type=int, default=256, help="of offsets, in bytes (default: %(default)s)")
    p.add_argument("--no-check", action="store_true", help="do not hold the result against the naive oracles")


def add_options(p: Parser) -> None:
    """Add the options that `make` reads."""
    add_limits(p, "; default: the machine's memory")
    p.add_argument("--swap", "--planner", default="autoswap", help="swap planner (default: %(default)s)")
    score = "AutoSwap's score: doa, aoa, wdoa, swdoa, several, or all: the cheapest counts (default: %(default)s)"
    p.add_argument("--score", default="all", metavar="NAME[,NAME]|all", help=score)
    p.add_argument("--peaks", default="first", help="candidates straddle the first peak, or all (default: %(default)s)")
    p.add_argument("--threshold", default="1MiB", help="smallest buffer to swap (default: %(default)s)")


def add_own(p: Parser) -> None:
    """Add what some planners take and others do not; each has its own default."""
    p.add_argument("--seed", type=int, help="of planners that draw random numbers")
    p.add_argument("--effort", type=float, help="of planners that search: 1 takes up to half a minute a plan")
    p.add_argument("--seconds", type=float, help="budget of planners that search for as long as they may")
    p.add_argument("--peaks", help="of AutoSwap and its kin: candidates straddle the first peak, or all")
    p.add_argument("--threshold", help="of most planners: the smallest buffer to swap")


def own_options(args: argparse.Namespace, planners: Mapping[str, Callable[..., Plan]], whole: int) -> dict[str, Any]:
    """Return the options of `add_own` that were given; each must be of use to one of the planners."""
    given = {name: value for name in OWN if (value := getattr(args, name)) is not None}
    if "threshold" in given:
        given["threshold"] = amount(given["threshold"], whole, "--threshold", least=0)
    if given.get("seed", 0) < 0:
        raise ValueError(f"--seed: {given['seed']} is below 0")
    for name in ("seconds", "effort"):
        if not 0 < given.get(name, 1) < math.inf:
            raise ValueError(f"--{name}: {given[name]} is not positive and finite")
    for name in given:
        if not any(taken(planner, {name: 0}) for planner in planners.values()):
            raise ValueError(f"--{name}: no use to {', '.join(planners)}")
    return given


def taken(planner: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that the planner has a keyword for.

    >>> taken(lambda trace, machine, limit, *, seed=0: None, {"seed": 3, "seconds": 2.0})
    {'seed': 3}
    """
    known = inspect.signature(planner).parameters.values()
    everything = any(p.kind is p.VAR_KEYWORD for p in known)
    names = {p.name for p in known if p.kind is p.KEYWORD_ONLY}
    return {name: value for name, value in options.items() if everything or name in names}


def source_of(file: str | None) -> Path:
    """Return the path of a trace: a file, the name of a bundled one, or the bundled VGG16."""
    from pathlib import Path

    from gpumem.io import BUNDLED, bundled_path

    path = Path(file if file is not None else "vgg16")
    return bundled_path(str(path)) if str(path) in BUNDLED and not path.exists() else path


def read_with_ops(source: Path, machine: Machine, progress: Progress) -> Trace:
    """Read a trace to plan for; say so where it brings the durations of another machine."""
    from gpumem.io import load

    progress(f"reading {source}")
    loaded = load(source)
    trace, timed = loaded.trace, loaded.meta.get("machine") or machine.name
    if not len(trace.ops):
        raise ValueError(f"{source}: a bare instance has no ops to swap between; see gpumem pool")
    if timed != machine.name:
        tell(f"{source} holds the durations of {timed}; {machine.name} only gives those of new copies")
    return trace


def traces_of(files: Sequence[str], machine: Machine, progress: Progress) -> list[Trace]:
    """Read traces to plan for; the bundled ones where none are named."""
    from gpumem.io import BUNDLED

    return [read_with_ops(source_of(file), machine, progress) for file in files or BUNDLED]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A trace to plan for, its placement and timeline without a plan, and a limit of the pool, of the load, or both."""

    trace: Trace
    machine: Machine
    place: Callable[[Trace], Placement]
    limit: int | None
    load_limit: int | None
    placement: Placement
    line: Timeline

    @classmethod
    def of(cls, trace: Trace, machine: Machine, args: argparse.Namespace, progress: Progress) -> Task:
        """Read the options of `add_limits` (the default is the machine's memory), and place the unswapped trace."""
        from gpumem import pool
        from gpumem.simulate import simulate

        load = None if args.load_limit is None else amount(args.load_limit, trace.peak_load, "--load-limit")
        limit = None if args.limit is None else amount(args.limit, trace.peak_load, "--limit")
        if limit is None and load is None:
            limit = machine.capacity
        name = args.pool or ("best-fit" if limit is None else "search")
        placer = partial(choice(name, pool.PLANNERS, "--pool"), alignment=args.alignment)
        place = partial(placer, **taken(placer, {"target": limit}))
        progress("placing the unswapped trace")
        placement = placer(trace)
        line = simulate(trace, machine, None if load is not None else placement)
        return cls(trace, machine, place, limit, load, placement, line)

    def solve(
        self, planner: Callable[..., Plan], options: Mapping[str, Any], progress: Callable[[str], None]
    ) -> Combined:
        """Plan and place; a planner that can plan for a placement makes several plans around the first that fits."""
        from gpumem.evaluate.combined import at_load, in_pool, settle

        def plan(**more: Any) -> Callable[[Trace, int], Plan]:
            chosen = taken(planner, {**more, **options, "progress": progress})
            if "seed" in more:
                chosen["seed"] = more["seed"] + options.get("seed", 0)
            return lambda trace, limit: planner(trace, self.machine, limit, **chosen)

        if self.limit is None:
            assert self.load_limit is not None
            return at_load(self.trace, self.load_limit, swap=plan(), pool=self.place)
        swap, pool = QUICK
        quick, again = partial(self.place, **taken(self.place, pool)), bool(taken(planner, {"placed": True}))
        first = in_pool(
            self.trace,
            self.limit,
            swap=plan(placed=True, **swap) if again else plan(),
            pool=quick,
            load_limit=self.load_limit,
            progress=progress,
        )
        if not again:
            return first
        return settle(
            self.trace,
            self.limit,
            first,
            swaps=[plan(**{"placed": True, **THOROUGH, "seed": k}) for k in range(PLANS)],
            pool=self.place,
            judge=self.judge,
            least=self.line.makespan,
            progress=progress,
        )

    def judge(self, found: Combined) -> Timeline:
        """Run what was planned by the clock that the limit asks for."""
        from gpumem import check
        from gpumem.simulate import simulate

        with self_check():
            if self.load_limit is not None:
                if found.trace.peak_load > self.load_limit:
                    check.budget(found.trace, self.load_limit)
                return simulate(found.trace, self.machine, capacity=self.load_limit)
            return simulate(found.trace, self.machine, found.placement)

    def report(self, found: Combined, judged: Timeline, planner: str, score: str = "") -> Report:
        """Say what the plan costs and saves."""
        from gpumem.report import Report, Run
        from gpumem.simulate import simulate

        capacity = self.load_limit is not None
        placed = simulate(found.trace, self.machine, found.placement) if capacity else judged
        before, after = Run(self.trace, self.placement, self.line), Run(found.trace, found.placement, judged)
        clock = "capacity" if capacity else "placed"
        name = self.machine.name
        return Report(name, score, found.plan, before, after, self.limit, found.load_limit, clock, placed, planner)

    def check(self, report: Report) -> None:
        """Hold the result against the naive oracles; of huge traces not against the quadratic ones."""
        from gpumem import check

        after, machine = report.after, self.machine
        swapped, duration, duplex = after.trace, machine.durations(after.trace), machine.duplex
        with self_check():
            check.placement(swapped, after.placement)
            check.data_flow(self.trace, swapped)
            if max(swapped.n, len(swapped.buffers)) > QUADRATIC:
                tell(f"{swapped.n} ops are too many for the naive oracles of budget and timeline: not checked")
                return
            check.budget(swapped, report.load_limit, host=machine.pinned)
            check.timeline(swapped, report.placed, duration, placement=after.placement, duplex=duplex)
            if self.load_limit is not None:
                check.timeline(swapped, after.timeline, duration, capacity=self.load_limit, duplex=duplex)


def make(
    trace: Trace,
    machine: Machine,
    args: argparse.Namespace,
    progress: Progress,
    own: Mapping[str, Any] | None = None,
) -> Report:
    """Plan, place, simulate and check; of a planner with scores, all that are asked for, the cheapest counts."""
    from gpumem import swap
    from gpumem.evaluate.combined import cheapest
    from gpumem.swap.autoswap.scores import SCORES

    planner = choice(args.swap, swap.PLANNERS, "--swap")
    scores = choices(args.score, SCORES, "--score")
    threshold = amount(args.threshold, trace.peak_load, "--threshold", least=0)
    options = taken(planner, {"peaks": args.peaks, "threshold": threshold, **(own or {})})
    scored = bool(taken(planner, {"score": ""}))
    if not scored and args.score != "all":
        raise ValueError(f"--score: no use to {args.swap}")
    task = Task.of(trace, machine, args, progress)

    def solve(score: str) -> Combined:
        chosen = {**options, **({"score": score} if scored else {})}
        return task.solve(planner, chosen, lambda text: progress(f"{score or args.swap}: {text}"))

    score, found, judged = cheapest(scores if scored else [""], solve, task.judge, least=task.line.makespan)
    report = task.report(found, judged, args.swap, score)
    if not args.no_check:
        progress("checking the plan")
        task.check(report)
    return report
