"""Running a placed trace with real bytes: the emulator, the simulator and CUDA behind one protocol.

Read `backend` first, the protocol; `program` runs a trace on any of them. `gpumem.execute.cuda` is imported by those
who have a GPU; everything here works without one.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.execute.backend import (
        Arrays as Arrays,
        Backend as Backend,
        Call as Call,
        HostMemory as HostMemory,
        Work as Work,
    )
    from gpumem.execute.emulator import (
        Emulator as Emulator,
        Order as Order,
        in_issue_order as in_issue_order,
        late as late,
        shuffled as shuffled,
    )
    from gpumem.execute.generic import (
        GenericOp as GenericOp,
        carried as carried,
        in_units as in_units,
        initial as initial,
        scaled as scaled,
    )
    from gpumem.execute.layout import Block as Block, Layout as Layout
    from gpumem.execute.program import Program as Program, prepare as prepare, run as run
    from gpumem.execute.races import Race as Race
    from gpumem.execute.simulated import Simulator as Simulator
    from gpumem.execute.views import Launch as Launch, Views as Views

lazy_interface(__name__)
