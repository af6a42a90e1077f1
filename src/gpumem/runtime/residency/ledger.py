"""What was done, summed by iteration: the rows of a report.

Where an iteration ends is mostly known when it ends. While one is looked for, it is known later: then each op is
written down by itself, so that a row may be closed before the last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpumem.runtime.residency.limited_memory import LimitedMemory
from gpumem.runtime.residency.report import NATIVE, ON_DEMAND, Iteration

KEPT = 1000  # rows of a report; an iteration of a second for a quarter of an hour, some 200 kB. Not tuned


class LedgerStep(NamedTuple):
    """What was done for some ops in a row, `end` in ns; `least` were alive all the time."""

    ops: int
    peak: int
    least: int
    out: int
    back: int
    recomputed: int
    misses: int
    evictions: int
    end: int


class Ledger:
    """The rows so far, and what was done since the last one.

    Parameters
    ----------
    memory : LimitedMemory
        Whose counts are taken.
    now : callable
        The time, in ns.
    """

    def __init__(self, memory: LimitedMemory, now: Callable[[], int]) -> None:  # type: ignore[type-arg]
        self.memory, self.now = memory, now
        self.rows: deque[Iteration] = deque(maxlen=KEPT)
        self.ops = 0  # since the last step
        self.length = 0  # since the last row, but for those
        self._steps: list[LedgerStep] = []
        self.began = now()
        self._number = 0

    def start(self) -> None:
        """Begin an iteration; what was done since the last row is none's."""
        self.ops, self.length, self._steps, self.began = 0, 0, [], self.now()
        self.memory.begin()

    def step(self) -> None:
        """End a step, before which a row can be closed."""
        memory, made = self.memory, self.memory.counts
        counts = made.out, made.back, made.recomputed, made.misses, made.evictions
        if self.ops:
            self._steps.append(LedgerStep(self.ops, memory.peak, min(memory.least, memory.alive), *counts, self.now()))
            self.length += self.ops
            self.ops = 0
            memory.begin()

    def close(self, state: str, deviation: str = "", *, but: int = 0) -> Iteration | None:
        """Close a row before the last so many ops; return it, None where there are no ops in it.

        Without a state, what was done says it.
        """
        self.step()
        count = len(self._steps)
        while but > 0 and count:  # a step that holds more belongs to what comes
            count -= 1
            but -= self._steps[count].ops
        steps, self._steps = self._steps[:count], self._steps[count:]
        if not steps:
            return None
        row = self._summed(steps, state, deviation)
        self.rows.append(row)
        self.length -= row.ops
        self._number, self.began = self._number + 1, steps[-1].end
        return row

    def open_row(self, state: str, deviation: str = "") -> list[Iteration]:
        """The row that is under way, if there is one."""
        self.step()
        return [self._summed(self._steps, state, deviation)] if self._steps else []

    def least(self) -> int:
        """The fewest bytes that were alive since the last row."""
        return min((step.least for step in self._steps), default=self.memory.least)

    def _summed(self, steps: Sequence[LedgerStep], state: str, deviation: str) -> Iteration:
        ops, peaks, _, *counts, _ = zip(*steps)
        out, back, recomputed, misses, evictions = map(sum, counts)
        state = state or (ON_DEMAND if misses or evictions else NATIVE)
        seconds = (steps[-1].end - self.began) / 1e9
        return Iteration(
            self._number, state, sum(ops), max(peaks), out, back, recomputed, misses, evictions, deviation, seconds
        )
