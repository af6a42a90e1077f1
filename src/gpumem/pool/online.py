"""Online allocators: one request at a time, without knowing the next one.

What an allocator owes its user (`gpumem.testing.check_allocator` holds it to that):

- `allocate` returns the first of `size >= 1` bytes that no other live block has, a multiple of `alignment`
  where the allocator has that attribute.
- `free` takes an offset that `allocate` returned and that is still live; `stream` is the one that used the bytes
  last. They may serve requests on that stream at once, on another one only after `synchronize()`.
- An allocator that reuses bytes across streams has an attribute `synchronize`, a function without arguments that
  it calls before it does so. It waits for all streams; whoever executes puts the real one there.
- `MemoryError` where there is no room, `ValueError` for a size below 1 or an offset that is not live. Either
  leaves everything as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Allocator(Protocol):
    """Hands out ranges of one address space; the rules are in the module's docstring."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        """Return the offset of `size` bytes for work on `stream`."""
        ...

    def free(self, offset: int, *, stream: int = 0) -> None:
        """Take back what `allocate` returned, last used on `stream`."""
        ...


@dataclass(slots=True)
class Count:
    """A quantity that goes up and down: now, at most so far, and all that was ever added.

    >>> bytes_held = Count()
    >>> bytes_held.add(8); bytes_held.add(4); bytes_held.drop(8)
    >>> bytes_held
    Count(current=4, peak=12, total=12)
    """

    current: int = 0
    peak: int = 0
    total: int = 0

    def add(self, amount: int) -> None:
        """Raise it."""
        self.current += amount
        self.total += amount
        self.peak = max(self.peak, self.current)

    def drop(self, amount: int) -> None:
        """Lower it."""
        self.current -= amount


@dataclass(slots=True)
class Statistics:
    """What an allocator counts: blocks, bytes asked for, bytes handed out (rounded), bytes taken from the device.

    `reserved.peak` is the footprint.
    """

    blocks: Count = field(default_factory=Count)
    requested: Count = field(default_factory=Count)
    allocated: Count = field(default_factory=Count)
    reserved: Count = field(default_factory=Count)
