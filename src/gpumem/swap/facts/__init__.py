"""Accounts that every planner asks: what is held, and when.

`pinned` is what a plan holds in pinned host memory, `reruns` what recomputations need beside all else, `made_again`
what a whole plan of them holds and takes, `room` what copies may hold under a limit for longer than they must, `times`
when ops run, `link` when a link is free, `places` the load also between ops. `_tree` adds to arcs of the circle and
asks for the largest, in O(log n).
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import face

if TYPE_CHECKING:
    from gpumem.swap.facts.link import LinkTimes as LinkTimes
    from gpumem.swap.facts.load import Room as Room
    from gpumem.swap.facts.pinned import Pinned as Pinned
    from gpumem.swap.facts.times import Times as Times

face(__name__)
