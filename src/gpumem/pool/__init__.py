"""Pool planners: `Trace -> Placement`. `PLANNERS` names them for the command line."""

from __future__ import annotations

from collections.abc import Callable

from gpumem.placement import Placement
from gpumem.pool.search import search
from gpumem.pool.smartpool import best_fit, first_fit

__all__ = ["PLANNERS", "best_fit", "first_fit", "search"]

PLANNERS: dict[str, Callable[..., Placement]] = {"best-fit": best_fit, "first-fit": first_fit, "search": search}
