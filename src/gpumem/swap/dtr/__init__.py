"""Dynamic Tensor Rematerialization (Kirisame et al. 2021): its runtime, simulated, and what it does as a plan.

Read `online` first, the runtime; `storages` says what may be evicted and from what it is recomputed, `scores` what is
evicted first, with `_classes` for the neighbours, and `_eviction` what an eviction changes; `translate` turns what the
runtime did into decisions, and `planner` searches for the budget that the runtime should have.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.dtr._device import ResidencyIntervals as ResidencyIntervals
    from gpumem.swap.dtr.online import OnlineRun as OnlineRun
    from gpumem.swap.dtr.planner import Dtr as Dtr, dtr as dtr, online as online

lazy_interface(__name__)
