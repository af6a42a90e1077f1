"""Search: swaps, recomputations and operators in one plan, by annealing from the plans of all others.

Read `planner` first: the phases; `multistart`: where it begins. `annealing` is the loop, `walk` runs it and turns its
best state into a plan. `_swap_moves` and `_recompute_moves` (`_hold_moves`) step from one state to the next,
`_evaluate` is the compiled evaluator. `_recompute_state` says what is recomputed where, exactly, `_recompute_changes`
changes it. `_greedy_swaps` and `_greedy_recompute` are the greedy starts, `_operator_choices` variants of ops,
`_copy_orders` in which order each engine copies.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.search.planner import Search as Search, lowest as lowest, search as search

lazy_interface(__name__)
