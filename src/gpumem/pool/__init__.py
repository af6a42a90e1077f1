"""Pool planners: `Trace -> Placement`, and online allocators.

Read `smartpool` first, the paper's two fits, then `online`: the protocol of allocators, and `replay`. `search` goes
below greedy, `allocators` are those of the frameworks, `runtime` is SmartPool without a trace. `PLANNERS` and
`ALLOCATORS` name them for the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.pool.allocators.bfc import BFC as BFC
    from gpumem.pool.allocators.buddy import Buddy as Buddy
    from gpumem.pool.allocators.caching import Caching as Caching
    from gpumem.pool.allocators.cnmem import CnMem as CnMem
    from gpumem.pool.allocators.native import Native as Native
    from gpumem.pool.online import Allocator as Allocator
    from gpumem.pool.online import Pool as Pool
    from gpumem.pool.online import replay as replay
    from gpumem.pool.planners import ALLOCATORS as ALLOCATORS
    from gpumem.pool.planners import PLANNERS as PLANNERS
    from gpumem.pool.runtime import SmartPool as SmartPool
    from gpumem.pool.search.exact import exact as exact
    from gpumem.pool.search.greedy import greedy as greedy
    from gpumem.pool.search.planner import search as search
    from gpumem.pool.smartpool import best_fit as best_fit
    from gpumem.pool.smartpool import colour as colour
    from gpumem.pool.smartpool import first_fit as first_fit

face(__name__)
