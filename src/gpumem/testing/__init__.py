"""What users test their own allocators and planners with; no test framework needed.

`check_allocator` and `check_planner` are plain functions. `allocator_machine`, `lifetimes`, `requests` and `traces` are
loaded at first use and need Hypothesis, which comes with `gpumem[test]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from gpumem.testing.allocators import check_allocator
from gpumem.testing.contract import OPTIONAL, RULES, ContractError, Witness
from gpumem.testing.history import Player, play
from gpumem.testing.planners import PLANNER_RULES, check_planner
from gpumem.testing.request import Allocate, Free, Request, WrongFree

if TYPE_CHECKING:
    from gpumem.testing.stateful import allocator_machine
    from gpumem.testing.strategies import lifetimes, requests, traces

__all__ = [
    "OPTIONAL",
    "PLANNER_RULES",
    "RULES",
    "Allocate",
    "ContractError",
    "Free",
    "Player",
    "Request",
    "Witness",
    "WrongFree",
    "allocator_machine",
    "check_allocator",
    "check_planner",
    "lifetimes",
    "play",
    "requests",
    "traces",
]

_HOME = {"allocator_machine": "stateful", "lifetimes": "strategies", "requests": "strategies", "traces": "strategies"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gpumem.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gpumem.testing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
