"""Numba's external memory manager: `NUMBA_CUDA_MEMORY_MANAGER=gpumem.runtime.emm`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load what Numba asks of the module that the environment names, only then: it needs numba-cuda."""
    if name != "_numba_memory_manager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpumem.runtime.emm.manager import MemoryManager

    return MemoryManager
