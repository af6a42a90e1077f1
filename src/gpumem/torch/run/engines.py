"""Engines that move bytes: on the host by memory copies, on a GPU by copies beside its kernels (`on_cuda`)."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, Protocol

import numpy as np

from gpumem.runtime.residency.environment import Mover
from gpumem.torch.internals import SWAPS, copy, pointer, resize, storage_without_memory, swap, torch


class Engine(Mover, Protocol):
    """Moves the bytes of storages of one device, its `place`."""

    place: torch.device

    def follow(self) -> bool:
        """Order an op that is about to run after those before it; return whether its stream is another one."""

    def rest(self) -> None:
        """Order whatever runs next, on whichever stream, after all copies."""

    def bytes_of(self, copy: Any) -> Any:
        """Wait for a copy to the host; return its bytes as an array of `uint8`, valid until the copy is dropped."""


class OnHost:
    """The engine where the host plays the device: copies are NumPy's memory, which PyTorch's allocator does not see."""

    place = torch.device("cpu")

    def follow(self) -> bool:
        """Do nothing: the host has one stream."""
        return False

    def rest(self) -> None:
        """Do nothing: copies are done when they return."""

    def out(self, storage: torch.UntypedStorage) -> Any:
        """Copy at once."""
        size = storage.nbytes()
        copy = np.empty(size, np.uint8)
        ctypes.memmove(copy.ctypes.data, pointer(storage), size)
        return copy

    def back(self, storage: torch.UntypedStorage, copy: Any) -> None:
        """Copy at once."""
        ctypes.memmove(pointer(storage), copy.ctypes.data, storage.nbytes())

    def wait_for_copy(self, copy: Any) -> None:
        """Do nothing: no copy is in flight."""

    def drop(self, copy: Any) -> None:
        """Do nothing: the copy is freed with its last reference."""

    def bytes_of(self, copy: Any) -> Any:
        """Return the copy, which is an array."""
        return copy


def has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether there are bytes behind a storage."""
    try:
        return bool(storage.nbytes()) and pointer(storage) != 0
    except RuntimeError:  # PyTorch raises where the address is null
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
        """Give a storage the bytes of another one of its size, which is not used any more."""


class Swapped:
    """A storage without memory keeps its size, so that views of it can be made: its pointer is swapped for null."""

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

    For PyTorch 2.11, which is in no supported range, but is what images with a GPU still have. Results of ops are
    right, but a storage that is off the device says that its size is 0: `torch.save` writes a wrong file then.
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
        """Copy the bytes of another storage of its size; both have memory for that moment."""
        resize(storage, other.nbytes())
        copy(storage, other)


POINTERS: type[Pointers] = Swapped if SWAPS else Resized  # the better one that the installed PyTorch can do
