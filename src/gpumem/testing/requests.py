"""Requests as values, so that a history can be kept, shortened and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Allocate:
    """Ask for `size` bytes on `stream`; `block` is the number by which later requests mean the result."""

    block: int
    size: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """Give a block back, last used on `stream`; does nothing where the block was refused or freed."""

    block: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """Tell that `stream` works on a block too; does nothing where it is not live or the allocator has no `use`."""

    block: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """Ask for `sync_and_coalesce`; does nothing where the allocator has none."""


@dataclass(frozen=True, slots=True)
class WrongFree:
    """Free what must not be freed: the offset of a block, live or freed, plus `distance`.

    Block -1 stands for offset 0. Does nothing where a live block starts there.
    """

    block: int
    distance: int = 0


Request = Allocate | Free | Use | Sync | WrongFree


def renumbered(request: Request, number: Callable[[int], int]) -> Request:
    """Return the same request for other blocks; there is none in `Sync`, and -1 stands for none.

    >>> [renumbered(request, lambda block: block + 10) for request in (Free(2, 1), WrongFree(-1), Sync())]
    [Free(block=12, stream=1), WrongFree(block=-1, distance=0), Sync()]
    """
    return request if isinstance(request, Sync) or request.block < 0 else replace(request, block=number(request.block))
