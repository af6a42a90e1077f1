"""TENSILE: swaps across iterations and jobs, then recomputation.

Read `planner` first (algorithm 3). `swap_rounds` is algorithm 1 for one job, its loops are in `_rounds`; `peak` is
algorithm 2, `recompute_rounds` what follows where swapping does not do. `gpumem.trace.lifetimes` cuts
lifetimes to their accesses, `facts.biggest` finds the biggest gap over an op.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.tensile.planner import Tensile as Tensile, schedule as schedule, tensile as tensile
    from gpumem.trace.lifetimes import released as released

lazy_interface(__name__)
