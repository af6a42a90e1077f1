"""How bytes move: by the host's own hands, or by copies beside a GPU's kernels (`on_cuda`)."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from gpumem.runtime.residency.environment import Mover
from gpumem.torch.internals import hollow, pointer, swap, torch


class Engine(Mover, Protocol):
    """What moves the bytes of storages of one device, its `place`."""

    place: torch.device

    def follow(self) -> bool:
        """Let an op that is about to run be behind those before it; return whether it computes elsewhere than they."""

    def rest(self) -> None:
        """Let whatever runs next, wherever, be behind what was done."""

    def bytes_of(self, copy: Any) -> Any:
        """Wait for a copy out; return its bytes, as an array of `uint8` that may be used again later."""


class OnHost:
    """The twin for a device that is the host: copies are NumPy's memory, which PyTorch's allocator does not see."""

    place = torch.device("cpu")

    def follow(self) -> bool:
        """All runs at once."""
        return False

    def rest(self) -> None:
        """It is."""

    def out(self, storage: torch.UntypedStorage) -> Any:
        """Copy at once."""
        size = storage.nbytes()
        copy = np.empty(size, np.uint8)
        ctypes.memmove(copy.ctypes.data, pointer(storage), size)
        return copy

    def back(self, storage: torch.UntypedStorage, copy: Any) -> None:
        """Copy at once."""
        ctypes.memmove(pointer(storage), copy.ctypes.data, storage.nbytes())

    def settle(self, copy: Any) -> None:
        """Nothing is under way."""

    def drop(self, copy: Any) -> None:
        """It is freed with its last reference."""

    def bytes_of(self, copy: Any) -> Any:
        """They are there."""
        return copy


def has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether there are bytes behind a storage."""
    try:
        return bool(storage.nbytes()) and pointer(storage) != 0
    except RuntimeError:  # PyTorch refuses to tell an address that is none
        return False


class Pointers:
    """How a storage loses its memory and gets it back: by its pointer, so it keeps its size, and views can be made."""

    @staticmethod
    def empty(storage: torch.UntypedStorage) -> None:
        """Give a storage's memory back to the allocator."""
        swap(storage, hollow(storage.nbytes(), storage.device))

    @staticmethod
    def fill(storage: torch.UntypedStorage, size: int) -> None:
        """Give a storage memory."""
        swap(storage, torch.UntypedStorage(size, device=storage.device))

    @staticmethod
    def adopt(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
        """Let a storage have the memory of another one of its size."""
        swap(storage, other)
