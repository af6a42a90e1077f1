"""AutoSwap: swaps by priority scores (section IV of the SmartPool and AutoSwap paper).

Read `planner` first: the algorithm in one function. `scores` ranks the gaps,
`schedule` places their copies. `bayes` tunes a mix of the scores, on `_gaussian`.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.autoswap.bayes import Bayes as Bayes, bayes as bayes
    from gpumem.swap.autoswap.planner import AutoSwap as AutoSwap, autoswap as autoswap, candidates as candidates
    from gpumem.swap.autoswap.scores import SCORES as SCORES, Candidates as Candidates

lazy_interface(__name__)
