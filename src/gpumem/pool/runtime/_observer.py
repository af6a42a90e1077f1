"""Records requests until an iteration repeats."""

from __future__ import annotations

from array import array

from gpumem.trace.record.period import BlockEvent, Detector


class Observer:
    """Listens to mallocs and frees until they repeat, in bounded memory.

    Parameters
    ----------
    min_length : int
        Fewest requests of an iteration.
    lasting : int
        Requests for which the repetition must have lasted, where two iterations are fewer.
    horizon : int
        Requests after which it starts afresh.

    Attributes
    ----------
    word : list of int or None
        The iteration, up to the latest request: bytes of each malloc, lifetime of each freed block below 0.

    Examples
    --------
    >>> observer = Observer(min_length=1, lasting=0, horizon=100)
    >>> for size in (8, 8):
    ...     observer.malloc(0, size); observer.free(0)
    >>> observer.word
    [8, -1]
    """

    def __init__(self, *, min_length: int, lasting: int, horizon: int) -> None:
        self._min_length, self._lasting, self._horizon = min_length, lasting, horizon
        self.word: list[int] | None = None
        self._restart()

    def _restart(self) -> None:
        self._detector = Detector(min_length=self._min_length)
        self._code = array("q")
        self._born: dict[int, int] = {}  # live block -> the request that made it

    def malloc(self, address: int, size: int) -> None:
        """Take the next request."""
        self._born[address] = len(self._code)
        self._push(BlockEvent("malloc", address, size), size)

    def free(self, address: int) -> None:
        """Take the next request; blocks from before the recording are not part of it."""
        if (born := self._born.pop(address, None)) is not None:
            self._push(BlockEvent("free", address), born - len(self._code))

    def live(self) -> dict[int, int]:
        """Return the request of `word` that made each live block; blocks older than that are left out."""
        first = len(self._code) - len(self.word or ())
        return {address: born - first for address, born in self._born.items() if born >= first}

    def _push(self, event: BlockEvent, code: int) -> None:
        self._code.append(code)
        period, now = self._detector.period, len(self._code)
        if period is None:
            period = self._detector.push(event)
        elif code != self._code[now - 1 - period.length]:
            period = None
            self._restart()
        if period is not None and now - period.start >= self._lasting:
            self.word = self._code[now - period.length :].tolist()
        elif now >= self._horizon:
            self._restart()
