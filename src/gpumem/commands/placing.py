"""What commands share that place buffers: the options of pool planners, and footprints measured and checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumem.commands.args import Parser, choices, self_check
from gpumem.commands.planning import own_options, taken

if TYPE_CHECKING:
    from gpumem.evaluate.footprint import Footprint
    from gpumem.placement import Placement
    from gpumem.pool.online import Pool
    from gpumem.trace import Trace

    Planners = Mapping[str, Callable[..., Placement]]
    Allocators = Mapping[str, Callable[..., Pool]]


def add_search(p: Parser) -> None:
    """Add what pool planners take that search."""
    p.add_argument("--effort", type=float, help="of planners that search: 1, the default, takes some seconds")
    p.add_argument("--seconds", type=float, help="budget of planners that search, of time")
    p.add_argument("--seed", type=int, help="of planners that draw random numbers")
    p.set_defaults(peaks=None, threshold=None)  # options of swap planners, which `own_options` asks for


def search_options(args: argparse.Namespace, planners: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return the options of `add_search` that were given; each must be of use to one of the planners."""
    return own_options(args, planners, 0)


def planners_of(text: str) -> Planners:
    """Read names of pool planners, or `all`."""
    from gpumem.pool import PLANNERS

    return {name: PLANNERS[name] for name in choices(text, PLANNERS, "--planner")}


def allocators_of(text: str | None) -> Allocators:
    """Read names of online allocators, `all`, or nothing."""
    from gpumem.pool import ALLOCATORS

    return {} if text is None else {name: ALLOCATORS[name] for name in choices(text, ALLOCATORS, "--allocator")}


def by_planners(
    trace: Trace,
    planners: Planners,
    options: Mapping[str, Any],
    progress: Callable[[str], None],
    *,
    alignment: int | None = None,
) -> list[Footprint]:
    """Place with each planner, check and measure; what is compiled is compiled before.

    The alignment is CUDA's for a trace with ops, none for a bare instance. A bound that one planner proves holds for
    all.
    """
    from gpumem import check
    from gpumem.evaluate import footprint
    from gpumem.trace import Trace

    found, unit = [], alignment if alignment is not None else 256 if len(trace.ops) else 1
    for name, planner in planners.items():
        told = partial(_told, progress, f"{trace.name}: {name}")
        more = taken(planner, {**options, "progress": told})
        call = partial(planner, alignment=unit, **more)
        call(Trace.from_lifetimes([1], [0], [1]))
        told("placing")
        found.append(footprint.placed(trace, call, name=name))
        with self_check():
            check.placement(trace, found[-1].placement)
    least = max((f.bound for f in found), default=0)
    return [replace(f, bound=least) for f in found]


def by_allocators(trace: Trace, allocators: Allocators, progress: Callable[[str], None]) -> list[Footprint]:
    """Replay through each allocator, check and measure."""
    from gpumem import check
    from gpumem.evaluate import footprint

    found = []
    for name, make in allocators.items():
        progress(f"{trace.name}: {name}: replaying")
        try:
            found.append(footprint.replayed(trace, make, name=name))
        except MemoryError as error:
            raise MemoryError(f"{trace.name}: {name}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{trace.name}: {name}: {error}") from error
        with self_check():
            check.placement(trace, found[-1].placement)
    return found


def _told(progress: Callable[[str], None], who: str, text: str) -> None:
    progress(f"{who}: {text}")
