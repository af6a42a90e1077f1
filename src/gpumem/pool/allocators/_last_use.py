"""Which stream used freed bytes last: whoever hands them to another one waits first."""

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
        i = bisect_right(self._starts, start) - 1
        if i < 0 or self._range[self._starts[i]][0] <= start:
            i += 1
        j = bisect_left(self._starts, end)
        touched = self._starts[i:j]
        if any(self._range[t][1] != stream for t in touched):
            self._wait()
            self.clear()
            return
        del self._starts[i:j]
        for t in touched:
            until, _ = self._range.pop(t)
            if t < start:
                self.freed(t, start - t, stream)
            if until > end:
                self.freed(end, until - end, stream)

    def clear(self) -> None:
        """Forget everything: all streams have been waited for."""
        self._starts.clear()
        self._range.clear()
