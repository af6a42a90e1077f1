"""Search: swaps, values made again and operators in one plan, by annealing from the plans of all others.

Read `planner` first: the phases; `multistart`: where it begins. `annealing` holds a state and turns it into a plan,
`_moves` and `_recompute_moves` step from one to the next. `_evaluate` is the compiled evaluator, `_recompute_state`
says what is made again where, exactly, `_greedy_recompute` drops greedily, `_operator_choices` are implementations of
ops, `_copy_orders` in which order each engine copies.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.search.planner import Search as Search, lowest as lowest, search as search

lazy_interface(__name__)
