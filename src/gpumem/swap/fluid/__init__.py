"""Swapping relaxed to fluid copies, as a program between breakpoints of the iteration.

Read `relax` first: windows of time for each gap; then `program`, which is linear for the bound (`swap/bound`) and has
whole numbers for the plan (`swap/snu/ilp`).
"""

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.swap.fluid.program import FluidProgram as FluidProgram, Solution as Solution
    from gpumem.swap.fluid.refine import refine as refine
    from gpumem.swap.fluid.relax import Fluid as Fluid, relax as relax

face(__name__)
