"""How a program becomes a trace: what it allocates and runs, written down, and where in that an iteration begins.

A `Recorder` is told what happens; its `Recording` has one iteration cut out. `period` finds iterations by what repeats,
`input_writes` by when an input is written.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.trace.record._repeat_search import Period as Period
    from gpumem.trace.record.period import BlockEvent as BlockEvent, Detector as Detector, detect as detect
    from gpumem.trace.record.recorder import Exec as Exec, Recorder as Recorder
    from gpumem.trace.record.recording import BEFORE as BEFORE, NEVER as NEVER, Recording as Recording

lazy_interface(__name__)
