"""What users test their own allocators, planners and devices with; no test framework needed.

`check_allocator`, `check_device` and `check_planner` are plain functions. `check_swap_planner`, `allocator_machine`,
`lifetimes`, `plans`, `requests`, `steps` and `traces` need Hypothesis, which comes with `gpumem[test]`.
`perfect` makes instances with a known optimum. `live_program` draws programs that `perform` performs on any device.
"""

from typing import TYPE_CHECKING

from gpumem.base.exports import lazy_interface

if TYPE_CHECKING:
    from gpumem.testing.allocators.check import check_allocator as check_allocator
    from gpumem.testing.allocators.contract import OPTIONAL as OPTIONAL, RULES as RULES, Witness as Witness
    from gpumem.testing.allocators.history import Player as Player, play as play
    from gpumem.testing.allocators.request_strategies import requests as requests
    from gpumem.testing.allocators.state_machine import allocator_machine as allocator_machine
    from gpumem.testing.contract_error import ContractError as ContractError
    from gpumem.testing.devices.calls import (
        AnyDevice as AnyDevice,
        Compute as Compute,
        DeviceCall as DeviceCall,
        Drop as Drop,
        Fault as Fault,
        Look as Look,
        Malloc as Malloc,
        Mixing as Mixing,
        Put as Put,
        Unmanaged as Unmanaged,
        Wrong as Wrong,
        perform as perform,
    )
    from gpumem.testing.devices.check import DEVICE_RULES as DEVICE_RULES, check_device as check_device
    from gpumem.testing.devices.programs import LiveProgram as LiveProgram, live_program as live_program
    from gpumem.testing.perfect import perfect as perfect
    from gpumem.testing.planners import PLANNER_RULES as PLANNER_RULES, check_planner as check_planner
    from gpumem.testing.requests import (
        Allocate as Allocate,
        Free as Free,
        Request as Request,
        Sync as Sync,
        Use as Use,
        WrongFree as WrongFree,
    )
    from gpumem.testing.strategies import lifetimes as lifetimes, traces as traces
    from gpumem.testing.swap_planners import SWAP_RULES as SWAP_RULES, check_swap_planner as check_swap_planner
    from gpumem.testing.training_steps import plans as plans, steps as steps

lazy_interface(__name__)
