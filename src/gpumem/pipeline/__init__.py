"""The main job, and questions asked of several parts at once.

Read `pipeline` first: `plan` is the main job in one call, from a trace and a limit to a checked result (`planned`).
`swap_and_place` makes a plan whose placed trace fits a pool, `planned_vs_unmanaged` runs a plan beside the unmanaged
program, `footprint` compares pools. `requirement` says what a step takes as it is, `compare_planners` asks several
planners. `report` is what a person is shown of all this.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.check.verdict import Checked as Checked
    from gpumem.pipeline.compare_planners import (
        Attempt as Attempt,
        PlannerComparison as PlannerComparison,
        compare_planners as compare_planners,
        smallest_pool as smallest_pool,
    )
    from gpumem.pipeline.footprint import (
        Footprint as Footprint,
        by_allocators as by_allocators,
        by_planners as by_planners,
    )
    from gpumem.pipeline.pipeline import PLANNING as PLANNING, QUICK as QUICK, Case as Case, plan as plan
    from gpumem.pipeline.planned import Planned as Planned
    from gpumem.pipeline.planned_vs_unmanaged import (
        Comparison as Comparison,
        Side as Side,
        Workload as Workload,
        compare as compare,
    )
    from gpumem.pipeline.requirement import (
        Requirement as Requirement,
        peak_by_kind as peak_by_kind,
        requirement as requirement,
    )
    from gpumem.pipeline.swap_and_place import Combined as Combined, in_pool as in_pool, refine_limit as refine_limit

lazy_interface(__name__)
