"""Storages, one cell each, from the first op that sees them to their death; runs and recorders share the table."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpumem.runtime.residency.environment import HostCopy, Movable
from gpumem.torch.internals import torch

# Bytes up to which whole numbers on the host may be read by C++ before an op: not tuned; a generator's state has 5,056.
FEW = 2**14
_PARTS = {  # the strided tensors that tensors of other layouts are made of, by layout
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}

NOTHING = -1  # the block of a storage that no recorder has seen


class Cell(Movable):
    """A storage, as runs and recorders know it.

    `block` is its number in the recording whose number is `recording`. `values` is what is known of its bytes, where it
    has none, and `source` the op that wrote them: see `gpumem.torch.values`.
    """

    recording = 0
    block = NOTHING
    values: Any = None
    source = ""

    ref: weakref.ref[torch.UntypedStorage]

    def __init__(self, key: int, size: int, pinned: str) -> None:
        self.key, self.size, self.pinned = key, size, pinned

    def __repr__(self) -> str:
        return f"Cell({self.size} bytes, {self.where.value})"

    @property
    def storage(self) -> torch.UntypedStorage | None:
        """The storage; None once it is dead."""
        return self.ref()


class Storages:
    """Cells by storage; a weak reference puts the cell of a dead one into `dead`; `reap` takes it off the books."""

    def __init__(self) -> None:
        self.by_key: dict[int, Cell] = {}
        self.dead: deque[Cell] = deque()
        self.on_reaped: Callable[[Cell], None] | None = None  # called with each

    def reap(self) -> None:
        """Take cells whose storages have died since the last call off the books."""
        while self.dead:
            cell = self.dead.popleft()
            if self.on_reaped is not None:
                self.on_reaped(cell)

    def of(self, tensors: Sequence[torch.Tensor]) -> list[Cell]:
        """The cells of tensors that have bytes, each once, in order; new ones where a storage was not seen before."""
        by_key = self.by_key
        try:  # mostly all are known
            cells = [by_key[tensor.untyped_storage()._cdata] for tensor in tensors]
        except (KeyError, NotImplementedError, RuntimeError):
            cells = [cell for tensor in tensors for cell in self.made(tensor, given=True)]
        return [*dict.fromkeys(cells)] if len(cells) > 1 else cells

    def made(self, tensor: torch.Tensor, given: bool = False) -> list[Cell]:
        """As `of` one tensor, which mostly is new: an op made it, or it was `given` to an op that is to run."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return self.of([*parts(tensor)])
        cell = self.by_key.get(storage._cdata)
        if cell is None:
            if tensor._is_zerotensor():  # forward gradients begin with one: it has a size, and no bytes
                return []
            host = tensor.is_cpu
            cell = self._new(storage, host)
            if cell is not None and host:
                cell.exposed = _is_read_past_ops(tensor, given)
        return [] if cell is None else [cell]

    def known(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor whose storage was seen before."""
        return self.by_key.get(tensor.untyped_storage()._cdata)

    def _new(self, storage: torch.UntypedStorage, host: bool) -> Cell | None:
        size = storage.nbytes()
        if not size:
            return None
        key, place = storage._cdata, storage.device
        cell = Cell(key, size, _pinned(storage, host))
        by_key, dead, dying = self.by_key, self.dead, self.dying

        def on_death(_: Any) -> None:  # runs at any moment, in any thread, so it does no more than this
            if by_key.get(key) is cell:
                del by_key[key]
            if (copy := cell.copy) is not None and copy.in_flight:
                dying(copy)
            dead.append(cell)

        self.arrived(cell, place)
        cell.ref = weakref.ref(storage, on_death)
        self.by_key[key] = cell
        return cell

    def arrived(self, cell: Cell, place: torch.device) -> None:
        """Put a new cell on the books, or refuse it."""

    def dying(self, copy: HostCopy) -> None:
        """Order the next use of a dying cell's memory after a copy that may be in flight."""


def _pinned(storage: torch.UntypedStorage, host: bool) -> str:
    """Why a storage cannot move from the beginning; "" where it can."""
    if host and storage.is_shared():  # a GPU's always say that they are
        return "shared memory"
    return "" if storage.resizable() else "memory that is not PyTorch's"


def _is_read_past_ops(tensor: torch.Tensor, given: bool) -> bool:
    """Whether a host tensor may be one that PyTorch's C++ reads before it calls an op, as it may on the host.

    It matters where the host plays the device. Such are lengths, places to split at, states of generators: whole
    numbers, not many, that no op has made. And scalars, which `torch.tensor` copies.
    """
    if tensor.numel() == 1:
        return True
    return given and tensor.nbytes <= FEW and not (tensor.is_floating_point() or tensor.is_complex())


def parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The strided tensors that one of another layout is made of; none of a layout that is not known."""
    for name in _PARTS.get(tensor.layout, ()):
        yield getattr(tensor, name)()
