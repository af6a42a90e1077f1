"""Search: swaps, values made again and operators in one plan, by annealing from the plans of all others.

Read `planner` first: the phases; `race` and `starts`: where it begins. `annealing` holds a state and turns it into a
plan, `_moves` and `_drop_steps` step from one to the next. `_engines` is the compiled evaluator, `_drops` says what is
made again where, exactly, `_relief` drops greedily, `_ways` are the implementations of ops.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.swap.search.planner import lowest as lowest, search as search

face(__name__)
