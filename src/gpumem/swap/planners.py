"""The swap planners by name: the one table for the command line, comparisons, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpumem.base.names import choice
from gpumem.swap.autoswap.bayes import Bayes
from gpumem.swap.autoswap.planner import AutoSwap
from gpumem.swap.baselines.capuchin import Capuchin
from gpumem.swap.baselines.checkpoint import Checkpoint
from gpumem.swap.baselines.vdnn import LAYERS, VDnn
from gpumem.swap.baselines.vdnn_dyn import VDnnDyn
from gpumem.swap.dtr.planner import Dtr
from gpumem.swap.mosos.planners import Mosos
from gpumem.swap.mosos.work import FAMILY
from gpumem.swap.own_planner import as_planner, from_module
from gpumem.swap.planner import Planner
from gpumem.swap.search.planner import Search
from gpumem.swap.snu.heuristic import Heuristic
from gpumem.swap.snu.ilp import Ilp
from gpumem.swap.snu.on_demand import OnDemand
from gpumem.swap.tensile.planner import Tensile

RECORDS: tuple[Planner, ...] = (
    AutoSwap(),
    Bayes(),
    OnDemand(),
    OnDemand(blocking=False),
    Heuristic(),
    *(VDnn(layers=layers) for layers in LAYERS),
    VDnnDyn(),
    Capuchin(),
    Checkpoint(),
    Dtr(),
    Search(),
    Tensile(),
    Ilp(),
    *(Mosos(kind=kind) for kind in FAMILY),
)
PLANNERS: dict[str, Planner] = {record.name: record for record in RECORDS}


def planner_of(given: str | Callable[..., Any], what: str = "planner") -> Planner:
    """Return a planner by its name in `PLANNERS`, by `module:name`, or as what any function or record is.

    Raises
    ------
    ValueError
        There is none of that name; `what` tells where it was given.

    Examples
    --------
    >>> planner_of("tensile").name, planner_of("gpumem.swap:heuristic").name
    ('tensile', 'heuristic')
    >>> planner_of("tensil")
    Traceback (most recent call last):
    ValueError: planner: 'tensil' is unknown; there are autoswap, bayes, on-demand, on-demand-nonblocking, heuristic, \
vdnn-all, vdnn-conv, vdnn-dyn, capuchin, checkpoint, dtr, search, tensile, ilp, mosos, checkmate, checkmate-auto, str, \
str-auto; did you mean 'tensile'?
    """
    if not isinstance(given, str):
        return as_planner(given)
    if ":" not in given or given in PLANNERS:
        return as_planner(choice(given, PLANNERS, what))
    try:
        return as_planner(from_module(given, what))
    except ValueError as error:
        raise ValueError(f"{what}: {given}: {str(error).removeprefix(f'{what}: ')}") from error.__cause__


def planners_of(given: str | Iterable[str | Callable[..., Any]], what: str = "planner") -> dict[str, Planner]:
    """Return the planners of a list, or of a text of names with commas between, or of `all`, by what they are called.

    >>> [*planners_of("tensile, heuristic")], len(planners_of("all")) == len(PLANNERS)
    (['tensile', 'heuristic'], True)
    """
    if isinstance(given, str):
        given = [*PLANNERS] if given == "all" else [name.strip() for name in given.split(",")]
    named = ((one if isinstance(one, str) else "", planner_of(one, what)) for one in given)
    return {name or planner.name: planner for name, planner in named}
