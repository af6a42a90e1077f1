"""The region of a plan: when it is taken and given back, and which stream waits for its bytes."""

from __future__ import annotations

from gpumem.pool.allocators.native import Native
from gpumem.pool.smartpool import SmartPool
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.pool.smartpool.judge import BIG, STEP, Judge, planned, small, tight


def test_the_region_is_taken_where_the_load_is_least() -> None:
    judge = Judge(small())
    judge.run("a8 b4 -b b4 -b -a " * 2)
    assert judge.pool.statistics.reserved.peak == 12
    judge.run("a8")
    assert judge.pool.base is not None  # nothing else was live
    assert judge.pool.statistics.reserved.current == 12
    # the same with the boundary in the middle: live is a (8), then b; the region has to wait for the malloc of a
    judge = Judge(small())
    judge.run("b4 -b -a".replace("-a", "") + " " + "a8 b4 -b b4 -b -a " * 3)
    assert judge.pool.statistics.reserved.peak == 12


def test_the_old_region_stays_until_its_blocks_are_freed() -> None:
    judge = planned()
    judge.run(STEP)
    judge.run("a8 b4 -a c6 -b")  # c stays, in the old region, beyond the change
    judge.at["kept"] = judge.at.pop("c")
    judge.run(f"{BIG} {BIG} {BIG}")
    assert judge.pool.statistics.plans == 2
    assert judge.pool.statistics.reserved.current == 10 + 12 + 24
    judge.run("-kept")
    assert judge.pool.statistics.reserved.current == 10 + 24
    judge.run(BIG)


def test_without_room_for_the_region_the_fallback_goes_on() -> None:
    def stacked(trace: Trace) -> Placement:
        return Placement.at(trace, trace.buffers.size.cumsum() - trace.buffers.size)

    judge = Judge(SmartPool(Native(capacity=26, granularity=1), planner=stacked, alignment=1, min_length=4))
    judge.run(f"w10 {STEP} {STEP} {STEP} {STEP}")
    assert judge.pool.statistics.plans == 1
    assert judge.pool.base is None  # 18 bytes do not fit beside 10
    assert not judge.pool.statistics.deviations
    judge.run(f"-w {STEP} {STEP} {STEP}")
    assert judge.pool.base is not None
    before = judge.pool.statistics.misses
    judge.run(f"{STEP} {STEP}")
    assert judge.pool.statistics.misses == before


def test_attempts_to_take_the_region_become_rare() -> None:
    judge = planned()
    asked = []
    device = judge.pool._fallback
    allocate = device.allocate

    def full(size: int, *, stream: int = 0) -> int:
        asked.append(size)
        if size == 12:
            raise MemoryError("full")
        return allocate(size, stream=stream)

    device.allocate = full  # type: ignore[method-assign]
    judge.run(f"{STEP} " * 31)
    assert asked.count(12) == 5  # passes 1, 3, 7, 15, 31


def test_an_idle_region_makes_room() -> None:
    judge = planned(capacity=30)
    judge.run(STEP)
    assert judge.pool.statistics.reserved.current == 22
    assert judge.run("x20") == [10]  # 8 bytes were left
    assert judge.pool.base is None
    judge.run(f"-x {STEP} {STEP} {STEP} {STEP}")
    assert judge.pool.base is not None


def test_one_stream_never_waits_and_another_one_waits_once() -> None:
    judge = planned()
    judge.run(STEP)
    judge.waits = 0
    judge.run(STEP)
    assert judge.waits == 0
    judge.malloc("a", 8, 0)
    judge.malloc("b", 4, 1)  # b's bytes were used on stream 0
    assert judge.waits == 1
    judge.free("a", 0)
    judge.malloc("c", 6, 0)  # a's bytes, still on stream 0
    judge.free("b", 1)
    judge.free("c", 0)
    for _ in range(3):
        judge.malloc("a", 8, 0)
        judge.malloc("b", 4, 1)
        judge.free("a", 0)
        judge.malloc("c", 6, 0)
        judge.free("b", 1)
        judge.free("c", 0)
    assert judge.waits == 1  # each stream has bytes of its own from then on


def test_who_waited_once_need_not_wait_again() -> None:
    judge = planned()
    judge.run(STEP)
    judge.malloc("a", 8, 0)
    judge.malloc("x", 9, 0)  # not in the plan: from the device, whose free waits for all streams
    judge.malloc("b", 4, 1)
    judge.free("a", 1)
    judge.waits = 0
    judge.free("x", 0)
    assert judge.waits == 1
    judge.malloc("c", 6, 0)  # a's bytes
    assert judge.waits == 1


def test_bytes_of_the_region_that_nobody_had_yet_are_the_streams_that_took_it() -> None:
    # 8 bytes freed on stream 0 become part of the region, which the fallback gives to stream 0 without waiting
    class Reuses(Native):
        def free(self, offset: int, *, stream: int = 0) -> None:
            wait, self.synchronize = self.synchronize, lambda: None
            super().free(offset, stream=stream)
            self.synchronize = wait

    trace = Trace.from_lifetimes([8, 4], [0, 1], [2, 3])
    judge = Judge(SmartPool.of(trace, tight(trace), Reuses(granularity=1)))
    device = judge.pool._fallback
    device.free(device.allocate(12))
    judge.user.update(dict.fromkeys(range(12), 0))
    assert judge.malloc("a", 8, 0) == 0
    assert judge.waits == 0
    assert judge.malloc("b", 4, 1) == 8
    assert judge.waits == 1


def test_giving_a_region_back_waits_if_several_streams_used_it() -> None:
    class Later(Native):
        """Frees without waiting, and remembers on which stream."""

        last = -1

        def free(self, offset: int, *, stream: int = 0) -> None:
            self.last = stream
            wait, self.synchronize = self.synchronize, lambda: None
            super().free(offset, stream=stream)
            self.synchronize = wait

    for streams, waits in (([3, 3], 0), ([3, 4], 1)):
        device = Later(granularity=1)
        trace = Trace.from_lifetimes([8, 4], [0, 1], [2, 3])
        judge = Judge(SmartPool.of(trace, tight(trace), device))
        for k, stream in enumerate(streams):
            judge.malloc(k, [8, 4][k], 3)
            judge.free(k, stream)
        assert judge.pool._cursor is not None
        assert judge.pool._cursor.region is not None
        judge.pool._give_back(judge.pool._cursor.region)
        assert judge.waits == waits
        assert device.last == 3
