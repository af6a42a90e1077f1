"""The language of swapping: what a plan says, and what carrying it out does to a trace.

Read `decisions` first (`Swap`, `Recompute`, `Variant`), then `plan` (`Plan.apply`), which calls `rewrite`: new buffers
and ops. `_cuts` says where buffers are cut and where copies go in issue order; `rerun` is recomputations and variants.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.plan.decisions import (
        Decision as Decision,
        Recompute as Recompute,
        Swap as Swap,
        Variant as Variant,
    )
    from gpumem.swap.plan.plan import Plan as Plan
    from gpumem.swap.plan.rewrite import Carried as Carried

face(__name__)
