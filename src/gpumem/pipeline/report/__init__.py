"""What a person is shown: tables and pictures.

`text` is aligned tables, sizes and times in human units; `plan` a trace as it runs and what a plan does to it,
`by_module` whose tensors it moves; `plot`, `figures` and `first_iterations` the pictures, for which matplotlib is
needed. This knows traces, plans and timelines, not how they were made.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.base.units import human as human, human_ns as human_ns, percent as percent
    from gpumem.pipeline.report import plot as plot
    from gpumem.pipeline.report.by_module import Handled as Handled, by_module as by_module
    from gpumem.pipeline.report.figures import Figure as Figure, Series as Series
    from gpumem.pipeline.report.first_iterations import first_iterations as first_iterations
    from gpumem.pipeline.report.plan import DecisionCounts as DecisionCounts, Run as Run
    from gpumem.pipeline.report.text import (
        columns as columns,
        header as header,
        unswapped as unswapped,
        versus as versus,
    )

lazy_interface(__name__)
