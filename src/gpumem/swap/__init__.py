"""Swap planners: `Trace, Machine, limit -> Plan`. Read `plan` first. `PLANNERS` names them for the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumem.swap.autoswap import autoswap
from gpumem.swap.bayes import bayes
from gpumem.swap.capuchin import capuchin
from gpumem.swap.heuristic import heuristic
from gpumem.swap.on_demand import on_demand
from gpumem.swap.plan import Plan, Recompute, Swap, Variant
from gpumem.swap.recompute import checkpoint
from gpumem.swap.search import search
from gpumem.swap.tensile import schedule, tensile
from gpumem.swap.vdnn import vdnn

__all__ = [
    "PLANNERS",
    "Plan",
    "Recompute",
    "Swap",
    "Variant",
    "autoswap",
    "bayes",
    "capuchin",
    "checkpoint",
    "heuristic",
    "on_demand",
    "schedule",
    "search",
    "tensile",
    "vdnn",
]

PLANNERS: dict[str, Callable[..., Plan]] = {
    "autoswap": autoswap,
    "bayes": bayes,
    "on-demand": on_demand,
    "heuristic": heuristic,
    "vdnn-all": partial(vdnn, layers="all"),
    "vdnn-conv": partial(vdnn, layers="conv"),
    "capuchin": capuchin,
    "checkpoint": checkpoint,
    "search": search,
    "tensile": tensile,
}
