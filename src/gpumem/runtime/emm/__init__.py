"""Numba's external memory manager: `NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm`.

`configure`, `statistics` and `report` are for the program; `manager` has them, and needs numba-cuda, so it is loaded
when one of them is asked for.
"""

from typing import Any

PUBLIC = ("ManagerStatistics", "MemoryManager", "configure", "report", "statistics")


def __getattr__(name: str) -> Any:
    """Load a public name, or the one that Numba asks of the module that the environment names."""
    if name != "_numba_memory_manager" and name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpumem.runtime.emm import manager

    return getattr(manager, "MemoryManager" if name == "_numba_memory_manager" else name)
