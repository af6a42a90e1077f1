"""The planning options that commands share, read and handed to `gpumem.plan`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import gpumem
from gpumem import pool
from gpumem.base.names import choice, choices
from gpumem.base.units import amount, human_ns
from gpumem.cli.common.args import machine_flags
from gpumem.cli.common.parser import Option, Section, at_least, option, positive, word
from gpumem.cli.common.planners import of_use, planner_flags, planner_options, planners_asked
from gpumem.cli.common.progress import tell
from gpumem.cli.common.uncertainty import uncertainty_of

if TYPE_CHECKING:
    from gpumem.simulator.uncertainty import Uncertainty

SIZE = "bytes, KiB/MiB/GiB or %% of the peak live bytes"
ROBUST = "of the search: plan for durations that are off by log-normal factors of this sigma"
SEED = "of planners that draw random numbers"
SCORE = option(
    "--score",
    metavar="NAME[,NAME]|all",
    help="of AutoSwap and its kin: doa, aoa, wdoa, swdoa, several, or all, the default: the cheapest counts",
)
NO_CHECK = option("--no-check", action="store_true", help="do not hold the result against the naive oracles")
SWAPPING = (
    option(
        "--peaks",
        read=word("gpumem.swap.autoswap.planner:PEAKS"),
        metavar="first|all",
        help="of AutoSwap and its kin: candidates straddle the first peak, or all",
    ),
    option("--threshold", metavar="SIZE", help="of most planners: the smallest buffer to swap (mostly 1MiB)"),
    option(
        "--no-recompute",
        dest="recompute",
        action="store_false",
        default=None,
        help="of planners that recompute values: swap only",
    ),
    option("--robust", type=float, metavar="X", help=ROBUST),
)
OWN = ("seed", "effort", "seconds", *(one.dest for one in SWAPPING))  # options that some planners take


def limit_flags(*how: Option, otherwise: str = "") -> tuple[Section, Section]:
    """Return the two limits, the machine and how to place; and `how`, options about planners."""
    limits = (
        option("--limit", metavar="SIZE", help=f"size of the pool: {SIZE} (address-aware simulation{otherwise})"),
        option(
            "--load-limit",
            metavar="SIZE",
            help=f"the papers' limit, of the live bytes: {SIZE} (byte-counting simulation)",
        ),
    )
    placing = (
        option("--pool", metavar="NAME", help="pool planner (default: search for a pool limit, else best-fit)"),
        option("--alignment", type=int, default=256, metavar="N", help="of offsets, bytes (default: %(default)s)"),
        NO_CHECK,
    )
    machine = machine_flags("gtx1080ti")
    return Section("what to plan for", (*limits, *machine)), Section("how to plan", (*placing, *how))


def plan_flags(seed: str = SEED) -> tuple[Section, Section]:
    """Return the options that `make` reads."""
    planner = planner_flags("search", "swap planner (default: %(default)s)", several=False)
    return limit_flags(*planner, SCORE, *own_flags(seed), otherwise="; default: what the machine has available")


def own_flags(seed: str = SEED) -> tuple[Option, ...]:
    """Return what some planners take and others do not; each has its own default."""
    return *SWAPPING, *search_flags("1 takes up to half a minute a plan", seed)


def search_flags(effort: str = "1, the default, takes some seconds", seed: str = SEED) -> tuple[Option, ...]:
    """Return what planners take that search; pool planners take no more. `effort` says what its unit costs."""
    return (
        option("--effort", read=positive, metavar="X", help=f"of planners that search: {effort}"),
        option(
            "--seconds",
            read=positive,
            metavar="S",
            help="the whole time of a planner: it ends with the best by then",
        ),
        option("--seed", read=at_least(0), metavar="N", help=seed),
    )


def own_options(
    args: argparse.Namespace, planners: Mapping[str, Callable[..., Any]], whole: int = 0, *, more: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options of `own_flags`, or `search_flags`, and those of `--option`, that were given.

    Each must be of use to one of the planners, but for those of `more`, which the command itself has a use for.
    """
    given = {name: value for name in OWN if (value := getattr(args, name, None)) is not None}
    if "threshold" in given:
        given["threshold"] = amount(given["threshold"], whole, "--threshold", least=0)
    for name in given.keys() - set(more):
        of_use("--no-recompute" if name == "recompute" else f"--{name}", name, planners)
    return given | planner_options(args, planners)


def uncertain(args: argparse.Namespace) -> Uncertainty | None:
    """Return how far durations may be off, where the command has the options and one says so."""
    uncertainty = uncertainty_of(args) if hasattr(args, "spread") else None
    return None if uncertainty is None or uncertainty.certain else uncertainty


def goals(args: argparse.Namespace, trace: gpumem.Trace) -> dict[str, Any]:
    """Read the options of `limit_flags`, as keywords of `gpumem.plan`."""
    load = None if args.load_limit is None else amount(args.load_limit, trace.peak_live_bytes, "--load-limit")
    limit = None if args.limit is None else amount(args.limit, trace.peak_live_bytes, "--limit")
    if args.pool:
        choice(args.pool, pool.PLANNERS, "--pool")
    return {"pool": limit, "load": load, "placer": args.pool or None, "alignment": args.alignment}


def make(
    trace: gpumem.Trace,
    machine: gpumem.Machine,
    args: argparse.Namespace,
    *,
    usual: Mapping[str, Any] = MappingProxyType({}),
    more: Collection[str] = (),
) -> gpumem.Planned:
    """Plan by the options of `plan_flags`; `usual` are the command's own defaults, `more` as in `own_options`."""
    from gpumem.swap.autoswap import SCORES

    if args.planner == "all" or "," in args.planner:
        raise ValueError(f"--planner: {args.planner!r:.60} is more than one; gpumem swap compares planners")
    planners = planners_asked(args)
    score = None if args.score is None else choices(args.score, SCORES, "--score")
    own = own_options(args, planners, trace.peak_live_bytes, more=more)
    options = planners[args.planner].known({**usual, **own})
    if score is not None:
        of_use("--score", "score", planners)
    options |= goals(args, trace) | {"check": not args.no_check, "uncertainty": uncertain(args)}
    planned = gpumem.plan(trace, machine, planner=args.planner, score=score, **options)
    if not args.no_check:
        planned.checked.report_to(tell)
    return planned


def tell_bound(machine: gpumem.Machine) -> None:
    """Say so where bounds are less than they are elsewhere: see `swap.zero_stall_limit`."""
    if machine.host_ns:
        host = f"{machine.name}: an op takes its host {human_ns(round(machine.host_ns))}"
        tell(f"{host}; for such a machine a bound says only what some op holds whatever is swapped")
