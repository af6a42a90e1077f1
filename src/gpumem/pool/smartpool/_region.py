"""The bytes that a plan hands out, and who may have them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass

from gpumem.pool.allocators._last_use import LastUse


@dataclass(slots=True, eq=False)
class Held:
    """A live block: its bytes, how many of them were asked for, and the region that it lies in, if any."""

    low: int
    size: int
    requested: int
    region: Region | None
    buffer: int = -1  # of the plan
    overdue: bool = False  # lies in a region where its plan would have others by now


class Region:
    """Bytes `[base, base + height)` of one plan, taken from the fallback on `stream`.

    The plan never has two buffers on one byte, so only blocks that live longer than planned are in the way: these
    are *overdue*, and looked through by address. There are none in a run as planned.
    """

    def __init__(self, base: int, height: int, stream: int, wait: Callable[[], None]) -> None:
        self.base, self.height = base, height
        self.live: dict[int, Held] = {}
        self.overdue: list[tuple[int, int]] = []  # (first byte, end), ascending: live blocks do not overlap
        self._wait = wait
        self._sole = stream  # the one stream that has used these bytes, until there is another
        self._use: LastUse | None = None  # then: who used which bytes last

    def vacant(self, low: int, size: int) -> bool:
        """Whether no overdue block has any of these bytes."""
        if not self.overdue:
            return True
        place = bisect_left(self.overdue, (low + size,)) - 1
        return place < 0 or self.overdue[place][1] <= low

    def claim(self, low: int, size: int, stream: int) -> Held:
        """Make a block, after waiting where another stream may still be using its bytes."""
        if stream != self._sole or self._use is not None:
            self._seen().claim(low, size, stream)
        held = self.live[low] = Held(low, size, size, self)
        return held

    def release(self, held: Held, stream: int) -> None:
        """Take a block back, last used on `stream`."""
        if held.overdue:
            del self.overdue[bisect_left(self.overdue, (held.low,))]
        if stream != self._sole or self._use is not None:
            self._seen().freed(held.low, held.size, stream)
        del self.live[held.low]

    def late(self, held: Held) -> None:
        """Note that a block lives longer than planned; it remains so until it is freed."""
        if not held.overdue:
            held.overdue = True
            insort(self.overdue, (held.low, held.low + held.size))

    def synchronised(self) -> None:
        """All streams have been waited for."""
        if self._use is not None:
            self._use.clear()

    def last_stream(self, stream: int | None = None) -> int:
        """Return the stream to give the bytes back on, after waiting where there were several; `stream` is the last."""
        if self._use is not None or stream not in (None, self._sole):
            self._wait()
        return self._sole

    def _seen(self) -> LastUse:
        """From the second stream on, tell apart which one used which bytes."""
        if self._use is None:
            self._use = LastUse(self._wait)
            self._use.freed(self.base, self.height, self._sole)
            for held in self.live.values():
                self._use.claim(held.low, held.size, self._sole)
        return self._use
