"""The language of swapping: what a plan says, and what carrying it out does to a trace.

Read `decisions` first (`Swap`, `Recompute`, `Hold`, `Variant`), then `plan` (`Plan.apply`), which calls `rewrite`: new
buffers and ops. `values` says what an op made and what can be made again, `replay` which ops run again at a place and
where they read and write; `_cuts` where buffers are cut and where copies and reruns go in issue order.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.plan.decisions import (
        Decision as Decision,
        Hold as Hold,
        Recompute as Recompute,
        Swap as Swap,
        Variant as Variant,
    )
    from gpumem.swap.plan.plan import Plan as Plan
    from gpumem.swap.plan.rewrite import Carried as Carried

lazy_interface(__name__)
