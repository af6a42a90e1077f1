"""Swapping as in the SNU thesis: on demand, by its heuristic, by its integer program; how it finds the iteration.

Read `on_demand` first, with `residents`, the run that decides; `by_address` is the same in a pool of `addresses`. Then
`heuristic`, with `overlap`, which schedules its copies, and `ilp`, with `realise`, which turns a solution into plans.
The thesis' test for an iteration is `gpumem.trace.record.input_writes.pattern`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.snu.by_address import ByAddress as ByAddress, by_address as by_address
    from gpumem.swap.snu.heuristic import Heuristic as Heuristic, heuristic as heuristic
    from gpumem.swap.snu.ilp import Ilp as Ilp, ilp as ilp, solve_ilp as solve_ilp
    from gpumem.swap.snu.on_demand import (
        OnDemand as OnDemand,
        OnDemandRun as OnDemandRun,
        follow as follow,
        on_demand as on_demand,
    )
    from gpumem.swap.snu.residents import Tally as Tally
    from gpumem.trace.record.input_writes import Pattern as Pattern, PatternStream as PatternStream, pattern as pattern

lazy_interface(__name__)
