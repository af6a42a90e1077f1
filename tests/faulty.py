"""A right allocator and a right planner, and copies of them with one bug each, to test what finds bugs.

`ALLOCATORS` and `PLANNERS` list the bugs, each with the rules that it may be found to break.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpumem.pool.allocators.protocol import Statistics
from gpumem.pool.smartpool.offline import best_fit, colour
from gpumem.trace import Ops, Trace
from gpumem.trace.placement import Placement

ENDLESS = 2**50
Hole = tuple[int, int, int]  # first byte, end, the stream that may still be using it
CLEAN, MIXED = -1, -2  # nobody does; several streams do


class FirstFit:
    """First fit over one range, with streams; `capacity=None` for one without an end.

    Right, and cut into small methods, so that a bug is one of them written anew.
    """

    def __init__(self, capacity: int | None = 4096, alignment: int = 16) -> None:
        self.capacity, self.alignment = capacity, alignment
        self.statistics = Statistics()
        self.synchronize: Callable[[], None] = lambda: None
        self.live: dict[int, tuple[int, int]] = {}  # offset: bytes asked for, end
        self.holes: list[Hole] = [(0, ENDLESS if capacity is None else capacity, CLEAN)]

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self.check_size(size)
        need = self.rounded(size)
        hole = self.find(need)
        if hole is None:
            self.refused(size)
            raise MemoryError(f"no room for {size} bytes")
        hole = self.ready(hole, stream, need)
        self.holes.remove(hole)
        low, high, used = hole
        self.split(low, need, size, high, used)
        self.live[low] = (size, low + need)
        self.count(size, need)
        return low

    def free(self, offset: int, *, stream: int = 0) -> None:
        if offset not in self.live:
            self.not_live(offset)
            return
        size, end = self.live.pop(offset)
        self.discount(size, end - offset)
        self.put_back(offset, end, stream)

    def check_size(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size {size} is below 1")

    def rounded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def fits(self, hole: Hole, need: int) -> bool:
        return hole[1] - hole[0] >= need

    def find(self, need: int) -> Hole | None:
        return next((hole for hole in self.holes if self.fits(hole, need)), None)

    def ready(self, hole: Hole, stream: int, need: int) -> Hole:
        """Wait for other streams where the hole needs it; return it as it is then."""
        if hole[2] in (CLEAN, stream):
            return hole
        self.synchronize()
        self.holes = [(low, high, CLEAN) for low, high, _ in self.holes]
        return (hole[0], hole[1], CLEAN)

    def split(self, low: int, need: int, size: int, high: int, used: int) -> None:
        if low + need < high:
            insort(self.holes, (low + need, high, used))

    def put_back(self, low: int, high: int, stream: int) -> None:
        left = next((hole for hole in self.holes if hole[1] == low), None)
        right = next((hole for hole in self.holes if hole[0] == high), None)
        for hole in (left, right):
            if hole is not None and self.merges(hole, low):
                self.holes.remove(hole)
                low, high = min(low, hole[0]), max(high, hole[1])
                stream = hole[2] if stream == CLEAN else stream if hole[2] in (CLEAN, stream) else MIXED
        insort(self.holes, (low, high, stream))

    def merges(self, hole: Hole, low: int) -> bool:
        return True

    def refused(self, size: int) -> None:
        pass

    def not_live(self, offset: int) -> None:
        raise ValueError(f"offset {offset} is not live")

    def count(self, size: int, need: int) -> None:
        s = self.statistics
        for what, amount in ((s.blocks, 1), (s.requested, size), (s.allocated, need), (s.reserved, need)):
            what.add(amount)

    def discount(self, size: int, need: int) -> None:
        s = self.statistics
        for what, amount in ((s.blocks, 1), (s.requested, size), (s.allocated, need), (s.reserved, need)):
            what.drop(amount)


class Endless(FirstFit):
    """The same without a capacity."""

    def __init__(self) -> None:
        super().__init__(None, 256)


class OneStream:
    """Right as well, without any attribute: what is freed on a stream is kept for it, by size."""

    def __init__(self) -> None:
        self.bins: dict[tuple[int, int], list[int]] = {}
        self.live: dict[int, int] = {}
        self.top = 0

    def allocate(self, size: int, *, stream: int = 0) -> int:
        if size < 1:
            raise ValueError(f"size {size} is below 1")
        bin_ = self.bins.setdefault((size, stream), [])
        offset = bin_.pop() if bin_ else self.top
        self.top = max(self.top, offset + size)
        self.live[offset] = size
        return offset

    def free(self, offset: int, *, stream: int = 0) -> None:
        if offset not in self.live:
            raise ValueError(f"offset {offset} is not live")
        self.bins.setdefault((self.live.pop(offset), stream), []).append(offset)


class LastByteShared(FirstFit):
    def __init__(self) -> None:
        super().__init__(alignment=1)

    def split(self, low: int, need: int, size: int, high: int, used: int) -> None:
        super().split(low, max(need - 1, 1), size, high, used)


class FitsOneByteMore(FirstFit):
    def __init__(self) -> None:
        super().__init__(alignment=1)

    def fits(self, hole: Hole, need: int) -> bool:
        return hole[1] - hole[0] >= need - 1


class LeftNotMerged(FirstFit):
    def merges(self, hole: Hole, low: int) -> bool:
        return hole[0] >= low


class RightNotMerged(FirstFit):
    def merges(self, hole: Hole, low: int) -> bool:
        return hole[0] < low


class NeverMerged(FirstFit):
    def merges(self, hole: Hole, low: int) -> bool:
        return False


class DoubleFreeIgnored(FirstFit):
    """Of blocks that were live once, except at 0; what was never handed out is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.once: set[int] = set()

    def count(self, size: int, need: int) -> None:
        super().count(size, need)
        self.once |= set(self.live)

    def not_live(self, offset: int) -> None:
        if offset == 0 or offset not in self.once:
            super().not_live(offset)


class UnknownFreeIgnored(FirstFit):
    def not_live(self, offset: int) -> None:
        pass


class WrongErrorForUnknown(FirstFit):
    def not_live(self, offset: int) -> None:
        raise KeyError(offset)


class InsideFreed(FirstFit):
    """Takes any byte of a live block for the block."""

    def not_live(self, offset: int) -> None:
        for low, (_, end) in self.live.items():
            if low < offset < end:
                self.free(low)
                return
        super().not_live(offset)


class NotRounded(FirstFit):
    """Right as long as all sizes are multiples of the alignment."""

    def rounded(self, size: int) -> int:
        return size


class NotRoundedInHoles(FirstFit):
    """Rounds at the end of the pool; splits a hole between two blocks without."""

    def split(self, low: int, need: int, size: int, high: int, used: int) -> None:
        super().split(low, size if high < 4096 else need, size, high, used)


class NoSync(FirstFit):
    def ready(self, hole: Hole, stream: int, need: int) -> Hole:
        return hole


class SyncAfterwards(FirstFit):
    """Synchronises at the request after the one that needs it."""

    late = False

    def ready(self, hole: Hole, stream: int, need: int) -> Hole:
        if self.late:
            self.synchronize()
        self.late = hole[2] not in (CLEAN, stream)
        return hole


class NoSyncInParts(FirstFit):
    """Synchronises for a whole hole, forgets it for a part of one."""

    def ready(self, hole: Hole, stream: int, need: int) -> Hole:
        return super().ready(hole, stream, need) if hole[1] - hole[0] == need else hole


class RemainderTakenForClean(FirstFit):
    """The stream that still uses the bytes is forgotten with what is left of a hole."""

    def split(self, low: int, need: int, size: int, high: int, used: int) -> None:
        super().split(low, need, size, high, CLEAN)


class LastStreamKept(FirstFit):
    """Of two holes that merge, only the stream that freed last is remembered."""

    def put_back(self, low: int, high: int, stream: int) -> None:
        super().put_back(low, high, stream)
        self.holes = [(a, b, stream if used == MIXED else used) for a, b, used in self.holes]


class LeaksWhenFull(FirstFit):
    """A request that is refused keeps the first hole."""

    def refused(self, size: int) -> None:
        if self.holes:
            self.holes.pop(0)


class ZeroAccepted(FirstFit):
    def check_size(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"size {size} is negative")


class NegativeAccepted(FirstFit):
    def check_size(self, size: int) -> None:
        if size == 0:
            raise ValueError("size is 0")


class ZeroIsFull(FirstFit):
    def check_size(self, size: int) -> None:
        if size == 0:
            raise MemoryError
        super().check_size(size)


class AboveCapacity(FirstFit):
    """The pool is one page larger than it says."""

    def __init__(self) -> None:
        super().__init__()
        self.holes = [(0, 4096 + 256, CLEAN)]


class CorruptAfterFailedFree(FirstFit):
    """Refuses, but has put the bytes back."""

    def not_live(self, offset: int) -> None:
        if 0 <= offset < 4096 - 16:
            insort(self.holes, (offset // 16 * 16, offset // 16 * 16 + 16, CLEAN))
        super().not_live(offset)


class ForgetsAfterFailedFree(FirstFit):
    """Refuses, but has counted."""

    def not_live(self, offset: int) -> None:
        self.statistics.blocks.drop(1)
        super().not_live(offset)


class PeakWrong(FirstFit):
    def discount(self, size: int, need: int) -> None:
        super().discount(size, need)
        self.statistics.requested.peak = self.statistics.requested.current


class RoundedCounted(FirstFit):
    def count(self, size: int, need: int) -> None:
        super().count(need, need)

    def discount(self, size: int, need: int) -> None:
        super().discount(need, need)


class RefusedCounted(FirstFit):
    def refused(self, size: int) -> None:
        self.count(size, size)


class FreeNotCounted(FirstFit):
    def discount(self, size: int, need: int) -> None:
        self.statistics.requested.drop(size)


class Unpredictable(FirstFit):
    """Starts at another hole in every allocator of a program."""

    number: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.turn = next(self.number) % 2

    def find(self, need: int) -> Hole | None:
        found = [hole for hole in self.holes if self.fits(hole, need)]
        return found[-self.turn] if found else None


class ByIdentity(FirstFit):
    """Takes the first hole of a set of objects, whose order is that of their addresses."""

    def find(self, need: int) -> Hole | None:
        found = [hole for hole in self.holes if self.fits(hole, need)]
        return min(found, key=id, default=None)


class TailNotReused(Endless):
    """Bytes freed right below the untouched end are lost."""

    def put_back(self, low: int, high: int, stream: int) -> None:
        if not any(hole[0] == high and hole[1] == ENDLESS for hole in self.holes):
            super().put_back(low, high, stream)


class LargeNotReused(Endless):
    def put_back(self, low: int, high: int, stream: int) -> None:
        if high - low < 2**20:
            super().put_back(low, high, stream)


class AlwaysFull(FirstFit):
    def fits(self, hole: Hole, need: int) -> bool:
        return False


class Crashes(FirstFit):
    """Is at a loss where it should say that it is full."""

    def refused(self, size: int) -> None:
        raise IndexError("list index out of range")


class BytesForAnOffset(FirstFit):
    def allocate(self, size: int, *, stream: int = 0) -> int:
        return float(super().allocate(size, stream=stream))  # type: ignore[return-value]


class BelowZero(FirstFit):
    def allocate(self, size: int, *, stream: int = 0) -> int:
        return super().allocate(size, stream=stream) - 16


ALLOCATORS: dict[Callable[[], FirstFit], set[str]] = {
    LastByteShared: {"overlap"},
    FitsOneByteMore: {"overlap", "capacity", "recovery", "error"},
    LeftNotMerged: {"recovery"},
    RightNotMerged: {"recovery"},
    NeverMerged: {"recovery"},
    DoubleFreeIgnored: {"double free"},
    UnknownFreeIgnored: {"unknown free", "double free"},
    WrongErrorForUnknown: {"unknown free", "double free"},
    InsideFreed: {"unknown free", "double free"},
    NotRounded: {"alignment"},
    NotRoundedInHoles: {"alignment"},
    NoSync: {"stream"},
    SyncAfterwards: {"stream"},
    NoSyncInParts: {"stream"},
    RemainderTakenForClean: {"stream"},
    LastStreamKept: {"stream"},
    LeaksWhenFull: {"recovery"},
    ZeroAccepted: {"size"},
    NegativeAccepted: {"size"},
    ZeroIsFull: {"size"},
    AboveCapacity: {"capacity"},
    CorruptAfterFailedFree: {"overlap", "capacity", "recovery", "error", "statistics", "stream"},
    ForgetsAfterFailedFree: {"unknown free", "double free"},
    PeakWrong: {"statistics"},
    RoundedCounted: {"statistics"},
    RefusedCounted: {"statistics"},
    FreeNotCounted: {"statistics"},
    Unpredictable: {"deterministic"},
    ByIdentity: {"deterministic"},
    TailNotReused: {"growth"},
    LargeNotReused: {"growth"},
    AlwaysFull: {"service"},
    Crashes: {"error"},
    BytesForAnOffset: {"offset"},
    BelowZero: {"offset"},
}


def placed(trace: Trace, alignment: int = 16) -> Placement:
    """A right planner."""
    return best_fit(trace, alignment=alignment)


def forgets_arcs(trace: Trace) -> Placement:
    """Takes `end` for the last step, whatever wraps around."""
    b = trace.buffers
    return Placement.at(trace, np.where(b.host, -1, colour(b.size, b.start, b.end)[0]))


def ends_too_early(trace: Trace) -> Placement:
    """Off by one: the last step of a buffer of several steps is not its own."""
    b = trace.buffers
    return placed(Trace(replace(b, end=np.maximum(b.end - 1, b.start + 1)), Ops.make([], []), trace.n))


def starts_too_late(trace: Trace) -> Placement:
    """Off by one at the other side, where it does not start at 0."""
    b = trace.buffers
    late = (b.start > 0) & (b.start + 1 < trace.n) & (b.end - b.start > 1)
    return placed(Trace(replace(b, start=b.start + late), Ops.make([], []), trace.n))


def last_byte_shared(trace: Trace) -> Placement:
    b = trace.buffers
    smaller = Trace(replace(b, size=np.where(b.size > 1, b.size - 1, b.size)), Ops.make([], []), trace.n)
    return Placement.at(trace, best_fit(smaller, alignment=1).offset)


def not_aligned(trace: Trace) -> Placement:
    """Says so, too: only who asks for an alignment finds it."""
    return placed(trace, 1)


def alignment_claimed(trace: Trace) -> Placement:
    return Placement(not_aligned(trace).offset, not_aligned(trace).height, 16)


def too_low(trace: Trace) -> Placement:
    right = placed(trace)
    return Placement(right.offset, max(right.height - 1, 0), 16)


def on_the_host(trace: Trace) -> Placement:
    return Placement(np.maximum(placed(trace).offset, 0), placed(trace).height, 16)


def none_for_nothing(trace: Trace) -> Placement:
    """Gives a buffer without bytes no offset."""
    right = placed(trace)
    return Placement(np.where(trace.buffers.size == 0, -1, right.offset), right.height, 16)


def one_forgotten(trace: Trace) -> Placement:
    """Returns an offset less when there are many."""
    right = placed(trace)
    return Placement(right.offset[:8], right.height, 16)


def all_at_zero(trace: Trace) -> Placement:
    return Placement.at(trace, np.where(trace.buffers.host, -1, 0))


def at_random(trace: Trace) -> Placement:
    """Right, but higher by what the program has placed before."""
    right = placed(trace)
    offset = np.where(trace.buffers.host, -1, right.offset + 16 * (next(Unpredictable.number) % 2))
    return Placement.at(trace, offset, alignment=16)


def sorts_in_place(trace: Trace) -> Placement:
    right = placed(trace)
    trace.buffers.size.sort()
    return right


def needs_a_buffer(trace: Trace) -> Placement:
    trace.buffers.size.max()
    return placed(trace)


PLANNERS: dict[Callable[[Trace], Placement], set[str]] = {
    forgets_arcs: {"placement"},
    ends_too_early: {"placement"},
    starts_too_late: {"placement"},
    last_byte_shared: {"placement"},
    not_aligned: {"alignment"},
    alignment_claimed: {"placement"},
    too_low: {"placement"},
    on_the_host: {"placement"},
    none_for_nothing: {"placement"},
    one_forgotten: {"placement"},
    all_at_zero: {"placement"},
    at_random: {"deterministic"},
    sorts_in_place: {"unchanged"},
    needs_a_buffer: {"error"},
}
