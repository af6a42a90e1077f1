"""Swapping as in the SNU thesis: on demand, and by its heuristic.

Read `on_demand` first, with `lru`, the run that decides; then `heuristic`, with `overlap`, where the links have time.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.snu.heuristic import heuristic as heuristic
    from gpumem.swap.snu.on_demand import OnDemand as OnDemand, follow as follow, on_demand as on_demand

face(__name__)
