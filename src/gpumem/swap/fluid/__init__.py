"""Swapping relaxed to fluid copies, as a program between breakpoints of the iteration.

Read `relax` first: windows of time for each gap, and what recomputing values costs; then `program`. It is
stated twice: in flows between breakpoints, which is quickly solved (`flows`; gaps that are alike count as one of its
`parts`), for the bound (`swap/bound`) with the breakpoints of `refine`; and in whole numbers (`whole`), for plans
(`swap/snu/ilp`).
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.swap.fluid.flows import FlowProgram as FlowProgram
    from gpumem.swap.fluid.program import FluidProgram as FluidProgram, Solution as Solution
    from gpumem.swap.fluid.refine import Refined as Refined, refine as refine
    from gpumem.swap.fluid.relax import Fluid as Fluid, in_a_row as in_a_row, relax as relax
    from gpumem.swap.fluid.whole import PlacedProgram as PlacedProgram, WholeProgram as WholeProgram
    from gpumem.swap.linear_programs import Solved as Solved

lazy_interface(__name__)
