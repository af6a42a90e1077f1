"""What commands share that place buffers: pool planners and allocators by name, and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpumem.commands.args import Parser
from gpumem.commands.planning import own_options
from gpumem.evaluate.options import choices

if TYPE_CHECKING:
    from gpumem.evaluate.footprint import Allocators, Planners


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
