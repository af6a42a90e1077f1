"""Running a placed trace with real bytes: the emulator, the simulator and CUDA behind one protocol.

Read `backend` first, the protocol; `program` runs a trace on any of them. `gpumem.execute.cuda` is imported by those
who have a GPU; everything here works without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.execute.backend import Backend as Backend
    from gpumem.execute.backend import Call as Call
    from gpumem.execute.backend import HostMemory as HostMemory
    from gpumem.execute.backend import Token as Token
    from gpumem.execute.backend import Work as Work
    from gpumem.execute.emulate import Emulator as Emulator
    from gpumem.execute.generic import GenericOp as GenericOp
    from gpumem.execute.generic import carried as carried
    from gpumem.execute.generic import initial as initial
    from gpumem.execute.generic import scaled as scaled
    from gpumem.execute.layout import Block as Block
    from gpumem.execute.layout import Layout as Layout
    from gpumem.execute.orders import Order as Order
    from gpumem.execute.orders import in_issue_order as in_issue_order
    from gpumem.execute.orders import late as late
    from gpumem.execute.orders import shuffled as shuffled
    from gpumem.execute.program import Launch as Launch
    from gpumem.execute.program import Program as Program
    from gpumem.execute.program import Views as Views
    from gpumem.execute.program import prepare as prepare
    from gpumem.execute.program import run as run
    from gpumem.execute.races import Race as Race
    from gpumem.execute.simulated import Simulator as Simulator

face(__name__)
