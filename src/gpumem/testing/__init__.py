"""What users test their own allocators and planners with; no test framework needed.

`check_allocator` and `check_planner` are plain functions. `allocator_machine`, `lifetimes`, `requests` and `traces`
need Hypothesis, which comes with `gpumem[test]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem._face import face

if TYPE_CHECKING:
    from gpumem.testing.allocators import check_allocator as check_allocator
    from gpumem.testing.contract import OPTIONAL as OPTIONAL
    from gpumem.testing.contract import RULES as RULES
    from gpumem.testing.contract import ContractError as ContractError
    from gpumem.testing.contract import Witness as Witness
    from gpumem.testing.history import Player as Player
    from gpumem.testing.history import play as play
    from gpumem.testing.planners import PLANNER_RULES as PLANNER_RULES
    from gpumem.testing.planners import check_planner as check_planner
    from gpumem.testing.request import Allocate as Allocate
    from gpumem.testing.request import Free as Free
    from gpumem.testing.request import Request as Request
    from gpumem.testing.request import WrongFree as WrongFree
    from gpumem.testing.stateful import allocator_machine as allocator_machine
    from gpumem.testing.strategies import lifetimes as lifetimes
    from gpumem.testing.strategies import requests as requests
    from gpumem.testing.strategies import traces as traces

face(__name__)
