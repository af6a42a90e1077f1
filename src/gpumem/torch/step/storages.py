"""Which storage is which block of the recording, from its first sight to its death."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from gpumem.torch.internals import torch

NOTHING = -1  # the block of a storage of no bytes: there is none


class Storages:
    """Blocks by storage; a storage's death is told by a weak reference to it.

    A block may outlive its storage: where the engine adds gradients up out of place only because somebody watches, the
    sum takes the place of what was added to (`succeed`).
    """

    def __init__(self, made: Callable[[torch.Tensor, int], int]) -> None:
        self.made = made  # a block for a storage of so many bytes, seen first in this tensor
        self.block: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.size: dict[int, int] = {}
        self.dead: list[int] = []
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def of(self, tensor: torch.Tensor) -> int:
        """Return the block of a tensor's storage; a new one where the storage was not seen before."""
        storage = tensor.untyped_storage()
        block = self.block.get(storage._cdata)
        return self._new(tensor, storage) if block is None else block

    def all_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Return the blocks of tensors that have bytes."""
        found = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            block = self.block.get(storage._cdata)
            if block is None:
                block = self._new(tensor, storage)
            if block != NOTHING:
                found.append(block)
        return found

    def _new(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
        size = storage.nbytes()
        if not size:
            return NOTHING
        block = self.made(tensor, size)
        self.size[block] = size
        self._watch(storage._cdata, storage, block)
        return block

    def known(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage was seen before."""
        return tensor.untyped_storage()._cdata in self.block

    def resized(self, tensor: torch.Tensor) -> bool:
        """Whether a storage that was seen has another size by now."""
        storage = tensor.untyped_storage()
        block = self.block.get(storage._cdata, NOTHING)
        return block != NOTHING and int(storage.nbytes()) != self.size[block]

    def forget(self, tensor: torch.Tensor) -> None:
        """Let a resized storage be another block from here on."""
        self._gone(tensor.untyped_storage()._cdata)

    def succeed(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Let a fresh storage be the block of an older one."""
        storage = new.untyped_storage()
        self._watch(storage._cdata, storage, self.of(old))

    def _watch(self, key: int, storage: torch.UntypedStorage, block: int) -> None:
        self.block[key] = block
        self.owners[block] = self.owners.get(block, 0) + 1
        self._watched[key] = weakref.ref(storage, lambda _: self._gone(key))

    def _gone(self, key: int) -> None:
        block = self.block.pop(key)
        del self._watched[key]
        self.owners[block] -= 1
        if not self.owners[block]:
            self.dead.append(block)
