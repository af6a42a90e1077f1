"""Where an iteration begins and ends, found in the stream of a job's mallocs, frees, reads and writes.

A job says nowhere that a new iteration starts; its events repeat (SmartPool, section V: "two consecutive
subsequences are detected to be repeating"). Blocks get new ids every time, so events are compared by
their *signature*: a malloc by its size, a free by the block's lifetime, a read or a write by the distance
to the previous event on its block, both counted in events::

    stream   |-- warm-up --|------- u -------|------- u -------|        time right
                         start         start + length         end
    crossing[k]            ......=============================......    one block all the time, or
    crossing[k], its successor   ...====......       ...====......      made anew in each iteration

Equal neighbours alone are no iteration: identical layers and the optimizer's steps repeat as well. An
iteration is *closed* (see `Detector`), and those are not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import NamedTuple

_KINDS = {"malloc": 0, "free": 1, "read": 2, "write": 3}
_MODULUS = 2**61 - 1  # prime: two different windows collide with probability length / modulus
_BASE = 1_152_921_139_263_580_469  # any number: fixed, so that a run can be repeated


class Event(NamedTuple):
    """One thing that happens to a block of memory.

    Parameters
    ----------
    kind : str
        `"malloc"`, `"free"`, `"read"` or `"write"`.
    block : int
        Which block: unique while it is live; an id (an address, say) may come back after its free.
    size : int
        Bytes of a malloc; of no importance elsewhere.
    """

    kind: str
    block: int
    size: int = 0


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
        The blocks live at the boundary between the two, oldest first: neither freed before nor made
        from event `start + length` on. These are the second iteration's parameters, optimizer state and
        whatever else it takes over from the first.
    successors : tuple of int
        The blocks live at `end`: `successors[k]` is `crossing[k]` itself if it lives on, else the
        block that the second iteration made at the event where the first made `crossing[k]`. In an
        iteration of a circle, both are one arc.

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


class Detector:
    """Finds the iteration in a stream of events, one event at a time.

    Parameters
    ----------
    min_length : int
        Fewest events that an iteration may have.

    Attributes
    ----------
    period : Period or None
        What was found, None until then.

    Raises
    ------
    ValueError
        `min_length` below 1.

    Notes
    -----
    A period of `p` events is reported after the first event whose last `2 p` events are a word `u u` of
    signatures that is *closed*, for the smallest such `p >= min_length`:

    1. No distance and no lifetime in the second `u` is longer than `p`: an iteration refers to nothing
       that happened more than one iteration ago. (The optimizer's step for one parameter refers to a
       gradient much older than the step before, a layer to its own parameter.)
    2. It frees as many blocks as it makes; with 1., all it makes is freed within `p` events. (A layer
       of the forward pass leaves activations, one of the backward pass frees more than it makes.)
       Blocks are counted, not bytes, so that blocks of no bytes count too.
    3. Its events act on the same blocks as those of the first `u`, or on the blocks made one period
       later. (1. and 2. do not imply it: where two buffers take turns, every other iteration is the
       same as seen by signatures, yet addresses and swaps repeat only every second one.)

    No shorter closed period ends there, so `u` is primitive; only where blocks take turns it is the least
    power of a primitive word that brings each block back. The first iteration may differ (it makes the
    optimizer's state, or the job does something else before): detection then takes two more. The
    boundary falls anywhere in the job's iteration, earlier than where the programmer would put it if
    the warm-up ended in the same way as an iteration does.

    One ambiguity remains, and no criterion on signatures resolves it: an inner loop that is closed
    itself. Micro-steps that accumulate gradients and the time steps of a recurrent network without a
    backward pass are iterations in every respect, until something else follows. Give a
    `min_length` above the loop's where that is known, or feed the events again with `min_length =
    period.length + 1` when the stream departs from the period.

    *Search.* Cut the stream into blocks of `L = 1, 2, 4, ...` events at multiples of `L`. The first half
    of a square of period `p >= 2 L - 1` contains such a block, whose copy ends `p` later, before the
    square ends. So compare, after each event and for each `L`, the last `L` events with the two blocks that
    ended `2 L - 1` to `4 L - 2` events earlier: that meets every square, by one product of polynomial
    prefix hashes each. A match is extended to the left by a binary search, which gives the event at which
    the square will be complete; only then, the three conditions are looked at. As long as the period
    lasts, 1. and 2. cannot change, and the match is not examined again.

    *Cost.* O(log n) hash comparisons an event whatever the stream, and a binary search for each
    maximal gapped repeat, of which a word of n letters has O(n): O(n log n) in all. Condition 3. and the
    comparison of the words themselves before a report (so that a hash collision may delay, but never
    forge a period) take O(p) for a period that meets 1. and 2. About 200 bytes are kept an event,
    until the period is found.

    Departs from the paper, which does not say how: conditions 1. to 3. are ours.

    References
    ----------
    Zhang, Yeung, Shu, He, Wang: Efficient memory management for GPU-based deep learning systems, 2019,
    section V. Main, Lorentz: An O(n log n) algorithm for finding all repetitions in a string, 1984.
    Kolpakov, Podolskiy, Posypkin, Khrapov: Searching of gapped repeats and subrepetitions in a word, 2017.

    Examples
    --------
    >>> step = ["write", "read", "read"]
    >>> detector = Detector()
    >>> detector.push(Event("malloc", 0, 4))
    >>> for block in (1, 2):
    ...     events = [Event("malloc", block, 8), Event("write", block), Event("read", 0), Event("free", block)]
    ...     print([detector.push(e) for e in events][-1])
    None
    None
    """

    def __init__(self, *, min_length: int = 1) -> None:
        if min_length < 1:
            raise ValueError(f"min_length {min_length} is not at least 1")
        self.period: Period | None = None
        self.min_length = min_length
        self._count = 0
        self._live: dict[int, tuple[int, int]] = {}  # block -> (its malloc, its latest event), from 1
        # Row k is about event k - 1, or about the first k events; row 0 stands before the stream.
        self._code: list[int] = [-1]  # signatures as integers
        self._block: list[int] = [-1]
        self._born = array("q", [0])  # the malloc of the event's block
        self._lives = array("q", [0])  # blocks live after k events
        self._hash = array("q", [0])
        self._power = array("q", [1])
        self._far: list[int] = []  # events whose distance no later one reaches, oldest first
        self._far_distance: list[int] = []
        self._levels: list[int] = []
        self._since: dict[int, int] = {}  # period -> the events after this row repeat those before
        self._due: dict[int, list[int]] = {}  # row -> the periods to look at then

    def push(self, event: Event) -> Period | None:
        """Take the next event; return the period as soon as there is one, and the same ever after.

        Raises
        ------
        ValueError
            An unknown kind, a malloc of a live block or of a negative size, anything else on a block
            that is not live. The event does not count.

        Examples
        --------
        >>> Detector().push(Event("read", 7))
        Traceback (most recent call last):
            ...
        ValueError: event 0: read of block 7, which is not live
        """
        kind, value, born = self._signature(event)
        self._count += 1
        if self.period is None:
            self._record(4 * value + kind, event[1], born)
            if kind:
                self._note_distance(value)
            self._look_back()
            self._report()
        return self.period

    def _signature(self, event: Event) -> tuple[int, int, int]:
        """Check the event; return its kind, its size or distance, and its block's malloc."""
        name, block, size = event
        row = self._count + 1
        kind = _KINDS.get(name)
        if kind is None:
            raise ValueError(f"event {row - 1}: kind {name!r} is not one of {', '.join(_KINDS)}")
        known = self._live.get(block)
        if kind == 0:
            if known is not None:
                raise ValueError(f"event {row - 1}: malloc of block {block}, live since event {known[0] - 1}")
            if size < 0:
                raise ValueError(f"event {row - 1}: malloc of block {block} with {size} bytes")
            self._live[block] = (row, row)
            return kind, index(size), row
        if known is None:
            raise ValueError(f"event {row - 1}: {name} of block {block}, which is not live")
        born, latest = known
        if kind == 1:
            del self._live[block]
            return kind, row - born, born
        self._live[block] = (born, row)
        return kind, row - latest, born

    def _record(self, code: int, block: int, born: int) -> None:
        self._code.append(code)
        self._block.append(block)
        self._born.append(born)
        self._lives.append(len(self._live))
        self._hash.append((self._hash[-1] * _BASE + code) % _MODULUS)
        self._power.append(self._power[-1] * _BASE % _MODULUS)

    def _note_distance(self, distance: int) -> None:
        while self._far and self._far_distance[-1] <= distance:
            self._far.pop()
            self._far_distance.pop()
        self._far.append(self._count)
        self._far_distance.append(distance)

    def _same(self, a: int, b: int, length: int) -> bool:
        """Whether the last `length` of the first `a` events are those of the first `b` (by hash)."""
        h = self._hash
        return (h[a] - h[b] - (h[a - length] - h[b - length]) * self._power[length]) % _MODULUS == 0

    def _look_back(self) -> None:
        """Find the periods that the latest events start to repeat.

        ::

            rows      4L-2 back ...                2L-1 back          now
                  ----|====L====|====L====|----------------|====L====|
                      a block of L events that ended p ago = the last L: then p is a candidate
        """
        now, code = self._count, self._code
        last, levels = code[now], self._levels
        if 3 * (1 << len(levels)) - 1 <= now:
            levels.append(1 << len(levels))
        for size in levels:
            then = (now - 2 * size + 1) & -size
            if code[then] == last and self._same(now, then, size):
                self._consider(now - then, size)
            then -= size
            if code[then] == last and self._same(now, then, size):
                self._consider(now - then, size)

    def _consider(self, p: int, matched: int) -> None:
        """Note when period `p` will have lasted for `p` events, knowing that it has for `matched`."""
        now = self._count
        if p < self.min_length:
            return
        since = self._since.get(p)
        if since is not None and self._same(now, now - p, now - since):
            return  # the run is known
        most = min(p, now - p)
        step = matched
        while matched < most:  # gallop: most runs are short
            tried = min(matched + step, most)
            if not self._same(now, now - p, tried):
                most = tried - 1
                break
            matched, step = tried, 2 * step
        while matched < most:
            tried = (matched + most + 1) // 2
            if self._same(now, now - p, tried):
                matched = tried
            else:
                most = tried - 1
        self._since[p] = now - matched
        self._due.setdefault(now - matched + p, []).append(p)

    def _report(self) -> None:
        """Look at the squares that end now, the shortest first."""
        due = self._due.pop(self._count, None)
        for p in sorted(set(due)) if due else ():
            if self._is_square(p) and self._is_closed(p) and self._acts_alike(p):
                self.period = self._describe(p)
                return

    def _is_square(self, p: int) -> bool:
        now = self._count
        return now - self._since[p] >= p and self._same(now, now - p, p)

    def _is_closed(self, p: int) -> bool:
        """Conditions 1. and 2. of the last `p` events."""
        oldest = bisect_left(self._far, self._count - p + 1)
        far = self._far_distance[oldest] if oldest < len(self._far) else 0
        return far <= p and self._lives[self._count] == self._lives[self._count - p]

    def _acts_alike(self, p: int) -> bool:
        """Condition 3.; where an event breaks it, look again as soon as the second half is past that."""
        now, born = self._count, self._born
        start = now - 2 * p
        for row in range(now, now - p, -1):
            one, other = born[row - p], born[row]
            if other != (one if other <= start else one + p):
                self._due.setdefault(row + p, []).append(p)
                return False
        return self._code[start + 1 : now - p + 1] == self._code[now - p + 1 :]

    def _describe(self, p: int) -> Period:
        """The last `2 p` events as a period; its crossing blocks are looked up in the record."""
        now, block, born = self._count, self._block, self._born
        middle = now - p
        pairs = {b: (name, name) for name, (b, _) in self._live.items() if b <= middle}
        for row in range(middle + 1, now + 1):
            if self._code[row] & 3 == 1 and born[row] <= middle:
                pairs[born[row]] = (block[row], block[born[row] + p])
        crossing = [pairs[b] for b in sorted(pairs)]
        return Period(now - 2 * p, p, tuple(a for a, _ in crossing), tuple(b for _, b in crossing))


def detect(events: Iterable[Event], *, min_length: int = 1) -> Period | None:
    """Return the first period of a stream, or None; see `Detector`."""
    detector = Detector(min_length=min_length)
    for event in events:
        if (period := detector.push(event)) is not None:
            return period
    return None
