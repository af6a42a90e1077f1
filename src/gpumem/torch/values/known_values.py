"""What is known of the storages of a capture; a write by an op that cannot be followed ends that."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import finalize

from gpumem.torch.internals import hidden_from_modes, torch
from gpumem.torch.step.storages import Cell, Storages
from gpumem.torch.values.known import ALL, HOST, Doubt, Host, Known, beside, covers, each_of, is_small


class KnownValues:
    """What is known of the storages of a capture.

    Parameters
    ----------
    storages : Storages
        Whose cells keep it, as long as their storages live.
    """

    def __init__(self, storages: Storages) -> None:
        self.storages, self.held = storages, 0

    # what is known

    def known(self, tensor: torch.Tensor) -> Known | None:
        """What is known of the storage of a tensor; nothing of one that is learned."""
        if tensor.requires_grad or tensor.layout is not torch.strided:
            return None
        cell = self.storages.known(tensor)
        known: Known | None = None if cell is None else cell.values
        if known is not None and known.each is not None and known.each.dtype != tensor.dtype:
            return None  # a view of numbers as other ones
        return known

    def doubt(self, tensor: torch.Tensor) -> Doubt:
        """How the elements of a tensor are known; of one that is not known they can only be supposed."""
        if not tensor.numel():
            return Doubt.NONE
        known = self.known(tensor)
        return Doubt.SUPPOSED if known is None else known.doubt

    def sure(self, tensor: torch.Tensor) -> bool:
        """Whether the elements of a tensor follow from the program alone."""
        return self.doubt(tensor) is Doubt.NONE

    def read(self, tensor: torch.Tensor) -> Host | None:
        """Return a tensor's values on the host, expanded where all are one number; None where they are not known."""
        with hidden_from_modes():
            known = self.known(tensor)
            if known is not None and known.bytes is not None:
                return beside(tensor, known.bytes)
            if not tensor.numel():
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=HOST)
            each = self.each(tensor)
            return None if each is None else each.expand(tensor.size())

    def each(self, tensor: torch.Tensor) -> Host | None:
        """The number that all elements of a tensor are known to be, of no dimension."""
        known = self.known(tensor)
        if known is None:
            return None
        if known.bytes is not None:
            return each_of(beside(tensor, known.bytes))
        return known.each

    def source(self, tensor: torch.Tensor) -> str:
        """The op that wrote a single element; nothing where nobody has seen it."""
        cell = self.storages.known(tensor)
        return "" if cell is None else cell.source

    # what becomes known, or no longer is

    def given(self, tensor: torch.Tensor, host: Host, doubt: Doubt = Doubt.NONE) -> None:
        """Note the values of a tensor that has a storage of its own; those that are too large are not kept."""
        with hidden_from_modes():
            self.keep(tensor, host.detach(), doubt)

    def keep(self, tensor: torch.Tensor, host: Host, doubt: Doubt) -> None:
        """As `given`, where no mode is on."""
        cells = self.storages.made(tensor)
        if not cells or host.dtype != tensor.dtype or host.size() != tensor.size():
            return
        if is_small(tensor):
            made = self.allocate(cells[0])
            if made is not None:
                beside(tensor, made).copy_(host)
            cells[0].values = None if made is None else Known(made, None, doubt)
        else:
            each = each_of(host) if covers(tensor) and min(host.stride(), default=0) == 0 else None
            cells[0].values = None if each is None else Known(None, each, doubt)

    def keep_each(self, tensor: torch.Tensor, each: Host, doubt: Doubt) -> None:
        """Note that all elements of a tensor are a number, of no dimension."""
        cell = next(iter(self.storages.made(tensor)), None)
        if cell is None:
            return
        each = each.to(tensor.dtype)
        if covers(tensor):
            cell.values = Known(None, each.clone(), doubt)
        elif (before := cell.values) is None or before.each is None or not bool(before.each == each):
            cell.values = None  # its elements are two numbers now

    def allocate(self, cell: Cell) -> torch.UntypedStorage | None:
        """Return a storage of the host, of zeros and as large as a cell; None where all together would exceed `ALL`."""
        if self.held + cell.size > ALL:
            return None
        made = torch.zeros(cell.size, dtype=torch.uint8, device=HOST).untyped_storage()
        self.held += cell.size
        finalize(made, self._forget, cell.size).atexit = False
        return made

    def _forget(self, size: int) -> None:
        self.held -= size

    def end(self, written: Sequence[torch.Tensor]) -> None:
        """Forget the values of tensors that have been written."""
        for tensor in written:
            if tensor.layout is torch.strided and (cell := self.storages.known(tensor)) is not None:
                cell.values = None

    def suppose(self, tensor: torch.Tensor) -> None:
        """Mark what is known of a tensor as supposed from now on."""
        if (known := self.known(tensor)) is not None:
            known.doubt = Doubt.SUPPOSED

    def made_by(self, name: str, outs: list[torch.Tensor]) -> None:
        """Note the op that wrote a single element, to name it where the host asks for the value."""
        for tensor in outs:
            if tensor.numel() == 1 and (cell := self.storages.known(tensor)) is not None:
                cell.source = name
