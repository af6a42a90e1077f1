"""How repeats are found, by hashes of what was allocated and freed."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

_MALLOC, _FREE = 0, 1  # the lowest two bits of a signature; reads and writes are 2 and 3
# A prime below 2**63, as hashes are int64. With a base drawn at random two different windows would collide with a
# probability below length / modulus; the events of the period that is found are compared.
_MODULUS = 2**61 - 1
_BASE = 1_152_921_139_263_580_469  # any number: fixed, so that a run can be repeated


@dataclass(frozen=True, slots=True)
class Period:
    """Two consecutive equal iterations: events `[start, start + length)` and `[start + length, end)`.

    Parameters
    ----------
    start : int
        Index of the first event of the first of the two.
    length : int
        Events of one iteration.
    crossing : tuple of int
        The blocks live at the boundary between the two, before event `start + length`, oldest first:
        parameters, optimizer state and whatever else the second iteration takes over from the first.
    successors : tuple of int
        The blocks live at `end`: `successors[k]` is `crossing[k]` itself if it lives on, else the block that
        the second iteration made at the event where the first made `crossing[k]`: one arc of the circle.

    Examples
    --------
    >>> period = Period(start=2, length=7, crossing=(0, 4), successors=(0, 6))
    >>> period.end
    16
    """

    start: int
    length: int
    crossing: tuple[int, ...]
    successors: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past the last event of the second iteration; the next one is the third's first."""
        return self.start + 2 * self.length


class _Search:
    """The record of the stream, and the squares in it.

    Row `k` of a column is about event `k - 1`, or about the first `k` events; row 0 precedes the stream.
    """

    def __init__(self, min_length: int) -> None:
        self.min_length = min_length
        self.now = 0  # the latest row
        self.code = [-1]  # signatures, as integers: 4 * value + kind
        self.block = [-1]
        self.born = array("q", [0])  # the row of the malloc of the event's block
        self.lives = array("q", [0])  # blocks live after k events
        self.hash = array("q", [0])
        self.power = array("q", [1])
        self.far: list[int] = []  # rows whose distance no later one reaches, oldest first,
        self.far_distance: list[int] = []  # and these distances
        self.levels: list[int] = []
        self.since: dict[int, int] = {}  # p -> the row after which each event repeats the one p before
        self.due: dict[int, list[int]] = {}  # row -> the periods to look at then
        self.loops: set[int] = set()  # periods that met conditions 1 to 4 somewhere

    def push(self, code: int, block: int, born: int, lives: int) -> int:
        """Take an event; return the period that is complete with it, or 0."""
        self.now += 1
        self.code.append(code)
        self.block.append(block)
        self.born.append(born + 1)
        self.lives.append(lives)
        self.hash.append((self.hash[-1] * _BASE + code) % _MODULUS)
        self.power.append(self.power[-1] * _BASE % _MODULUS)
        if code & 3 != _MALLOC:
            self._note_distance(code >> 2)
        self._look_back()
        due = self.due.pop(self.now, ())
        return next((period for period in sorted(set(due)) if self._is_iteration(period)), 0) if due else 0

    def _note_distance(self, distance: int) -> None:
        while self.far and self.far_distance[-1] <= distance:
            self.far.pop()
            self.far_distance.pop()
        self.far.append(self.now)
        self.far_distance.append(distance)

    def _repeats(self, period: int, length: int) -> bool:
        """Whether the last `length` events equal those `period` earlier, judged by their hash."""
        hashes, now = self.hash, self.now
        then, begin = now - period, now - length
        return (
            hashes[now] - hashes[then] - (hashes[begin] - hashes[begin - period]) * self.power[length]
        ) % _MODULUS == 0

    def _look_back(self) -> None:
        """Find the periods that the latest events begin to repeat.

        ::

            rows     4L-2 ago                    2L-1 ago          now
                 ----|====L====|====L====|----------------|====L====|
                     a block that ended p ago equals the last L: p is a candidate
        """
        now, code = self.now, self.code
        last, before = code[now], code[now - 1]
        if 3 * (1 << len(self.levels)) - 1 <= now:
            self.levels.append(1 << len(self.levels))
        for size in self.levels:
            # Most blocks differ in their last two events already; row 0 differs from all.
            then = (now - 2 * size + 1) & -size
            if code[then] == last and (size == 1 or code[then - 1] == before) and self._repeats(now - then, size):
                self._consider(now - then, size)
            then -= size
            if code[then] == last and (size == 1 or code[then - 1] == before) and self._repeats(now - then, size):
                self._consider(now - then, size)

    def _consider(self, period: int, matched: int) -> None:
        """Note when period `period` will have lasted for `period` events, knowing that it has for `matched`."""
        since = self.since.get(period)
        if since is not None and self._repeats(period, self.now - since):
            return  # noted when it began
        low, high, step = matched, self.now - period, matched
        while low < high:  # gallop, then halve: most repetitions are short
            middle = min(low + step, high) if step else (low + high + 1) // 2
            if self._repeats(period, middle):
                low, step = middle, 2 * step
            else:
                high, step = middle - 1, 0
        self.since[period] = self.now - low
        self._look_at(period, max(self.now, self.now - low + period))

    def _look_at(self, period: int, row: int) -> None:
        self.due.setdefault(row, []).append(period)

    def _is_iteration(self, period: int) -> bool:
        """Whether the last `2 p` events meet all conditions; where time may change that, look again."""
        now, since = self.now, self.since[period]
        if not self._repeats(period, period) or not self._is_closed(period) or self._is_multiple(period):
            return False
        if odd := self._odd_row(period):
            self._look_at(period, odd + period)  # the second half is past it then
            return False
        self.loops.add(period)
        if period < self.min_length:
            return False
        if now < 2 * (since - period):
            self._look_at(period, 2 * (since - period))
            return False
        return self.code[now - 2 * period + 1 : now - period + 1] == self.code[now - period + 1 :]

    def _is_closed(self, period: int) -> bool:
        """Conditions 1 and 2, for the last `period` events."""
        oldest = bisect_left(self.far, self.now - period + 1)
        farthest = self.far_distance[oldest] if oldest < len(self.far) else 0
        return farthest <= period and self.lives[self.now] == self.lives[self.now - period]

    def _odd_row(self, period: int) -> int:
        """The last row that breaks condition 3, or 0: its counterpart `period` before acts on another block."""
        now, born = self.now, self.born
        start = now - 2 * period
        for row in range(now, now - period, -1):
            one, other = born[row - period], born[row]
            if other != (one if other <= start else one + period):
                return row
        return 0

    def _is_multiple(self, period: int) -> bool:
        """Whether the last `2 p` events repeat a loop that meets conditions 1 to 3."""
        return any(
            period % divisor == 0
            and divisor < period
            and self._repeats(divisor, 2 * period - divisor)
            and self._is_closed(divisor)
            and not self._odd_row(divisor)
            for divisor in self.loops
        )

    def describe(self, period: int, live: list[int]) -> Period:
        """Return the last `2 p` events as a period; `live` are the events that made the live blocks."""
        now, block, born = self.now, self.block, self.born
        middle = now - period
        pairs = {made + 1: (block[made + 1],) * 2 for made in live if made < middle}
        for row in range(middle + 1, now + 1):
            if self.code[row] & 3 == _FREE and born[row] <= middle:
                pairs[born[row]] = (block[row], block[born[row] + period])
        crossing = [pairs[made] for made in sorted(pairs)]
        return Period(
            now - 2 * period, period, tuple(first for first, _ in crossing), tuple(second for _, second in crossing)
        )
