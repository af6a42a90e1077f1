"""The language of swapping: what a plan says, and what carrying it out does to a trace.

Read `decisions` first (`Swap`, `Recompute`, `Hold`, `Variant`), then `plan` (`Plan.apply`), which calls `rewrite`. That
goes by phases: `_cuts` checks what is decided, `_issue_order` says when it is issued, `_new_buffers` and `_new_ops`
make the new trace. `values` says which op made what and what can be recomputed, `replay` which ops are recomputed at a
place and where they read and write; `_plan_file` reads plans.
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
