"""Search: plans by annealing, where no published planner gets to.

Read `planner` first: the phases. `annealing` holds a state and turns it into a plan, `_moves` steps from one to the
next, `_engines` is the compiled evaluator.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.search.planner import lowest as lowest, search as search

face(__name__)
