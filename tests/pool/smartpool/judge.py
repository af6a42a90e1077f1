"""SmartPool on a device of its own, and a judge that holds it to the contract after each request."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gpumem.pool.allocators.native import Native
from gpumem.pool.smartpool import SmartPool
from gpumem.pool.smartpool.offline import best_fit

tight = partial(best_fit, alignment=1)


def small(*, min_length: int = 4, capacity: int | None = None, **options: object) -> SmartPool:
    """A pool on a device that rounds nothing."""
    device = Native(capacity=capacity, granularity=1)
    return SmartPool(device, planner=tight, alignment=1, min_length=min_length, **options)  # type: ignore[arg-type]


class Judge:
    """The contract, naively: stands between the program and the pool, and looks into the pool after each request."""

    def __init__(self, pool: SmartPool) -> None:
        self.pool = pool
        self.at: dict[object, int] = {}
        self.size: dict[int, int] = {}  # of each live block, by offset
        self.user: dict[int, int] = {}  # stream that used a free byte last, since all were waited for
        self.mallocs: Counter[str] = Counter()
        self.waits = 0
        pool.synchronize = self.wait

    def wait(self) -> None:
        self.waits += 1
        self.user.clear()

    def malloc(self, name: object, size: int, stream: int = 0) -> int:
        low = self.at[name] = self.pool.allocate(size, stream=stream)
        assert low >= 0
        assert not low % self.pool.alignment
        for other, bytes_ in self.size.items():
            assert low + size <= other or other + bytes_ <= low, f"{low}+{size} meets {other}+{bytes_}"
        for byte in range(low, low + size) if self.user else ():
            assert self.user.pop(byte, stream) == stream, f"byte {byte} is still in use"
        self.size[low] = size
        self.mallocs["total"] += 1
        self.agree()
        return low

    def free(self, name: object, stream: int = 0) -> None:
        low = self.at.pop(name)
        size = self.size.pop(low)
        self.user.update(dict.fromkeys(range(low, low + size), stream))  # what the pool waits for now includes them
        self.pool.free(low, stream=stream)
        self.agree()

    def agree(self) -> None:
        counts = self.pool.statistics
        assert counts.hits + counts.misses == counts.blocks.total == self.mallocs["total"]
        assert counts.blocks.current == len(self.size)
        assert (
            counts.requested.current == sum(self.size.values()) <= counts.allocated.current <= counts.reserved.current
        )
        self.every_block_is_planned_or_overdue()

    def every_block_is_planned_or_overdue(self) -> None:
        """What safety rests on, whatever the position."""
        cursor = self.pool._cursor
        if cursor is None or cursor.region is None:
            return
        for held in cursor.region.live.values():
            planned = held.buffer >= 0 and cursor.table.holds(held.buffer, cursor.position)
            assert held.overdue or planned
        ranges = [(held.low, held.low + held.size) for held in cursor.region.live.values() if held.overdue]
        assert sorted(ranges) == cursor.region.overdue

    def run(self, script: str) -> list[int]:
        """Words `a4` (malloc of 4 bytes, named a) and `-a` (its free); return the offsets of the mallocs."""
        offsets = []
        for word in script.split():
            if word.startswith("-"):
                self.free(word[1:])
            else:
                offsets.append(self.malloc(word[0], int(word[1:])))
        return offsets


# One iteration, by request:  0: a 8   1: b 4   2: -a   3: c 6   4: -b   5: -c
# a [0, 2), b [1, 4), c [3, 5): best fit puts a at 0 (largest), c at 0 (after a), b above a and c at 8: height 12.
STEP = "a8 b4 -a c6 -b -c"
BIG = "a16 b8 -a c12 -b -c"  # the same with twice the bytes


def planned(**options: object) -> Judge:
    """A pool that has seen `STEP` twice, next to a block of 10 bytes, and has its region of 12 bytes."""
    judge = Judge(small(**options))  # type: ignore[arg-type]
    assert judge.run("w10") == [0]
    judge.run(f"{STEP} {STEP}")
    assert judge.pool.trace is None
    return judge
