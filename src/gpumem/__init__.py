"""GPU memory in deep-learning training: where to put every buffer, what to swap and when.

Everything is ``Trace -> Trace -> Placement -> Timeline``. The names below are loaded at first use, so
that ``import gpumem`` costs nothing and pulls in neither NumPy nor Numba.

>>> import gpumem
>>> trace = gpumem.bundled("mlp3")
>>> trace.n
40
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumem.errors import Infeasible, NotReached, PlacementError
    from gpumem.io import bundled, read, write
    from gpumem.machine import Machine
    from gpumem.placement import Placement
    from gpumem.pool.smartpool import best_fit, first_fit
    from gpumem.recorder import Recorder, Recording
    from gpumem.swap.autoswap import autoswap
    from gpumem.swap.plan import Plan, Recompute, Swap, Variant
    from gpumem.timeline import Timeline
    from gpumem.trace import Trace

__version__ = "0.1.0"

_HOME = {
    "Infeasible": "errors",
    "Machine": "machine",
    "NotReached": "errors",
    "Placement": "placement",
    "PlacementError": "errors",
    "Plan": "swap.plan",
    "Recompute": "swap.plan",
    "Recorder": "recorder",
    "Recording": "recorder",
    "Swap": "swap.plan",
    "Timeline": "timeline",
    "Trace": "trace",
    "Variant": "swap.plan",
    "autoswap": "swap.autoswap",
    "best_fit": "pool.smartpool",
    "bundled": "io",
    "first_fit": "pool.smartpool",
    "read": "io",
    "write": "io",
}

__all__ = [
    "Infeasible",
    "Machine",
    "NotReached",
    "Placement",
    "PlacementError",
    "Plan",
    "Recompute",
    "Recorder",
    "Recording",
    "Swap",
    "Timeline",
    "Trace",
    "Variant",
    "autoswap",
    "best_fit",
    "bundled",
    "first_fit",
    "read",
    "write",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gpumem' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gpumem.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
