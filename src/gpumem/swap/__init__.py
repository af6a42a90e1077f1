"""Swap planners: `Trace, Machine, limit -> Plan`. `PLANNERS` names them for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.autoswap.bayes import bayes as bayes
    from gpumem.swap.autoswap.planner import autoswap as autoswap
    from gpumem.swap.baselines.capuchin import capuchin as capuchin
    from gpumem.swap.baselines.checkpoint import checkpoint as checkpoint
    from gpumem.swap.baselines.vdnn import vdnn as vdnn
    from gpumem.swap.bound import Bound as Bound
    from gpumem.swap.bound import least_stall as least_stall
    from gpumem.swap.bound import zero_stall_limit as zero_stall_limit
    from gpumem.swap.plan import Plan as Plan
    from gpumem.swap.plan import Recompute as Recompute
    from gpumem.swap.plan import Swap as Swap
    from gpumem.swap.plan import Variant as Variant
    from gpumem.swap.planners import PLANNERS as PLANNERS
    from gpumem.swap.search.planner import search as search
    from gpumem.swap.snu.heuristic import heuristic as heuristic
    from gpumem.swap.snu.on_demand import on_demand as on_demand
    from gpumem.swap.tensile.planner import schedule as schedule
    from gpumem.swap.tensile.planner import tensile as tensile

face(__name__)
