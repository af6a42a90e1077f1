"""Which stream may reuse bytes that another one has freed, as a witness sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Used:
    """Free bytes `[low, high)`, last used on `stream` until the request of number `until`."""

    low: int
    high: int
    stream: int
    until: int


class StreamOrder:
    r"""Which work of one stream is known to come before what another stream does next.

    A block allocated for stream 0 and freed on stream 1 changed streams: stream 1 waited for what stream 0 did with
    it, and so for all that stream 0 did before it was allocated::

        stream 0   --- earlier work ---[allocate]--- block ---\
        stream 1   ------------------------------------------- block ---[free]--- comes after the earlier work
    """

    def __init__(self) -> None:
        self.now = 0
        self._known: dict[int, dict[int, int]] = {}  # of a stream: the last request of each stream before it
        self._at: dict[int, dict[int, int]] = {}  # the same when the block at an offset was allocated

    def allocated(self, offset: int, stream: int) -> None:
        self._at[offset] = {**self._known.get(stream, {}), stream: self.now}

    def freed(self, offset: int, stream: int) -> None:
        self._learns(stream, self._at.pop(offset))

    def shared(self, offset: int, stream: int) -> None:
        """`stream` works on the block as well, so it has waited for the same."""
        self._learns(stream, self._at[offset])

    def before(self, use: Used, stream: int) -> bool:
        """Whether what `stream` does next comes after the use."""
        return use.stream == stream or use.until <= self._known.get(stream, {}).get(use.stream, -1)

    def _learns(self, stream: int, known: dict[int, int]) -> None:
        own = self._known.setdefault(stream, {})
        for other, last in known.items():
            own[other] = max(own.get(other, -1), last)
