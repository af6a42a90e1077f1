"""Pool planners: `Trace -> Placement`, and online allocators.

Read `smartpool` first, the paper's two fits, then `online`: the protocol of allocators, and `replay`. `search` goes
below greedy, `allocators` are those of the frameworks, `runtime` is SmartPool without a trace. `PLANNERS` and
`ALLOCATORS` name them for the command line.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.pool.allocators import BFC as BFC, Buddy as Buddy, Caching as Caching, CnMem as CnMem, Native as Native
    from gpumem.pool.online import Allocator as Allocator, Pool as Pool, replay as replay
    from gpumem.pool.planners import ALLOCATORS as ALLOCATORS, PLANNERS as PLANNERS
    from gpumem.pool.runtime import SmartPool as SmartPool
    from gpumem.pool.search import exact as exact, greedy as greedy, search as search
    from gpumem.pool.smartpool import best_fit as best_fit, colour as colour, first_fit as first_fit

face(__name__)
