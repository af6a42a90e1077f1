"""MO-SOS: offloading, recomputation and the choice of operators in one integer program.

Read `problem` first: what the program decides about, what a schedule may do, and what is known of one that was found.
`program` states the paper's (1)-(18), over the variables that `scope` leaves; `solve` solves it, `rounding` finds a
schedule near its linear relaxation; `schedule` is what a solution says, in whole bytes.

Real traces: `stages` cuts them into nodes, `translate` makes a plan of a schedule, `planners` has `mosos` and its
restrictions, Checkmate and STR; `work` is what these do one after the other. `waiting`, which is not the paper's, has
stages that wait for copies.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.facts.operators import operators as operators
    from gpumem.swap.mosos.planners import (
        Mosos as Mosos,
        checkmate as checkmate,
        checkmate_auto as checkmate_auto,
        mosos as mosos,
        solve_mosos as solve_mosos,
        str_ as str_,
        str_auto as str_auto,
    )
    from gpumem.swap.mosos.problem import (
        Implementation as Implementation,
        Nodes as Nodes,
        Proved as Proved,
        Rules as Rules,
        Schedule as Schedule,
    )
    from gpumem.swap.mosos.rounding import automatic as automatic, rounded as rounded
    from gpumem.swap.mosos.solve import least as least, solve as solve
    from gpumem.swap.mosos.stages import Stages as Stages
    from gpumem.swap.mosos.translate import plan_of as plan_of

lazy_interface(__name__)
