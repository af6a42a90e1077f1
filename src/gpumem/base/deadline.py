"""Until when: what every search looks at, so that the seconds a caller gives are the whole time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil, inf
from typing import TypeVar

from gpumem.base import work
from gpumem.base.work import LATE as LATE, LEAST, now as now

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """When work has to end, and when it began, in seconds of the clock; `end` is infinite where there is no hurry.

    Work looks at it between its steps, so it ends within a step of the deadline. What is found by a deadline depends
    on the machine.

    Examples
    --------
    >>> until = Deadline.within(60)
    >>> until.over(), 59 < until.left() <= 60, 29 < until.part(0.5).left() <= 30
    (False, True, True)
    >>> Deadline.within(None).left()
    inf
    """

    begin: float = 0.0
    end: float = inf

    @classmethod
    def within(cls, seconds: float | None) -> Deadline:
        """Return the deadline so many seconds from now; None: there is no end.

        Raises
        ------
        ValueError
            Seconds that are not positive and finite.
        """
        if seconds is None:
            return NEVER
        if not 0 < seconds < inf:
            raise ValueError(f"seconds: {seconds} must be positive and finite")
        begin = work.now()
        return cls(begin, begin + seconds)

    def left(self) -> float:
        """Return the seconds that are left, a little where none are."""
        return inf if self.end == inf else max(self.end - work.now(), LEAST)

    def over(self) -> bool:
        """Return whether the time is up."""
        return self.end < inf and work.now() >= self.end

    def part(self, share: float) -> Deadline:
        """Return the deadline of a first share of what is left."""
        return NEVER if self.end == inf else Deadline.within(share * self.left())

    @property
    def seconds(self) -> float | None:
        """What is left, as the keyword `seconds` of a planner; None where there is no end."""
        return None if self.end == inf else self.left()

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items until the time is up; the clock is looked at before an item is asked for."""
        rest = iter(items)
        while not self.over() and (found := list(islice(rest, 1))):
            yield from found

    def stride(self, done: int, todo: int) -> int:
        """Return how many of the steps still `todo` to take at once, at most half of them, to get through in time.

        The steps `done` since the beginning tell how long one takes.

        >>> Deadline().stride(1, 100)
        1
        """
        if self.end == inf:
            return 1
        left = self.left()
        needed = todo * (self.end - left - self.begin) / max(done, 1)
        return max(min(ceil(needed / left), todo // 2), 1)

    def hint(self, otherwise: str = "") -> str:
        """Return why a search ended where it did: late, or as the caller says."""
        return LATE if self.over() else otherwise


NEVER = Deadline()
