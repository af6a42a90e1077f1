"""Where an iteration begins and ends, found in the stream of a job's mallocs, frees, reads and writes.

A job says nowhere that a new iteration starts; its events repeat (SmartPool, section V: "two consecutive
subsequences are detected to be repeating"). Blocks get new ids every time, so events are compared by
their *signature*: a malloc by its size, a free by the block's lifetime, a read or a write by the distance
to the previous event on its block, both counted in events::

    stream   |-- warm-up --|------- u -------|------- u -------|        time right
                         start         start + length         end
    crossing[k]            ......=============================......    one block all the time, or
    crossing[k], its successor   ...====......       ...====......      made anew in each iteration

Equal neighbours alone are no iteration: layers and the optimizer's steps repeat as well. `Detector` says what is.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import NamedTuple

from gpumem.base.arguments import strict
from gpumem.trace.record._repeat_search import _FREE, _MALLOC, Period, _Search

_KINDS = {"malloc": _MALLOC, "free": _FREE, "read": 2, "write": 3}


class BlockEvent(NamedTuple):
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
    Reported is the first moment, and then the smallest `p >= min_length`, for which the last `2 p` events are
    a word `u u` of signatures, and

    1. no distance and no lifetime in the second `u` exceeds `p`: an iteration refers to nothing that happened
       more than one iteration ago. (The optimizer's step for one parameter refers to a gradient much older
       than the step before, a layer to a parameter of its own.)
    2. it frees as many blocks as it makes; with 1., all it makes is freed within `p` events. (A layer leaves
       activations on the way forward, and frees more than it makes on the way back.) Blocks are counted
       rather than bytes, since a block may have none.
    3. it acts on the same blocks as the first `u`, or on those made one period later. (1. and 2. do not imply
       it: where buffers take turns, signatures may repeat twice as often as addresses and swaps do.)
    4. it is no repetition `v v ...` that meets 1. to 3.: `u` is primitive or, where blocks take turns, the
       least power of a primitive word that brings each block back. Nor does a loop shorter than
       `min_length` pass by being taken several times.
    5. the period has lasted for at least as many events as came before it. (Operations in place, or copies
       into the slices of one buffer, meet 1. to 4.: an iteration of Tacotron 2 has "read x, write y" 40
       times in a row.) One that lasts is thus found when it makes up half of the stream, at the latest.

    The first distance on each block reaches back to what came before, so reads and writes repeat only from
    somewhere within the first regular iteration on, and a period is found within the third. One of mallocs and
    frees alone is found with the second. It begins where the repetition does, at any event of the iteration.

    One ambiguity remains, and no criterion on signatures resolves it: an inner loop that meets all five, such as
    micro-steps that accumulate gradients, the time steps of a recurrent network without backward pass, or, at
    the very beginning, the in-place initialisation of the first parameter. `min_length` is for that: 32 rules
    out the last; for the others it must exceed the length of the loop.

    *Search.* Cut the stream into blocks of `L = 1, 2, 4, ...` events at multiples of `L`. The first half of a
    square of period `p >= 2 L - 1` contains such a block, whose copy ends `p` later, before the square does. So
    compare, after each event and for each `L`, the last `L` events with the two blocks that ended `2 L - 1` to
    `4 L - 2` events earlier, by prefix hashes: that meets every square in time. A binary search to the left
    tells when the square will be complete, and the conditions are looked at then. While a period lasts, 1. and
    2. cannot change: one look will do.

    *Cost.* O(log n) comparisons an event whatever the stream, and a binary search for each maximal gapped repeat,
    of which there are O(n): O(n log n). A square that meets 1. and 2. costs O(p) more, and a comparison with each
    loop met before. 60 bytes an event are kept until the period is found, up to 300 in hostile streams. Hashes
    that collide (less than 1 in 10,000 for a million events) could hide a period, but not forge one: the words
    themselves are compared before the report. The paper says only "two consecutive subsequences"; the
    conditions are ours.

    References
    ----------
    Zhang et al.: Efficient memory management for GPU-based deep learning systems, 2019, section V.
    Main, Lorentz: An O(n log n) algorithm for finding all repetitions in a string, 1984.
    Kolpakov et al.: Searching of gapped repeats and subrepetitions in a word, 2017.

    Examples
    --------
    >>> detector = Detector()
    >>> detector.push(BlockEvent("malloc", 0, 4))
    >>> for block in (1, 2, 3):
    ...     for kind, b in (("malloc", block), ("write", block), ("read", 0), ("free", block)):
    ...         period = detector.push(BlockEvent(kind, b, 8))
    >>> period
    Period(start=4, length=4, crossing=(0, 2), successors=(0, 3))
    """

    @strict
    def __init__(self, *, min_length: int = 1) -> None:
        if min_length < 1:
            raise ValueError(f"min_length {min_length} is not at least 1")
        self.period: Period | None = None
        self._count = 0
        self._live: dict[int, tuple[int, int]] = {}  # block -> (event that made it, its latest event)
        self._search: _Search | None = _Search(min_length)

    def push(self, event: BlockEvent) -> Period | None:
        """Take the next event; return the period as soon as there is one, and the same ever after.

        Raises
        ------
        ValueError
            An unknown kind, a malloc of a live block or of a negative size, anything else on a block
            that is not live. The event does not count.

        Examples
        --------
        >>> Detector().push(BlockEvent("read", 7))
        Traceback (most recent call last):
            ...
        ValueError: event 0: read of block 7, which is not live
        """
        code, born = self._enter(event)
        self._count += 1
        if self._search is not None and (length := self._search.push(code, event[1], born, len(self._live))):
            self.period = self._search.describe(length, [made for made, _ in self._live.values()])
            self._search = None  # and the record with it
        return self.period

    def _enter(self, event: BlockEvent) -> tuple[int, int]:
        """Check the event and account for it; return its signature and the event that made its block."""
        if not isinstance(event, tuple) or len(event) != 3:
            raise ValueError(f"event {self._count}: {event!r:.60} is no BlockEvent(kind, block, size)")
        name, block, size = event
        number, kind, known = self._count, _KINDS.get(name), self._live.get(block)
        if kind is None:
            raise ValueError(f"event {number}: kind {name!r} is not one of {', '.join(_KINDS)}")
        if kind == _MALLOC:
            if known is not None:
                raise ValueError(f"event {number}: malloc of block {block}, which is live since event {known[0]}")
            if size < 0:
                raise ValueError(f"event {number}: malloc of block {block} of {size} bytes")
            code = 4 * index(size) + _MALLOC  # a Python integer, whatever came in: products do not wrap
            self._live[block] = (number, number)
            return code, number
        if known is None:
            raise ValueError(f"event {number}: {name} of block {block}, which is not live")
        born, latest = known
        if kind == _FREE:
            del self._live[block]
            return 4 * (number - born) + _FREE, born
        self._live[block] = (born, number)
        return 4 * (number - latest) + kind, born


@strict
def detect(events: Iterable[BlockEvent], *, min_length: int = 1) -> Period | None:
    """Return the first period of a stream, or None; what counts as one, and what it costs: see `Detector`.

    >>> step = [("malloc", 1, 8), ("write", 1), ("read", 0), ("free", 1)]
    >>> period = detect([BlockEvent("malloc", 0, 4)] + [BlockEvent(*e) for e in 3 * step])
    >>> period.start, period.length, period.end
    (4, 4, 12)
    """
    detector = Detector(min_length=min_length)
    for event in events:
        if (period := detector.push(event)) is not None:
            return period
    return None
