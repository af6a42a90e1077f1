"""What every planner asks: what a limit means, what is held and when, what can be recomputed and at what cost.

`limits` says whether a limit can be met, and which plan is the best for it by the clock. `load` follows live bytes
at ops and between them, `pinned` what a plan holds in pinned host memory; `times` says when ops run, `link` when a link
is free. `recompute` says what can be recomputed, `recompute_scratch` what that needs beside all else, `recompute_cost`
what a whole plan of it holds and takes; `operators` which implementations ops have. `segment_tree` adds to arcs of the
circle and asks for the largest, in O(log n); `biggest` finds the biggest gap over an op; `union_find` has sets
that only grow together.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.facts.link import LinkTimes as LinkTimes
    from gpumem.swap.facts.load import LiveBytes as LiveBytes
    from gpumem.swap.facts.pinned import Pinned as Pinned
    from gpumem.swap.facts.times import Times as Times

lazy_interface(__name__)
