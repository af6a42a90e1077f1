"""MO-SOS: offloading, recomputation and the choice of operators in one integer program.

Read `nodes` first: what the program decides about, and what it decides. Then `rules`: what a schedule may do, and what
is known of one that was found. `program` states the paper's (1)-(18), over the variables that `scope` leaves; `solve`
solves it, `rounding` finds a schedule near its linear relaxation; `schedule` is what a solution says, in whole bytes.
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.mosos.nodes import Implementation as Implementation, Nodes as Nodes, Schedule as Schedule
    from gpumem.swap.mosos.rounding import automatic as automatic, rounded as rounded
    from gpumem.swap.mosos.rules import Proved as Proved, Rules as Rules
    from gpumem.swap.mosos.solve import least as least, relaxed as relaxed, solve as solve

face(__name__)
