"""Which stream used freed bytes last: before another one gets them, that one is waited for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable


class LastUse:
    """Freed bytes and the stream that used them last, since all streams were last waited for.

    ::

        freed on   0000000  11111      address ->
        claimed by 0   =====           only bytes of its own: nothing to wait for
        claimed by 0        =====      bytes of stream 1 among them: wait, then all bytes are anyone's

    Examples
    --------
    >>> use = LastUse(lambda: print("wait"))
    >>> use.freed(0, 8, 0); use.freed(8, 4, 1)
    >>> use.claim(2, 4, 0)
    >>> use.claim(6, 4, 0)
    wait
    >>> use.claim(10, 2, 0)
    """

    __slots__ = ("_range", "_starts", "_wait")

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._starts: list[int] = []
        self._range: dict[int, tuple[int, int]] = {}  # first byte -> (end, stream)

    def freed(self, start: int, size: int, stream: int) -> None:
        """Remember who used these bytes last."""
        insort(self._starts, start)
        self._range[start] = (start + size, stream)

    def claim(self, start: int, size: int, stream: int) -> None:
        """Let `stream` use these bytes: wait where another one used any of them last."""
        end = start + size
        low = bisect_right(self._starts, start) - 1
        if low < 0 or self._range[self._starts[low]][0] <= start:
            low += 1
        high = bisect_left(self._starts, end)
        touched = self._starts[low:high]
        if any(self._range[begin][1] != stream for begin in touched):
            self._wait()
            self.clear()
            return
        del self._starts[low:high]
        for begin in touched:
            until, _ = self._range.pop(begin)
            if begin < start:
                self.freed(begin, start - begin, stream)
            if until > end:
                self.freed(end, until - end, stream)

    def clear(self) -> None:
        """Forget everything: all streams have been waited for."""
        self._starts.clear()
        self._range.clear()
