"""`gpumem bench swap`: how good the swap planners are, next to the bound and to the AutoSwap paper's figures."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumem.commands import bench_pool, bench_tensile, figures
from gpumem.commands.args import Commands, Parser, Progress, amount, choices, machine_of, tell, tell_when_compiling
from gpumem.commands.planning import Task, add_own, own_options, taken, traces_of
from gpumem.commands.saving import check_name, staged, tell_without_pictures

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumem.evaluate.knee import Knee
    from gpumem.machine import Machine
    from gpumem.report import Figure
    from gpumem.swap.plan import Plan
    from gpumem.trace import Trace

PARTS = {
    "knees": "Lowest load limit at no more than 0.5 % overhead, capacity clock",
    "fig8": "Figure 8: the load in MiB, the largest of each stretch of ops",
    "fig9": "Figure 9: overhead in % by load limit in % of the peak load, capacity clock",
    "fig10": "Figure 10: footprint in MiB by batch size, next to CnMem's; AutoSwap up to an overhead, placed clock",
    "fig11": "Figure 11: overhead in % by reduction of the placed footprint in %, placed clock",
    "table2": "Table II: the largest reduction of the load in % at no more than 0.5 % overhead",
}
LIMITS = ",".join(f"{p}%" for p in range(90, 25, -5))
FEW = "90%,75%,60%"
BATCHES, TWO = "0.25,0.5,1,2,4", "0.5,1"
FINE, COARSE = 0.005, 0.05  # parts of the peak load


def add(commands: Commands) -> None:
    """Add the command's arguments."""
    suites = commands.add_parser("bench", help="measure planners and allocators against bounds and the papers")
    suite = suites.add_subparsers(required=True, metavar="SUITE", parser_class=Parser)
    p = suite.add_parser("swap", help="swap planners", description=run.__doc__)
    p.add_argument("trace", nargs="*", help="trace files or bundled names (default: the bundled ones; figures: vgg16)")
    p.add_argument("--planner", default="all", metavar="NAME[,NAME]|all", help="default: %(default)s")
    p.add_argument("--machine", default="gtx1080ti", help="preset or JSON file (default: %(default)s)")
    p.add_argument("--what", default="all", metavar="NAME[,NAME]|all", help=f"of {', '.join(PARTS)}")
    p.add_argument("--limits", metavar="L[,L]", help="of figures 9 to 11, bytes or %% (default: 90%% to 30%% by 5%%)")
    p.add_argument("--batches", metavar="F[,F]", help=f"of figure 10, times the recorded one (default: {BATCHES})")
    p.add_argument("--step", type=float, help="between the limits of a knee, part of the peak load (default: 0.005)")
    p.add_argument("--quick", action="store_true", help="few limits and coarse steps, to try it out")
    p.add_argument("--no-check", action="store_true", help="do not hold the plans against the naive oracles")
    add_own(p)
    p.add_argument("--out", metavar="DIR", help="write bench.txt, bench.json and pictures there")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(run=run)
    bench_pool.add(suite)
    bench_tensile.add(suite)


def run(args: argparse.Namespace) -> int:
    """Print the knees of swap planners next to the bound, and figures 8 to 11 and Table II of the AutoSwap paper."""
    check_name(args.out)
    tell_when_compiling()
    from gpumem.report import header
    from gpumem.swap import PLANNERS

    parts = choices(args.what, PARTS, "--what")
    if args.step is not None and not 0 < args.step <= 1:
        raise ValueError(f"--step: {args.step} is not in (0, 1]")
    planners = {name: PLANNERS[name] for name in choices(args.planner, PLANNERS, "--planner")}
    machine, factors = machine_of(args.machine), _factors(args)
    seed = "each planner's own" if args.seed is None else args.seed
    with Progress() as progress:
        traces = traces_of(args.trace, machine, progress)
        limits = [_limits(args, trace) for trace in traces]
        bench = Bench(args, planners, machine, progress, header(args.command, seed).splitlines(), factors)
        for trace, mine in zip(traces, limits):
            shown = args.trace or trace.name.startswith("vgg16")
            bench.measure(trace, mine, parts if shown else [p for p in parts if not p.startswith("fig")])
    found = bench.found(parts)
    if args.out is not None:
        with staged(Path(args.out)) as folder:
            bench.write(folder, parts)
        tell_without_pictures()
    print(json.dumps(found) if args.json else bench.text(parts))
    return 0


def _limits(args: argparse.Namespace, trace: Trace) -> list[int]:
    text = args.limits if args.limits is not None else FEW if args.quick else LIMITS
    return [amount(part, trace.peak_load, "--limits") for part in text.split(",")]


def _factors(args: argparse.Namespace) -> list[float]:
    text = args.batches if args.batches is not None else TWO if args.quick else BATCHES
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--batches: {text!r} is no list of numbers") from None
    for factor in factors:
        if not 0 < factor < math.inf:
            raise ValueError(f"--batches: {factor} is not positive and finite")
    return factors


@dataclass(slots=True, eq=False)
class Bench:
    """What was measured so far."""

    args: argparse.Namespace
    planners: dict[str, Callable[..., Plan]]
    machine: Machine
    progress: Progress
    header: list[str]
    factors: list[float]
    knees: list[Knee] = field(default_factory=list)
    drawn: list[tuple[str, Figure]] = field(default_factory=list)  # with the name of the trace

    @property
    def step(self) -> float:
        """Between the limits of a knee, as a part of the peak load."""
        if self.args.step is not None:
            return float(self.args.step)
        return COARSE if self.args.quick else FINE

    def measure(self, trace: Trace, limits: list[int], parts: list[str]) -> None:
        """Measure the parts that were asked for, for one trace."""
        from gpumem.batch import KINDS
        from gpumem.pool import best_fit
        from gpumem.simulate import simulate
        from gpumem.swap import PLANNERS

        options = own_options(self.args, self.planners, trace.peak_load)
        task = Task(trace, self.machine, best_fit, None, None, best_fit(trace), simulate(trace, self.machine))
        run = figures.Run(task, options, self.progress, not self.args.no_check)
        if "knees" in parts or "table2" in parts:
            self.knees += self._knees(run)
        if "fig8" in parts:
            self.drawn.append((trace.name, figures.profiles(run, PLANNERS["autoswap"])))
        if "fig9" in parts:
            found = figures.scores(run, limits, PLANNERS["autoswap"], PLANNERS.get("bayes"))
            self.drawn.append((trace.name, found))
        if "fig10" in parts and KINDS.isdisjoint(trace.buffers.kind):
            tell(f"{trace.name}: no figure 10: no buffer is of a kind that depends on the batch")
        elif "fig10" in parts:
            self.drawn.append((trace.name, figures.batches(run, limits, self.factors, PLANNERS["autoswap"])))
        if "fig11" in parts:
            self.drawn.append((trace.name, figures.reductions(run, limits, self.planners)))

    def _knees(self, run: figures.Run) -> list[Knee]:
        from gpumem.swap import zero_stall_limit

        trace = run.task.trace
        told = partial(_told, run.progress, f"{trace.name}: bound")
        least = zero_stall_limit(trace, self.machine, progress=told).limit
        found = []
        for name in self.planners:
            found.append(self._knee(run, name, least))
            run.verify(found[-1])
        return found

    def _knee(self, run: figures.Run, name: str, bound: int) -> Knee:
        from gpumem.evaluate.knee import knee, knee_of

        trace, planner = run.task.trace, self.planners[name]
        told = partial(_told, run.progress, f"{trace.name}: {name}")
        options = {**run.options, "progress": told}
        if name == "search":  # it looks for the lowest limit itself
            from gpumem.swap.search.planner import lowest

            own = partial(lowest, **taken(lowest, options))
            return knee_of(trace, self.machine, own, name=name, bound=bound)
        call = partial(planner, **taken(planner, options))
        return knee(trace, self.machine, call, step=self.step, name=name, bound=bound, progress=told)

    def found(self, parts: list[str]) -> dict[str, Any]:
        """Return everything for JSON."""
        result: dict[str, Any] = {"header": self.header}
        for part in parts:
            if part == "knees":
                result[part] = [k.row() for k in self.knees]
            elif part == "table2":
                result[part] = figures.depths(self.knees)
            else:
                result[part] = [{"trace": name, **f.row()} for name, f in self.drawn if f.name == part]
        return result

    def text(self, parts: list[str]) -> str:
        """Return everything for people."""
        from gpumem.evaluate.knee import table

        blocks = ["\n".join(self.header)]
        show = {
            "fig8": figures.profile_table,
            "fig9": figures.shared_table,
            "fig10": figures.batch_table,
            "fig11": figures.point_table,
        }
        for part in parts:
            if part == "knees":
                blocks.append(f"{PARTS[part]}\n\n{table(self.knees)}")
            elif part == "table2":
                blocks.append(f"{PARTS[part]}\n\n{figures.depth_table(figures.depths(self.knees))}")
            else:
                mine = [(name, f) for name, f in self.drawn if f.name == part]
                blocks += [f"{PARTS[part]}: {name}\n\n{show[part](f)}" for name, f in mine]
        return "\n\n".join(blocks)

    def write(self, folder: Path, parts: list[str]) -> None:
        """Write text, JSON and, where matplotlib is there, pictures."""
        from gpumem import plot
        from gpumem.io import write_text

        write_text(folder / "bench.txt", self.text(parts) + "\n")
        write_text(folder / "bench.json", json.dumps(self.found(parts)) + "\n")
        if plot.available():
            for trace, figure in self.drawn:
                plot.curves(_unused(folder, f"{figure.name}-{re.sub(r'[^0-9A-Za-z._-]', '_', trace)}"), figure)


def _unused(folder: Path, stem: str) -> Path:
    """A picture that is not there yet: two traces may have one name."""
    names = [f"{stem}.png", *(f"{stem}-{k}.png" for k in range(2, 2 + sum(1 for _ in folder.iterdir())))]
    return next(folder / name for name in names if not (folder / name).exists())


def _told(progress: Callable[[str], None], who: str, text: str) -> None:
    progress(f"{who}: {text}")
