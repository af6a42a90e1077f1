"""The device memory of one job: a counter against its budget, in issue order.

Bytes are reserved first come, first served, in the order in which the walk issues its ops. They are freed when the walk
is past the part's lifetime *and* the last copy that uses it has ended::

    walk     [ a: makes p ]--[ copy out of p ]--[ p ends ]--------[ b: makes q ]
    link                       [    copy out of p    ]
    bytes    |==================== p ================|  |=========== q ========
                                                        as soon as p is freed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

Say = Callable[[str, int], None]  # kind (hold or free), part


@dataclass(slots=True, eq=False)
class Resident:
    """A part on the device: copies in flight that use it, and whether the walk is past its lifetime."""

    copies: int = 0
    over: bool = False


@dataclass(slots=True, eq=False)
class Latch:
    """Calls `then` when `left` events have arrived: whoever waits for several of them registers it with each."""

    left: int
    then: Callable[[], None]

    def arrive(self) -> None:
        """Count one event."""
        self.left -= 1
        if not self.left:
            self.then()


@dataclass(slots=True, eq=False)
class Request:
    """Parts that one op needs, together; `at`: ns at which all were reserved (-1: not yet), and what to call then.

    `left`: parts that wait until their copies of the iteration before are freed.
    """

    parts: Sequence[int]
    size: int
    granted: Callable[[], None] | None = None
    at: int = -1
    left: int = 0


class JobMemory:
    """Counts the bytes that one job holds.

    Parameters
    ----------
    budget : int
        Bytes.
    size : sequence of int
        Bytes of each part.
    say : callable
        Called with `hold` or `free` and the part.

    Attributes
    ----------
    used, peak : int
        Bytes reserved now, and at most since the peak was last reset.
    held : dict of int to Resident
        The parts on the device.
    heirs : dict of int to Request
        The request that takes a part over once it is freed: a copy may take longer than an iteration.

    Notes
    -----
    No deadlock. Let `i` be the first op in the queue and `j >= i` where the walk is. What is held was issued before
    `i`; if it is not over at `j`, it is alive at `i`, so all of that and what `i` asks for is at most the live bytes at
    `i`, which fit the budget. The rest is over but for its copies out, and these wait for earlier copies only, never
    for memory behind `i`. A part of the iteration before is over as well when it is produced anew. The byte-counting
    simulation lets bytes serve only ops issued after they were freed; here the first in the queue takes any.
    """

    def __init__(self, budget: int, size: Sequence[int], say: Say) -> None:
        self.budget, self.size, self.say = budget, size, say
        self.used = self.peak = 0
        self.held: dict[int, Resident] = {}
        self.heirs: dict[int, Request] = {}
        self.queue: deque[Request] = deque()

    def request(self, parts: Sequence[int], now: int) -> Request:
        """Reserve the bytes of `parts` together, behind earlier requests; a request of no bytes does not queue."""
        request = Request(parts, sum(self.size[part] for part in parts))
        if request.size and (self.queue or self.used + request.size > self.budget):
            self.queue.append(request)
        else:
            self._grant(request, now)
        return request

    def _grant(self, request: Request, now: int) -> None:
        self.used += request.size
        self.peak = max(self.peak, self.used)
        for part in request.parts:
            if part in self.held:
                self.heirs[part] = request
                request.left += 1
            else:
                self._hold(part)
        self._complete(request, now)

    def _complete(self, request: Request, now: int) -> None:
        if not request.left:
            request.at = now
            if request.granted is not None:
                request.granted()

    def _hold(self, part: int) -> None:
        self.held[part] = Resident()
        self.say("hold", part)

    def start(self, parts: Collection[int]) -> None:
        """Hold the parts that cross the boundary, before anything else."""
        self.used = self.peak = sum(self.size[part_] for part_ in parts)
        for part in parts:
            self._hold(part)

    def end(self, part: int, now: int) -> None:
        """Note that the walk is past the lifetime of a part."""
        self.held[part].over = True
        self._free_if_over(part, now)

    def copied(self, part: int, now: int) -> None:
        """Note that a copy that used a part has ended."""
        self.held[part].copies -= 1
        self._free_if_over(part, now)

    def _free_if_over(self, part: int, now: int) -> None:
        if not self.held[part].over or self.held[part].copies:
            return
        del self.held[part]
        self.say("free", part)
        self.used -= self.size[part]
        heir = self.heirs.pop(part, None)
        if heir is not None:
            self._hold(part)
            heir.left -= 1
            self._complete(heir, now)
        while self.queue and self.used + self.queue[0].size <= self.budget:
            self._grant(self.queue.popleft(), now)

    def clear(self) -> None:
        """Free everything; no copy is in flight."""
        for part in self.held:
            self.say("free", part)
        self.held.clear()
        self.used = 0

    def short(self, requests: Collection[Request]) -> tuple[int, set[int]]:
        """Return the bytes that must be freed for `requests` and those before them, and the parts that must be."""
        last = max((index for index, request in enumerate(self.queue) if request in requests), default=-1)
        first = list(self.queue)[: last + 1]
        parts = {part for request in first for part in request.parts if part in self.held}
        parts.update(part for part, heir in self.heirs.items() if heir in requests)
        return sum(request.size for request in first) - (self.budget - self.used) if first else 0, parts
