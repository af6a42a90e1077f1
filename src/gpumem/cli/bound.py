"""`gpumem bound`: what no swap plan can beat."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gpumem
from gpumem import pipeline, swap
from gpumem.base import work
from gpumem.base.units import amount, human, human_ns, percent
from gpumem.cli.common.args import machine_flags, target_of
from gpumem.cli.common.files import FILE, read_with_ops, source_of, workspaces_flag
from gpumem.cli.common.parser import Command, option, positive
from gpumem.cli.common.planning import SIZE, tell_bound
from gpumem.cli.common.progress import Progress, tell
from gpumem.swap.fluid import in_a_row

BOUND = "bound"  # the row of a table of planners
STALLS = {"": "least stall there", "_recompute": "with values recomputed"}  # kinds of plans, by the keys of JSON


@dataclass(frozen=True, slots=True)
class Stall:
    """The least that the plans of a kind stall in an iteration; None of an iteration that takes no time."""

    stall_ns: int
    overhead: float | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no swap plan for a trace can beat; at a load limit, where one was given, by kinds of plans."""

    trace: gpumem.Trace
    machine: gpumem.Machine
    zero_stall_limit: int
    load_limit: int | None
    stalls: dict[str, Stall]
    seconds: float

    def row(self) -> dict[str, object]:
        """Return all figures for JSON: bytes, nanoseconds, fractions."""
        row = {"trace": self.trace.name, "machine": self.machine.name, "peak_live_bytes": self.trace.peak_live_bytes}
        row |= {"zero_stall_limit": self.zero_stall_limit}
        row |= {} if self.load_limit is None else {"load_limit": self.load_limit}
        for kind, least in self.stalls.items():
            row |= {f"least_stall{kind}_ns": least.stall_ns, f"least_overhead{kind}": least.overhead}
        return row | {"seconds": self.seconds}

    def table(self) -> str:
        """Return the figures as a table."""
        peak = self.trace.peak_live_bytes
        limits = {"limit without a stall": self.zero_stall_limit, "load limit": self.load_limit}
        rows = [
            ("peak live bytes", human(peak), ""),
            *((what, human(n), f"{n / peak:.1%}" if peak else "") for what, n in limits.items() if n is not None),
            *((STALLS[kind], human_ns(s.stall_ns), _change(s.overhead)) for kind, s in self.stalls.items()),
            ("seconds", f"{self.seconds:.3f}", ""),
        ]
        title = f"{self.trace.name} on {self.machine.name}: what no swap plan can beat"
        return "\n".join([title, "", *(f"{what:26}{figure:>14}{part:>10}".rstrip() for what, figure, part in rows)])


def _change(overhead: float | None) -> str:
    return "" if overhead is None else f"{overhead:+.2%}"


def run(args: argparse.Namespace) -> int:
    """Certify the lowest load limit without any stall, and the least stall at a limit, over all swap plans."""
    target, source = target_of(args), source_of(args.file)
    tell_bound(target)
    with Progress():
        trace = read_with_ops(source, target, args.workspaces)
        load = None if args.load_limit is None else amount(args.load_limit, trace.peak_live_bytes, "--load-limit")
        with work.within(args.seconds):
            certified = _bounds(trace, target, load)
            late = work.over()
    if late:
        tell("the time was up: what is said is certain, more seconds may say more")
    print(json.dumps(certified.row()) if args.json else certified.table())
    return 0


def _bounds(trace: gpumem.Trace, target: gpumem.Machine, load: int | None) -> Bounds:
    """The limit without a stall, and the least stalls at a load limit."""
    begin, asked = work.now(), [] if load is None else [(kind, load) for kind in STALLS]
    with work.part("the limit without a stall", 1 / (1 + len(asked))):
        work.tell("bounding")
        free = swap.zero_stall_limit(trace, target).limit
    base, stalls = gpumem.simulator.simulate(trace, target).makespan, dict[str, Stall]()
    for k, (kind, limit) in enumerate(asked, 1):
        work.step(k, 1 + len(asked))
        with work.part("the stall at the limit", 1 / (1 + len(asked) - k)):
            work.tell("bounding")
            stall = swap.least_stall(trace, target, limit, recompute=bool(kind)).stall_ns
        stalls[kind] = Stall(stall, stall / base if base else None)
    return Bounds(trace, target, zero_stall_limit=free, load_limit=load, stalls=stalls, seconds=work.now() - begin)


@dataclass(frozen=True, slots=True)
class Certified:
    """What no plan of the kinds in a table can beat within its limit; `not_for` names those that it does not bound.

    An overhead, how long that took, an iteration in ns, and whether plans are bounded that recompute values.
    """

    limit: int
    overhead: float
    seconds: float
    least_ns: int
    recompute: bool
    not_for: list[str]

    def row(self) -> dict[str, object]:
        """Return all figures for JSON."""
        return {"planner": BOUND, **asdict(self)}

    def cells(self, drawn: int) -> list[str]:
        """Return a row of the table of planners, with so many overheads."""
        return [BOUND, *[""] * 5, percent(self.overhead), *[""] * (drawn - 1), f"{self.seconds:.3f}"]

    @property
    def note(self) -> str:
        """Say of whom that is certain."""
        kinds = "swaps and recomputes values" if self.recompute else "swaps"
        other_ops = f"; not for {', '.join(self.not_for)}: ops run in other ways" if self.not_for else ""
        return f"{BOUND}: certified for every plan that {kinds}{other_ops}"


def certify(case: pipeline.Case, certified: Mapping[str, pipeline.Planned], **how: Any) -> Certified | None:
    """Bound what is planned by several planners, within the budget; `how` are options of `least_stall`.

    Bounded are swaps, and values recomputed where one of the plans does that. Plans that have ops run by other
    variants are not bounded. None where nothing is known: without a plan, or where ops wait for one another or for a
    host.
    """
    base, limit, pool = case.line.makespan, case.pool or case.load, case.pool is not None
    if not certified or not base or limit is None or not in_a_row(case.trace, case.machine):
        return None
    other_ops = [
        name for name, one in certified.items() if any(isinstance(d, gpumem.Variant) for d in one.plan.decisions)
    ]
    bounded = [one for name, one in certified.items() if name not in other_ops]
    recomputes = any(len(one.plan.swaps) < len(one.plan.decisions) for one in bounded or certified.values())
    begin, stall = work.now(), 0
    if all(one.overhead > 0 for one in bounded):  # else nothing is left to be said
        work.tell("bounding")
        stall = swap.least_stall(case.trace, case.machine, limit, recompute=recomputes, placed=pool, **how).stall_ns
    return Certified(
        limit, stall / base, seconds=work.now() - begin, least_ns=base + stall, recompute=recomputes, not_for=other_ops
    )


COMMAND = Command(
    "bound",
    run,
    "certify what no swap plan can beat",
    options=(
        option("file", nargs="?", metavar="FILE", help=f"{FILE} (default: vgg16)"),
        *machine_flags("gtx1080ti"),
        option("--load-limit", metavar="SIZE", help=f"bound the stall at this load limit as well: {SIZE}"),
        option("--seconds", read=positive, metavar="S", help="the whole time: what is certified by then counts"),
        workspaces_flag(),
        option("--json", action="store_true", help="print one JSON object"),
    ),
    examples=("gpumem bound vgg16 --machine gtx1080ti", "gpumem bound vgg16 --load-limit 60%"),
)
