"""How bytes move: by the host's own hands, or by copies beside a GPU's kernels (`on_cuda`)."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, Protocol

import numpy as np

from gpumem.runtime.residency.environment import Mover
from gpumem.torch.internals import SWAPS, copy, storage_without_memory, pointer, resize, swap, torch


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


class Pointers(Protocol):
    """How a storage loses its memory and gets it back: an `Emptier` of `residency`, which can also `adopt`.

    `views`: whether views can be made of a storage that has no memory.
    """

    views: ClassVar[bool]

    @staticmethod
    def empty(storage: torch.UntypedStorage) -> None:
        """Give a storage's memory back to the allocator."""

    @staticmethod
    def fill(storage: torch.UntypedStorage, size: int) -> None:
        """Give a storage memory of a size."""

    @staticmethod
    def adopt(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
        """Let a storage have what is in another one of its size, which nobody needs any more."""


class Swapped:
    """A storage without memory keeps its size, so that views of it can be made: its pointer is swapped for none."""

    views: ClassVar[bool] = True

    @staticmethod
    def empty(storage: torch.UntypedStorage) -> None:
        """Give a storage's memory back to the allocator."""
        swap(storage, storage_without_memory(storage.nbytes(), storage.device))

    @staticmethod
    def fill(storage: torch.UntypedStorage, size: int) -> None:
        """Give a storage memory."""
        swap(storage, torch.UntypedStorage(size, device=storage.device))

    @staticmethod
    def adopt(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
        """Let a storage have the memory of another one of its size."""
        swap(storage, other)


class Resized:
    """Where pointers cannot be swapped, as before PyTorch 2.12: a storage without memory has no size, and so no views.

    For PyTorch 2.11, which is in no range, but is what images with a GPU still have. Ops come out right, but whoever
    asks a storage for its size is told 0 while it is away: `torch.save` writes a wrong file then.
    """

    views: ClassVar[bool] = False

    @staticmethod
    def empty(storage: torch.UntypedStorage) -> None:
        """Give a storage's memory back to the allocator."""
        resize(storage, 0)

    @staticmethod
    def fill(storage: torch.UntypedStorage, size: int) -> None:
        """Give a storage memory."""
        resize(storage, size)

    @staticmethod
    def adopt(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
        """Copy what another storage of its size has; both have memory for that moment."""
        resize(storage, other.nbytes())
        copy(storage, other)


POINTERS: type[Pointers] = Swapped if SWAPS else Resized  # of the PyTorch that is installed
