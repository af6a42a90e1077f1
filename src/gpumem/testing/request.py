"""Requests as values, so that a history can be kept, shortened and played again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocate:
    """Ask for `size` bytes on `stream`; `block` is the number by which later requests mean the result."""

    block: int
    size: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """Give a block back, last used on `stream`; does nothing where the block was refused or is gone."""

    block: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class WrongFree:
    """Free what must not be freed: the offset of a block, live or gone, plus `distance`.

    Block -1 stands for offset 0. Does nothing where a live block starts there.
    """

    block: int
    distance: int = 0


Request = Allocate | Free | WrongFree
