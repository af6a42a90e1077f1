"""Swap planners: `Trace, Machine, limit -> Plan`. Read `plan` first. `PLANNERS` names them for the command line."""

from __future__ import annotations

from collections.abc import Callable

from gpumem.swap.autoswap import autoswap
from gpumem.swap.plan import Plan, Recompute, Swap, Variant

__all__ = ["PLANNERS", "Plan", "Recompute", "Swap", "Variant", "autoswap"]

PLANNERS: dict[str, Callable[..., Plan]] = {"autoswap": autoswap}
