"""Workspaces of convolutions: what an algorithm needs beside its operands, while the op runs.

Recorded traces do not have them. Read `add` first, which puts them into a trace; then `TABLE`, the algorithms, and
`Convolution`, the shapes that these depend on. `offers` lists what an op may be run by, for planners that choose.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.simulator.workspaces.adding import Offer as Offer, add as add, offers as offers
    from gpumem.simulator.workspaces.shapes import Convolution as Convolution, convolutions as convolutions
    from gpumem.simulator.workspaces.table import TABLE as TABLE, Algorithm as Algorithm

lazy_interface(__name__)
