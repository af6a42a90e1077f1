"""MO-SOS: offloading, recomputation and the choice of operators in one integer program.

Read `nodes` first: what the program decides about, and what it decides.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.mosos.nodes import Implementation as Implementation, Nodes as Nodes, Schedule as Schedule

face(__name__)
