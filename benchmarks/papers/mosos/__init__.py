"""Figures 2, 4 and 5 of MO-SOS (Wei et al. 2024): what operators need, what a step takes, and where its time goes.

Read `measured` first: the paper's figures, and rows of ours; then `tables`: tables and pictures of them.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from benchmarks.papers.mosos.measured import (
        ALONE as ALONE,
        HEADROOM as HEADROOM,
        NO_LIMIT as NO_LIMIT,
        OURS as OURS,
        RATIOS as RATIOS,
        REDUCTIONS as REDUCTIONS,
        STARTED as STARTED,
        WAITS as WAITS,
        WAYS as WAYS,
        headroom as headroom,
        limit_of as limit_of,
        reductions as reductions,
        spent as spent,
        steps as steps,
        trade_off as trade_off,
    )
    from benchmarks.papers.mosos.tables import (
        TABLES as TABLES,
        figures as figures,
        reduction_table as reduction_table,
        spent_table as spent_table,
        step_table as step_table,
    )

lazy_interface(__name__)
