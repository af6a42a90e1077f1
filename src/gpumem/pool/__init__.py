"""Pool planners: `Trace -> Placement`, and online allocators; tables name them for the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.pool.bfc import BFC as BFC
    from gpumem.pool.buddy import Buddy as Buddy
    from gpumem.pool.caching import Caching as Caching
    from gpumem.pool.cnmem import CnMem as CnMem
    from gpumem.pool.exact import exact as exact
    from gpumem.pool.greedy import greedy as greedy
    from gpumem.pool.native import Native as Native
    from gpumem.pool.online import Pool as Pool
    from gpumem.pool.planners import ALLOCATORS as ALLOCATORS
    from gpumem.pool.planners import PLANNERS as PLANNERS
    from gpumem.pool.search import search as search
    from gpumem.pool.smartpool import best_fit as best_fit
    from gpumem.pool.smartpool import first_fit as first_fit

face(__name__)
