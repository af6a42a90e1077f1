"""What a SmartPool counts: hits, misses, and the requests that were not as planned."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from gpumem.pool.allocators.protocol import Statistics


@dataclass(frozen=True, slots=True)
class Deviation:
    """A request that is not what the plan has at that point.

    Parameters
    ----------
    kind : str
        `"size"`: a malloc of another size than is due. `"extra"`: a malloc where a free is due, or the free of a
        block that the plan does not know. `"skipped"`: what was due did not come, by the time something after it
        did. `"late"`: what was skipped came after all. `"early"`: a free long before it is due. `"taken"`: the
        planned bytes still belong to a block that lives longer than planned. `"lost"`: any request while it is
        not known where in the plan the program is.
    request : int
        Which request of the pool it was, counted from 0.
    position : int
        What was due: index into the requests of an iteration.
    size : int
        Bytes of the block; where it was skipped, of the one that was due.
    """

    kind: str
    request: int
    position: int
    size: int


@dataclass(slots=True)
class SmartPoolStatistics(Statistics):
    """What a `SmartPool` counts besides: `reserved` is the fallback's, and includes the plan's region.

    Parameters
    ----------
    hits, misses : int
        Mallocs served from the plan's region, and by the fallback; both add up to `blocks.total`.
    plans : int
        Plans made or given so far.
    deviations : Counter of str
        Requests that were not as planned, by kind; see `Deviation`.
    recent : deque of Deviation
        The last few of them, oldest first.
    requests : int
        Mallocs and frees so far.
    """

    hits: int = 0
    misses: int = 0
    plans: int = 0
    deviations: Counter[str] = field(default_factory=Counter)
    recent: deque[Deviation] = field(default_factory=lambda: deque(maxlen=16))
    requests: int = 0

    def note(self, kind: str, position: int, size: int) -> None:
        """Add a deviation."""
        self.deviations[kind] += 1
        self.recent.append(Deviation(kind, self.requests, position, size))

    @property
    def replans(self) -> int:
        """Plans that took the place of another."""
        return max(self.plans - 1, 0)
