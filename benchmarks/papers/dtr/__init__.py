"""Figure 2 of DTR (Kirisame et al. 2021): the overhead of rematerialization over the budget, from the paper's own logs.

Read `logs` first: a log of the prototype becomes a trace. `measured` has rows of ours by heuristic, beside their
simulator, which `simrd` runs from a checkout, and beside other planners. `python -m benchmarks.papers.dtr` prints them.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from benchmarks.papers.dtr.logs import of_lines as of_lines, read_log as read_log
    from benchmarks.papers.dtr.measured import (
        BUDGETS as BUDGETS,
        MACHINE as MACHINE,
        PRINTED as PRINTED,
        Row as Row,
        measure as measure,
        table as table,
    )
    from benchmarks.papers.dtr.simrd import simulated as simulated

lazy_interface(__name__)
