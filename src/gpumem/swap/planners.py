"""The swap planners by name: a table for the command line, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpumem.swap.autoswap.bayes import bayes
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.baselines.capuchin import capuchin
from gpumem.swap.baselines.checkpoint import checkpoint
from gpumem.swap.baselines.vdnn import vdnn
from gpumem.swap.baselines.vdnn_dyn import vdnn_dyn
from gpumem.swap.facts.limits import Proof
from gpumem.swap.mosos.planners import checkmate, checkmate_auto, mosos, solve_mosos, str_, str_auto
from gpumem.swap.mosos.work import FAMILY
from gpumem.swap.plan import Plan
from gpumem.swap.search.planner import search
from gpumem.swap.snu.heuristic import heuristic
from gpumem.swap.snu.ilp import ilp, solve_ilp
from gpumem.swap.snu.on_demand import on_demand
from gpumem.swap.tensile.planner import tensile

PLANNERS: dict[str, Callable[..., Plan]] = {
    "autoswap": autoswap,
    "bayes": bayes,
    "on-demand": on_demand,
    "on-demand-nonblocking": partial(on_demand, blocking=False),
    "heuristic": heuristic,
    "vdnn-all": partial(vdnn, layers="all"),
    "vdnn-conv": partial(vdnn, layers="conv"),
    "vdnn-dyn": vdnn_dyn,
    "capuchin": capuchin,
    "checkpoint": checkpoint,
    "search": search,
    "tensile": tensile,
    "ilp": ilp,
    "mosos": mosos,
    "checkmate": checkmate,
    "checkmate-auto": checkmate_auto,
    "str": str_,
    "str-auto": str_auto,
}
# Integer programs: `start=` is the best plan known, and what they return says beside their own what they proved.
PROGRAMS: dict[str, Callable[..., Proof]] = {"ilp": solve_ilp} | {
    kind: partial(solve_mosos, kind=kind) for kind in FAMILY
}
