"""How fast a search anneals, and so which effort there is time for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from gpumem.base import work

# The default effort, in looks at a point or a gap: up to half a minute on the machine that the figures are from.
WORK = 3e9
FIRST, MOST = 0.01, 10.0  # of the effort that was asked for, where there is a deadline; not tuned
# Of the time that is left, what annealing may take by the pace so far; the rest is for the starts, and what comes next.
# Eight points of the recorded traces, 10 s: 0.6 and 0.8 are as good. Efforts that grow by 10 at most are not: GPT-2 at
# 30 % ends at 15.4 % instead of 13.6, since the starts of an effort take longer than a little annealing.
FIT = 0.6
# Of an effort, what a race (`ROUNDS` of some ten starts) and the start without stalls take of it; not tuned.
RACED = 0.5


@dataclass(slots=True)
class Pace:
    """Looks at a point or a gap, and the seconds that they took."""

    looks: float = 0.0
    seconds: float = 0.0

    def efforts(self, effort: float) -> Iterator[float]:
        """Yield efforts while there is time: that one, or where there is a deadline a little of it, and then what fits.

        Annealing that is cut short is worse than one that has cooled down (random steps of 60 ops, 2 s: 12.7 % with an
        effort of 1 cut short, 1.6 % with one of 0.05 that took 0.9 s), and the starts are repeated for each effort.
        """
        if not work.hurried():
            yield effort
            return
        part = FIRST * effort
        yield part
        while part < MOST * effort and not work.over():
            part = max(min(self._fitting(), MOST * effort), FIRST * effort)
            yield part

    @contextmanager
    def timed(self, cost: int) -> Iterator[list[int]]:
        """Count steps of `cost` looks each, and the seconds; the caller sets the one entry to how many it took."""
        began, steps = work.now(), [0]
        yield steps
        self.looks += steps[0] * cost
        self.seconds += work.now() - began

    def _fitting(self) -> float:
        if not self.looks:  # nothing to anneal
            return inf
        return FIT * work.left() * self.looks / max(self.seconds, 1e-9) / WORK / RACED
