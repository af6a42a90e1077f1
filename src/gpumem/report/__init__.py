"""What a person is shown: tables and pictures.

`text` is aligned tables, sizes and times in human units; `plan` what a plan costs and saves; `plot` the pictures, for
which matplotlib is needed. This room knows traces, plans and timelines, not how they were made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.report import plot as plot
    from gpumem.report.plan import Report as Report
    from gpumem.report.plan import Run as Run
    from gpumem.report.plot import Figure as Figure
    from gpumem.report.plot import Series as Series
    from gpumem.report.text import columns as columns
    from gpumem.report.text import header as header
    from gpumem.report.text import human as human
    from gpumem.report.text import human_ns as human_ns
    from gpumem.report.text import percent as percent

face(__name__)
