"""What a planner is asked, and how: plain numbers, for whichever Python the planner lives in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class OutOfTime(Exception):
    """The time was over before there was any placement."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffer `i` takes `size[i]` bytes, at least 1, during steps `[start[i], end[i])`.

    Parameters
    ----------
    size, start, end : list of int
    seconds : float
        The whole time.
    threads : int
        That a planner may use.
    """

    size: list[int]
    start: list[int]
    end: list[int]
    seconds: float
    threads: int = 1

    def inclusive(self) -> tuple[list[int], list[int]]:
        """Return the first and the last section of each lifetime: both belong to it.

        Sections are what is left of the steps where those at which nothing begins or ends are merged. For planners that
        keep a list for each step.

        >>> Problem([1, 1, 1], [0, 10, 10], [10, 30, 20], 1.0).inclusive()
        ([0, 1, 1], [0, 2, 1])
        """
        section = {step: k for k, step in enumerate(sorted({*self.start, *self.end}))}
        return [section[step] for step in self.start], [section[step] - 1 for step in self.end]


@dataclass(frozen=True, slots=True)
class Call:
    """A planner that is ready: `place()` is timed, `offsets` of what it returns is not.

    `offsets` returns one for each buffer, in the order of the problem.
    """

    place: Callable[[], Any]
    offsets: Callable[[Any], Sequence[int]]


Adapter = Callable[[Problem], Call]
