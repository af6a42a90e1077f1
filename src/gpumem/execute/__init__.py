"""Running a placed trace with real bytes: the emulator, the simulator and CUDA behind one protocol.

`gpumem.execute.cuda` is imported by those who have a GPU; everything here works without one.
"""

from gpumem.execute.backend import Backend, Call, HostMemory, Token, Work
from gpumem.execute.emulate import Emulator
from gpumem.execute.generic import GenericOp, carried, initial, scaled
from gpumem.execute.layout import Block, Layout
from gpumem.execute.orders import Order, in_issue_order, late, shuffled
from gpumem.execute.program import Launch, Program, Views, prepare, run
from gpumem.execute.races import Race
from gpumem.execute.simulated import Simulator

__all__ = [
    "Backend",
    "Block",
    "Call",
    "Emulator",
    "GenericOp",
    "HostMemory",
    "Launch",
    "Layout",
    "Order",
    "Program",
    "Race",
    "Simulator",
    "Token",
    "Views",
    "Work",
    "carried",
    "in_issue_order",
    "initial",
    "late",
    "prepare",
    "run",
    "scaled",
    "shuffled",
]
