"""One iteration as a table: what the program asks for, request by request, and where the plan puts it.

Requests are written as in `online.stepwise`: the buffer that one makes, or the complement of the buffer that it frees::

    head: made before the first iteration    cycle: once an iteration       requests right
    |--------- 3  7 ------------------------|- 0  1  ~0  2  ~1  ~2 -| 0  1  ~0 ...
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from gpumem.trace.record.period import BlockEvent, Detector

# Requests in a row that say where in the table a program is; layers that are alike share shorter ones.
# Also divides the live blocks: so many requests pass before the place is looked up again. Not tuned.
GRAM = 8


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """Requests of one iteration, and a few facts on each buffer."""

    requests: list[int]  # first the head, then the cycle
    head: int  # requests that come only once
    size: list[int]  # of each buffer, in bytes
    offset: list[int]  # in the plan's region
    start: list[int]  # the request of the cycle that makes it
    life: list[int]  # after how many more requests it is freed; `length` where it never is
    height: int  # bytes of the plan's region

    @classmethod
    def make(cls, trace: Trace, placed: Placement, requests: Sequence[int], head: int = 0) -> RequestTable:
        """Tabulate requests for the buffers of `trace`; what they do not mention never comes."""
        length = len(requests) - head
        start, life = [0] * len(trace.buffers), [length] * len(trace.buffers)
        for place, request in enumerate(requests[head:]):
            if request >= 0:
                start[request] = place
        for place, request in enumerate(requests[head:]):
            if request < 0:
                life[~request] = (place - start[~request]) % length
        size, offset = trace.buffers.size.tolist(), placed.offset.tolist()
        return cls(list(requests), head, size, offset, start=start, life=life, height=placed.height)

    @property
    def length(self) -> int:
        """Requests of one iteration."""
        return len(self.requests) - self.head

    def due(self, buffer: int) -> int:
        """Return the position of the free of a buffer, of its malloc where it has none."""
        return self.head + (self.start[buffer] + self.life[buffer]) % self.length

    def holds(self, buffer: int, position: int) -> bool:
        """Whether the plan holds a buffer right before the request at `position`."""
        return (max(position - self.head, 0) - 1 - self.start[buffer]) % self.length < self.life[buffer]

    def bytes_at(self, position: int) -> int:
        """Return the bytes of a request: above 0 for a malloc, below for a free."""
        request = self.requests[position]
        return self.size[request] if request >= 0 else -self.size[~request]

    def quietest(self) -> int:
        """Return the first position of the cycle before which the plan holds least: a malloc."""
        change = (self.bytes_at(position) for position in range(self.head, len(self.requests) - 1))
        live = list(accumulate(change, initial=0))  # before each request, and over that before the first
        return self.head + live.index(min(live))

    def grams(self) -> dict[tuple[int, ...], int]:
        """Map `GRAM` requests in a row (their bytes) to the position of the last of them, where that is unique.

        Where none is unique, the first of several positions has to do: a wrong one shows soon.
        """
        cycle = [self.bytes_at(position) for position in range(self.head, len(self.requests))]
        around = [cycle[position % self.length] for position in range(self.length + GRAM - 1)]
        grams = [tuple(around[position : position + GRAM]) for position in range(self.length)]
        last = [self.head + (position + GRAM - 1) % self.length for position in range(self.length)]
        first = {grams[position]: last[position] for position in reversed(range(self.length))}
        count = Counter(grams)
        return {gram: position for gram, position in first.items() if count[gram] == 1} or first


def recorded(word: Sequence[int]) -> tuple[Trace, list[int]]:
    """Return the trace of a recorded iteration, a step a request, and its requests.

    `word` has the bytes of each malloc, and the lifetime of each freed block in requests, below 0.

    >>> trace, requests = recorded([8, 4, -2, -2])
    >>> trace.buffers.start, trace.buffers.end, requests
    (array([0, 1]), array([2, 3]), [0, 1, -1, -2])
    """
    made = [place for place, code in enumerate(word) if code > 0]
    number = {place: buffer for buffer, place in enumerate(made)}
    requests = [number[place] if code > 0 else ~number[(place + code) % len(word)] for place, code in enumerate(word)]
    end = list(made)
    for request, code in zip(requests, word):
        if request < 0:
            end[~request] -= code
    return Trace.from_lifetimes([word[place] for place in made], made, end, n=len(word), name="recorded"), requests


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
