"""Placements below greedy: a search over canonical placements, and an exact one.

Read `planner` first. `_problem` is what is searched, `_depth_first` the search (`_packing` its state and what cannot
fit, `_parts` what falls apart, `_moves` a step), `greedy` the orders to start from, `ejection` the local search for
what is tight for long, `annealing` the end, over orders; `exact` proves.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.pool.search.exact import exact as exact
    from gpumem.pool.search.greedy import greedy as greedy
    from gpumem.pool.search.planner import search as search

lazy_interface(__name__)
