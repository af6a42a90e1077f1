"""The planning options that commands share, read and handed to `gpumem.plan`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpumem
from gpumem import io, pool, swap
from gpumem.commands.args import Parser, Progress, tell
from gpumem.evaluate.options import taken
from gpumem.names import choice, choices
from gpumem.units import amount

SIZE = "bytes, KiB/MiB/GiB or %% of the peak load"
OWN = ("seed", "effort", "seconds", "peaks", "threshold")  # options that some planners take


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


def add_search(p: Parser) -> None:
    """Add what pool planners take that search."""
    p.add_argument("--effort", type=float, help="of planners that search: 1, the default, takes some seconds")
    p.add_argument("--seconds", type=float, help="budget of planners that search, of time")
    p.add_argument("--seed", type=int, help="of planners that draw random numbers")


def own_options(args: argparse.Namespace, planners: Mapping[str, Callable[..., Any]], whole: int = 0) -> dict[str, Any]:
    """Return the options of `add_own`, or `add_search`, that were given; each must be of use to one of the planners."""
    given = {name: value for name in OWN if (value := getattr(args, name, None)) is not None}
    if "threshold" in given:
        given["threshold"] = amount(given["threshold"], whole, "--threshold", least=0)
    if given.get("seed", 0) < 0:
        raise ValueError(f"--seed: {given['seed']} is below 0")
    for name in ("seconds", "effort"):
        if not 0 < given.get(name, 1) < math.inf:
            raise ValueError(f"--{name}: {given[name]} is not positive and finite")
    for name in given:
        of_use(f"--{name}", name, planners)
    return given


def of_use(option: str, name: str, planners: Mapping[str, Callable[..., Any]]) -> None:
    """Refuse an option that none of the planners has the keyword `name` for."""
    if not any(taken(planner, {name: 0}) for planner in planners.values()):
        raise ValueError(f"{option}: no use to {', '.join(planners)}")


def source_of(file: str | None) -> Path:
    """Return the path of a trace: a file, the name of a bundled one, or the bundled VGG16."""

    path = Path(file if file is not None else "vgg16")
    return io.bundled_path(str(path)) if str(path) in io.BUNDLED and not path.exists() else path


def read_with_ops(source: Path, machine: gpumem.Machine, progress: Progress) -> gpumem.Trace:
    """Read a trace to plan for; say so where it brings the durations of another machine."""
    progress(f"reading {source}")
    loaded = io.load(source)
    trace, timed = loaded.trace, loaded.meta.get("machine") or machine.name
    if not len(trace.ops):
        raise ValueError(f"{source}: a bare instance has no ops to swap between; see gpumem pool")
    if timed != machine.name:
        tell(f"{source} holds the durations of {timed}; {machine.name} only gives those of new copies")
    return trace


def traces_of(files: Sequence[str], machine: gpumem.Machine, progress: Progress) -> list[gpumem.Trace]:
    """Read traces to plan for; the bundled ones where none are named."""
    return [read_with_ops(source_of(file), machine, progress) for file in files or io.BUNDLED]


def goals(args: argparse.Namespace, trace: gpumem.Trace) -> dict[str, Any]:
    """Read the options of `add_limits`, as keywords of `gpumem.plan`."""
    load = None if args.load_limit is None else amount(args.load_limit, trace.peak_load, "--load-limit")
    limit = None if args.limit is None else amount(args.limit, trace.peak_load, "--limit")
    if args.pool:
        choice(args.pool, pool.PLANNERS, "--pool")
    return {"pool": limit, "load": load, "placer": args.pool or None, "alignment": args.alignment}


def make(trace: gpumem.Trace, machine: gpumem.Machine, args: argparse.Namespace, progress: Progress) -> gpumem.Planned:
    """Plan by the options of `add_options`."""
    from gpumem.swap.autoswap import SCORES

    planner = choice(args.swap, swap.PLANNERS, "--swap")
    scores = choices(args.score, SCORES, "--score")
    threshold = amount(args.threshold, trace.peak_load, "--threshold", least=0)
    options = taken(planner, {"peaks": args.peaks, "threshold": threshold})
    if args.score != "all":
        of_use("--score", "score", {args.swap: planner})
    score = None if args.score == "all" else scores
    options |= goals(args, trace) | {"check": not args.no_check, "progress": progress}
    planned = gpumem.plan(trace, machine, planner=args.swap, score=score, **options)
    if not args.no_check:
        planned.checked.told(tell)
    return planned
