"""Pool planners: `Trace -> Placement`, and online allocators.

Read `smartpool/offline` first, the paper's two fits (`_interval_index` makes them fast), then `allocators/protocol`:
the protocol of allocators, the order in which a trace asks them, and `replay`. `search` goes below greedy, `allocators`
are those of the frameworks, `smartpool/online` is SmartPool as an allocator, which finds the iteration itself.
`PLANNERS` and `ALLOCATORS` name them. `stacked` is for jobs that share a device from both ends of its memory.

The contract of a planner is `planner(trace, *, alignment=256, ...) -> Placement`: each offset is a multiple of
`alignment` bytes (256 suits CUDA, use 1 for bare instances), host buffers are left alone. `ValueError` for an alignment
outside [1, 2**40]. Those of `search` take `fixed` as well, offsets in bytes of buffers that lie already, by id;
`ValueError` for one that overlaps, is not aligned, or is no device buffer. What they return is never higher than that
of `best_fit` and `first_fit`, and its `bound` is the peak live bytes, or more where that is proved. `greedy`, `search`
and `exact` take `seconds`, the whole time: they look at the clock between their steps and return the lowest placement
so far, of one step at least (see `gpumem.base.work`). What comes out then depends on the machine; without `seconds` all
planners are deterministic.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.pool.allocators import (
        BFC as BFC,
        Buddy as Buddy,
        Caching as Caching,
        CnMem as CnMem,
        MultiStream as MultiStream,
        Native as Native,
    )
    from gpumem.pool.allocators.protocol import Allocator as Allocator, Pool as Pool, replay as replay
    from gpumem.pool.planners import ALLOCATORS as ALLOCATORS, PLANNERS as PLANNERS
    from gpumem.pool.search import exact as exact, greedy as greedy, search as search
    from gpumem.pool.smartpool import SmartPool as SmartPool
    from gpumem.pool.smartpool.offline import best_fit as best_fit, colour as colour, first_fit as first_fit
    from gpumem.pool.stacked import stacked as stacked

lazy_interface(__name__)
