"""SmartPool as it runs: hand-worked logs, random programs against a naive model of live ranges, recorded traces."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.io import bundled, load
from gpumem.pool.allocators.caching import Caching
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay, stepwise
from gpumem.pool.smartpool import Deviation, SmartPool, online as smartpool
from gpumem.pool.smartpool._cursor import LOST, Cursor
from gpumem.pool.smartpool._iteration import GRAM, RequestTable, recorded
from gpumem.pool.smartpool.offline import best_fit, first_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.conftest import shared
from tests.strategies import traces

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


# Logs worked by hand -------------------------------------------------------------------------------------------------

# One iteration, by request:  0: a 8   1: b 4   2: -a   3: c 6   4: -b   5: -c
# a [0, 2), b [1, 4), c [3, 5): best fit puts a at 0 (largest), c at 0 (after a), b above a and c at 8: height 12.
STEP = "a8 b4 -a c6 -b -c"


def planned(**options: object) -> Judge:
    """A pool that has seen `STEP` twice, next to a block of 10 bytes, and has its region of 12 bytes."""
    judge = Judge(small(**options))  # type: ignore[arg-type]
    assert judge.run("w10") == [0]
    judge.run(f"{STEP} {STEP}")
    assert judge.pool.trace is None
    return judge


def test_two_iterations_are_recorded_and_the_third_is_looked_up() -> None:
    judge = Judge(small())
    # The device takes the smallest range that fits: 8 at 10, 4 at 18, and 6 in the 8 bytes that a left.
    assert judge.run("w10") == [0]
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.run(STEP) == [10, 18, 10]
    assert (judge.pool.base, judge.pool.placement) == (None, None)
    assert judge.run(STEP) == [10, 18, 10]  # the region is [10, 22): a at 10 + 0, b at 10 + 8, c at 10 + 0
    assert judge.pool.placement is not None
    assert (judge.pool.base, judge.pool.placement.height) == (10, 12)
    counts = judge.pool.statistics
    assert (counts.hits, counts.misses, counts.plans, counts.replans) == (3, 7, 1, 0)
    assert (counts.reserved.current, counts.reserved.peak) == (22, 22)
    assert not counts.deviations
    assert not judge.pool.statistics.recent


def test_a_plan_in_hand_serves_from_the_first_request_on() -> None:
    # Steps 0 to 3. w: all the time; a: [0, 2); b: [1, 3); c: [3, 5), across the boundary. Head: w, c.
    trace = Trace.from_lifetimes([10, 8, 4, 8], [0, 0, 1, 3], [4, 2, 3, 5], n=4)
    # best fit: w at 0, a [10, 18), c meets a at step 0: at 18, b meets a only: [18, 22), under nobody else
    placed = tight(trace)
    assert placed.offset.tolist() == [0, 10, 18, 18]
    judge = Judge(SmartPool.of(trace, placed, Native(granularity=1)))
    assert judge.run("w10 c8") == [0, 18]
    for _ in range(3):  # step 0: a; step 1: -c, b; step 2: -a; step 3: -b, c
        assert judge.run("a8 -c b4 -a -b c8") == [10, 18, 18]
    assert judge.pool.statistics.misses == 0
    assert not judge.pool.statistics.deviations
    assert judge.pool.statistics.reserved.peak == placed.height == 26


def test_blocks_from_before_the_plan_stay_and_are_freed_as_planned() -> None:
    judge = Judge(small())
    # -b comes right after the next iteration's malloc of a: b crosses the boundary
    judge.run("a8 b4 -a a8 -b b4 -a a8 -b")
    before = judge.at["a"]
    assert judge.pool.trace is None  # 'a8 -b b4 -a' has come twice with the next request
    judge.run("b4 -a a8 -b b4 -a a8 -b b4 -a")
    assert before == 0
    assert judge.pool.statistics.plans == 1
    assert not judge.pool.statistics.deviations


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


def test_another_size_is_served_by_the_fallback_and_reported() -> None:
    judge = planned()
    judge.run(STEP)
    assert judge.run("a8 b5 -a c6 -b -c") == [10, 22, 10]  # b goes behind the region [10, 22)
    assert judge.pool.statistics.deviations == {"size": 1}
    # request 1 + 3 * 6 came before, then a: b is request 20, due at position 1
    assert [*judge.pool.statistics.recent] == [Deviation("size", 20, 1, 5)]
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.pool.statistics.deviations == {"size": 1}


@pytest.mark.parametrize(
    "script, offsets, deviations",
    [
        # x comes where -a is due; its free is no part of the plan either
        ("a8 b4 x9 -a c6 -b -x -c", [10, 18, 22, 10], {"extra": 2}),
        # x comes where b is due and takes its place; then b comes late, and x has no place any more
        ("a8 x9 b4 -a c6 -b -x -c", [10, 22, 18, 10], {"size": 1, "late": 1, "extra": 1}),
        # b does not come: c is found two requests later, as its size says, and passes over -b, which is not there
        ("a8 -a c6 -c", [10, 10], {"skipped": 1}),
        # c before -a: a is overdue when c comes, which therefore goes behind the region; -a comes late
        ("a8 b4 c6 -a -b -c", [10, 18, 22], {"skipped": 1, "taken": 1, "late": 1}),
        # b before a: a is passed over and comes late, both where they belong
        ("b4 a8 -a c6 -b -c", [18, 10, 10], {"skipped": 1, "late": 1}),
        # -c before -b: passed over, late
        ("a8 b4 -a c6 -c -b", [10, 18, 10], {"skipped": 1, "late": 1}),
    ],
)
def test_after_a_deviation_the_rest_of_the_iteration_is_as_planned(
    script: str, offsets: list[int], deviations: dict[str, int]
) -> None:
    judge = planned()
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.run(script) == offsets
    assert judge.pool.statistics.deviations == deviations
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.pool.statistics.deviations == deviations


def test_what_is_due_goes_before_what_may_come_late() -> None:
    step = "a8 b4 -a c8 -b -c"
    judge = Judge(small())
    judge.run(f"w10 {step} {step} {step}")
    judge.run("b4 c8 -b -c")  # a does not come; its free is not there; the next 8 bytes are c's
    assert judge.pool.statistics.deviations == {"skipped": 1}


def test_a_free_long_before_it_is_due_leaves_the_position() -> None:
    # b is freed seven requests early, beyond the window; the table's own free is passed over later
    loops = "c2 -c d1 -d e3 -e f5 -f "
    step = f"a8 b4 {loops} -b -a"
    judge = Judge(small())
    judge.run(f"w10 {step} {step} {step}")
    before = judge.pool.statistics.hits
    judge.run(f"a8 b4 -b {loops} -a")
    assert judge.pool.statistics.deviations == {"early": 1}
    judge.run(step)
    assert judge.pool.statistics.hits == before + 12
    assert judge.pool.statistics.deviations == {"early": 1}


def test_bytes_of_a_block_that_lives_longer_go_to_nobody() -> None:
    judge = planned()
    assert judge.run(STEP) == [10, 18, 10]
    assert judge.run("a8 b4 -a c6 -b") == [10, 18, 10]  # c lives on over the boundary, on [10, 16)
    assert judge.run("x8 y4 -x z6 -y") == [22, 18, 22]  # x and z would lie on it
    counts = judge.pool.statistics.deviations
    assert counts == {"skipped": 1, "taken": 2}  # -c was passed over
    judge.run("-z -c")  # the free of z is due; c is an old acquaintance, but no buffer of the plan any more
    assert counts == {"skipped": 1, "taken": 2, "extra": 1}
    assert judge.run(STEP) == [10, 18, 10]


def test_lost_and_found_again() -> None:
    words = [f"{name}{size} -{name}" for name, size in zip("abcdefgh", range(11, 19))]
    step = " ".join(words)
    judge = Judge(small())
    judge.run(f"w100 {step} {step} {step}")
    assert judge.pool.statistics.hits == 8
    for k in range(2 * LOST):  # one odd iteration: nothing of it is in the plan
        judge.run(f"x{50 + k} -x")
    assert judge.pool.statistics.deviations["lost"] > 0
    assert judge.pool.statistics.hits == 8
    judge.run(step)
    assert judge.pool.statistics.hits == 8 + 8 - GRAM // 2  # a to d and their frees tell where it is
    total = judge.pool.statistics.deviations.total()
    assert len(set(judge.run(step))) == 1  # all at the bottom of the region
    assert judge.pool.statistics.hits == 8 + 4 + 8
    assert judge.pool.statistics.deviations.total() == total
    assert judge.pool.statistics.plans == 1


# Plans come and go ---------------------------------------------------------------------------------------------------

BIG = "a16 b8 -a c12 -b -c"


def test_another_shape_from_some_iteration_on_is_planned_anew() -> None:
    judge = planned()
    judge.run(STEP)
    first = judge.pool.placement
    judge.run(f"{BIG} {BIG}")
    assert judge.pool.placement is first  # found with the last request, planned with the next
    low = judge.run(BIG)
    assert judge.pool.placement is not first
    assert judge.pool.placement is not None
    assert (judge.pool.placement.height, judge.pool.statistics.replans) == (24, 1)
    assert [x - (judge.pool.base or 0) for x in low] == [0, 16, 0]
    assert judge.pool.statistics.reserved.current == 10 + 24  # the old region went back
    seen = judge.pool.statistics.deviations.total()
    assert judge.run(BIG) == low
    assert judge.pool.statistics.deviations.total() == seen


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


def test_two_shapes_that_take_turns_are_one_longer_iteration() -> None:
    judge = Judge(small())
    judge.run(f"w10 {STEP} {STEP}")
    for _ in range(4):
        judge.run(f"{BIG} {STEP}")
    placement = judge.pool.placement
    assert placement is not None
    assert judge.pool.statistics.plans == 2
    assert judge.pool.trace is not None
    assert (judge.pool.trace.n, placement.height) == (12, 24)
    before = judge.pool.statistics.misses
    judge.run(f"{BIG} {STEP} {BIG} {STEP}")
    assert judge.pool.statistics.misses == before


def test_an_odd_iteration_now_and_then_replaces_nothing() -> None:
    judge = planned()
    for k in range(6):
        judge.run(f"{STEP} {STEP} {STEP} {STEP}")
        judge.run(f"x{20 + k} y{30 + k} -x z7 -z -y")
    assert judge.pool.statistics.plans == 1
    judge.run(STEP)
    before = judge.pool.statistics.misses
    judge.run(STEP)
    assert judge.pool.statistics.misses == before


def test_a_short_loop_must_last_as_long_as_an_iteration_of_the_plan() -> None:
    step = "a64 b32 -a c48 " + "".join(f"x{k} -x " for k in range(20, 32)) + "-b -c"
    judge = Judge(small(min_length=4))
    judge.run(f"w100 {step} {step} {step}")
    plan = judge.pool.placement
    assert plan is not None
    for times in (3, 5, 4):  # a loop of 4 requests repeats, but for fewer requests than the 30 of the plan
        judge.run("p7 -p q9 -q " * times + step)
    assert judge.pool.placement is plan
    judge.run("r2 -r " + "p7 -p q9 -q " * 40)
    assert judge.pool.placement is not plan
    assert judge.pool.trace is not None
    assert judge.pool.trace.n == 4


def test_recording_ends_when_all_is_well_and_is_bounded_when_not() -> None:
    judge = planned(horizon=40)
    pool = judge.pool
    judge.run(STEP)
    assert pool._observer is None
    judge.run("a8 b5 -a c6 -b -c")
    assert pool._observer is not None
    judge.run(f"{STEP} {STEP}")
    assert pool._observer is None
    for k in range(100):  # never the same again
        judge.run(f"a{100 + k} -a")
        assert pool._observer is not None
        assert len(pool._observer._code) < 40


def test_the_horizon_hides_what_is_longer() -> None:
    judge = Judge(small(horizon=8))
    judge.run(f"{STEP} " * 5)
    assert judge.pool.statistics.plans == 0


# Where something fails -----------------------------------------------------------------------------------------------


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


def test_a_full_fallback_leaves_everything_as_it_was() -> None:
    judge = planned(capacity=30)
    judge.run(f"{STEP} a8")
    with pytest.raises(MemoryError):
        judge.pool.allocate(20)  # the region is in use
    judge.agree()
    assert judge.run("b4 -a c6 -b -c") == [18, 10]
    assert not judge.pool.statistics.deviations


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    judge = planned()
    with pytest.raises(ValueError, match="size: "):
        judge.pool.allocate(size)  # type: ignore[arg-type]
    assert judge.run(STEP) == [10, 18, 10]
    assert not judge.pool.statistics.deviations


def test_a_block_that_is_not_live_is_refused() -> None:
    judge = planned()
    judge.run(f"{STEP} a8")
    for offset in (11, 18, -1):  # inside a; b's place; nowhere
        with pytest.raises(ValueError, match=f"offset {offset}"):
            judge.pool.free(offset)
    judge.run("b4 -a c6 -b -c")
    assert not judge.pool.statistics.deviations


def bad(trace: Trace) -> Placement:
    return Placement.at(trace, [0] * len(trace.buffers))


def odd(trace: Trace) -> Placement:
    return Placement.at(trace, (trace.buffers.size.cumsum() * 256 + 1).tolist())


@pytest.mark.parametrize("planner, error", [(bad, CheckError), (odd, ValueError)])
def test_a_planner_that_fails_is_heard_and_the_pool_goes_on(
    planner: Callable[[Trace], Placement], error: type[Exception]
) -> None:
    judge = Judge(SmartPool(Native(granularity=256), planner=planner, min_length=4))
    judge.run(f"{STEP} {STEP}")
    with pytest.raises(error):
        judge.pool.allocate(8)
    judge.agree()
    judge.run(STEP)
    assert judge.pool.statistics.plans == 0
    judge.pool._planner = best_fit
    judge.run(f"{STEP} {STEP} {STEP}")
    assert judge.pool.statistics.plans == 1
    assert judge.pool.statistics.hits > 0


def test_plans_that_make_no_sense_are_refused() -> None:
    still = Trace.from_lifetimes([8, 0], [0, 1], [4, 2], n=4)
    with pytest.raises(ValueError, match="no buffer comes and goes"):
        SmartPool.of(still, tight(still))
    moving = Trace.from_lifetimes([8, 4], [0, 1], [2, 3])
    with pytest.raises(CheckError):
        SmartPool.of(moving, Placement.at(moving, [0, 4]))
    for name in ("alignment", "min_length", "horizon"):
        with pytest.raises(ValueError, match=f"{name}: 0"):
            SmartPool(**{name: 0})


# Streams -------------------------------------------------------------------------------------------------------------


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


def test_the_fallbacks_own_synchronize_is_the_pools() -> None:
    device = Native(granularity=1)
    heard = []
    device.synchronize = lambda: heard.append("the one set before")
    pool = SmartPool(device, alignment=1)
    pool.free(pool.allocate(4))
    pool.synchronize = lambda: heard.append("the one set after")
    pool.free(pool.allocate(4))
    assert heard == ["the one set before", "the one set after"]


# Random programs -----------------------------------------------------------------------------------------------------

SIZES = [1, 2, 3, 4, 8, 8, 16, 20]
Program = list[tuple[str, object, int]]


@st.composite
def iterations(draw: st.DrawFn) -> tuple[list[tuple[str, int]], list[int]]:
    """Mallocs and frees in any order: a free before its malloc is that of the previous iteration's block."""
    count = draw(st.integers(1, 8))
    order = draw(st.permutations([(kind, b) for b in range(count) for kind in "mf"]))
    return list(order), draw(st.lists(st.sampled_from(SIZES), min_size=count, max_size=count))


def unroll(iteration: tuple[list[tuple[str, int]], list[int]], times: int, tag: object) -> Program:
    """Repeat an iteration; a block is named by the tag, its buffer and the iteration that made it."""
    order, size = iteration
    program: Program = []
    latest: dict[int, object] = {}
    for k in range(times):
        for kind, b in order:
            if kind == "m":
                if b in latest:  # cannot be: between two mallocs of a buffer lies its free
                    raise AssertionError
                latest[b] = (tag, b, k)
                program.append(("m", latest[b], size[b]))
            elif b in latest:
                program.append(("f", latest.pop(b), 0))
    return program


def perturb(draw: Callable[[int], int], program: Program, count: int) -> Program:
    """Change sizes, insert and remove blocks, swap neighbours, free late or early; `draw(n)` is below `n`."""
    program = list(program)
    for k in range(count):
        at, what = draw(len(program)), draw(6)
        kind, name, size = program[at]
        if what == 0 and kind == "m":
            program[at] = kind, name, SIZES[draw(len(SIZES))] + 7 * draw(2)
        elif what == 1:
            program.insert(min(at + 1 + draw(12), len(program)), ("f", ("extra", k), 0))
            program.insert(at, ("m", ("extra", k), SIZES[draw(len(SIZES))] + 7 * draw(2)))
        elif what == 2:
            program = [request for request in program if request[1] != name] or program
        elif what == 3 and at + 1 < len(program) and program[at + 1][1] != name:
            program[at : at + 2] = program[at + 1], program[at]
        elif what == 4 and kind == "f":
            del program[at]
            program.insert(min(at + draw(40), len(program)), (kind, name, size))
        elif what == 5 and kind == "f":
            made = next(i for i, (_, other, _) in enumerate(program) if other == name)
            program.insert(made + 1 + draw(at - made), program.pop(at))
    return program


def play(judge: Judge, program: Program, stream: Callable[[int], int] = lambda k: 0) -> None:
    for k, (kind, name, size) in enumerate(program):
        if kind == "m":
            judge.malloc(name, size, stream(k))
        else:
            judge.free(name, stream(k))


@given(iterations(), st.integers(0, 12), st.integers(1, 2), st.integers(0, 2**32), st.booleans())
def test_whatever_happens_blocks_are_apart_and_a_regular_program_is_looked_up_again(
    iteration: tuple[list[tuple[str, int]], list[int]], odd: int, streams: int, seed: int, early: bool
) -> None:
    rng = random.Random(seed)
    judge = Judge(small(min_length=1 if early else len(iteration[0])))
    play(judge, unroll(iteration, 4, "before"), lambda k: rng.randrange(streams))
    play(judge, perturb(rng.randrange, unroll(iteration, 4, "odd"), odd), lambda k: rng.randrange(streams))
    play(judge, [("f", name, 0) for name in list(judge.at)])
    length = len(iteration[0])
    regular = unroll(iteration, 24, "after")
    play(judge, regular[:-length])
    counts = judge.pool.statistics
    if counts.plans == 0:
        assert not early  # a word that repeats a shorter one than `min_length` is none
        return
    before = counts.misses, counts.deviations.total()
    play(judge, regular[-length:])
    assert (counts.misses, counts.deviations.total()) == before


class Thorough(Cursor):
    """Looks at every request as if it might not be as planned."""

    def malloc_as_planned(self, size: int, stream: int) -> None:
        return None

    def free_as_planned(self, held: object) -> bool:
        return False


@pytest.mark.parametrize("seed", range(100))
def test_the_short_way_of_a_request_as_planned_comes_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    order = [(kind, b) for b in range(rng.randint(1, 24)) for kind in "mf"]
    rng.shuffle(order)
    iteration = order, [rng.choice(SIZES) for _ in order[::2]]
    odd = perturb(rng.randrange, unroll(iteration, 12, "odd"), rng.choice([2, 5, 12, 40]))
    program = [*unroll(iteration, 4, "before"), *odd, *unroll(iteration, 6, "after")]
    streams, found = rng.randint(1, 2), []
    for cursor in (Cursor, Thorough):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smartpool, "Cursor", cursor)
            judge, drawn = Judge(small(min_length=1)), random.Random(seed)
            told = []
            for request in program:
                play(judge, [request], lambda k, drawn=drawn: drawn.randrange(streams))
                now = judge.pool._cursor
                where = None if now is None else (now.position, now.streak, now._since, now._trouble, [*now._recent])
                told.append((judge.at.get(request[1]), where))
            found.append((told, judge.pool.statistics, judge.waits))
    assert found[0] == found[1]


@given(iterations(), iterations(), st.integers(1, 2))
def test_any_change_of_shape_is_planned_anew(
    one: tuple[list[tuple[str, int]], list[int]], other: tuple[list[tuple[str, int]], list[int]], streams: int
) -> None:
    judge = Judge(small(min_length=1))
    play(judge, unroll(one, 5, "one"), lambda k: k % streams)
    rest = unroll(other, 24, "other")
    play(judge, rest[: -len(other[0])])
    before = judge.pool.statistics.misses
    play(judge, rest[-len(other[0]) :])
    left = [name for name in judge.at if isinstance(name, tuple) and name[0] == "one"]
    if not left:  # a block that stays in the region for ever is in the way for ever
        assert judge.pool.statistics.misses == before


@given(iterations(), st.integers(20, 90), st.integers(0, 8), st.integers(0, 2**32))
def test_a_full_device_is_no_harm(
    iteration: tuple[list[tuple[str, int]], list[int]], capacity: int, odd: int, seed: int
) -> None:
    judge = Judge(small(min_length=2, capacity=capacity))
    program = perturb(random.Random(seed).randrange, unroll(iteration, 10, "odd"), odd)
    refused = set()
    for kind, name, size in program:
        if kind == "m":
            try:
                judge.malloc(name, size)
            except MemoryError:
                refused.add(name)
                judge.agree()
        elif name not in refused:
            judge.free(name)
    for name in list(judge.at):
        judge.free(name)
    assert judge.malloc("all", capacity) == 0  # an idle region makes room


# Traces --------------------------------------------------------------------------------------------------------------


def requests(trace: Trace, times: int) -> tuple[Program, list[Program]]:
    """What a trace asks for: the head, then each iteration; one buffer is one name until it is freed."""
    script, head = stepwise(trace)
    size, made = trace.buffers.size.tolist(), [0] * len(trace.buffers)
    live: dict[int, object] = {}

    def ask(part: list[int]) -> Program:
        program: Program = []
        for r in part:
            if r >= 0:
                made[r] += 1
                live[r] = (r, made[r])
                program.append(("m", live[r], size[r]))
            elif ~r in live:
                program.append(("f", live.pop(~r), 0))
        return program

    return ask(script[:head]), [ask(script[head:]) for _ in range(times)]


def offsets(pool: SmartPool, at: dict[object, int], program: Program) -> dict[int, int]:
    """Run a program; return the offset of each buffer that it made."""
    found = {}
    for kind, name, size in program:
        if kind == "m":
            assert isinstance(name, tuple)
            found[name[0]] = at[name] = pool.allocate(size)
        else:
            pool.free(at.pop(name))
    return found


def served_from_the_first_request_on(trace: Trace, placed: Placement, times: int) -> None:
    device = Native(granularity=1)
    pool = SmartPool.of(trace, placed, device)
    head, rounds = requests(trace, times)
    at: dict[object, int] = {}
    found = offsets(pool, at, head)
    for program in rounds:
        found |= offsets(pool, at, program)
        assert {b: placed.offset[b] for b in found} == found
    assert pool.statistics.misses == 0
    assert not pool.statistics.deviations
    assert device.statistics.reserved.peak == placed.height


@given(traces(max_ops=8, max_buffers=8), st.sampled_from([1, 4, 256]))
def test_any_placed_trace_is_served_as_it_is_placed(trace: Trace, alignment: int) -> None:
    placed = best_fit(trace, alignment=alignment)
    script, head = stepwise(trace)
    if len(script) > head:
        served_from_the_first_request_on(trace, placed, 3)


@given(traces(max_ops=8, max_buffers=8), st.sampled_from([1, 4, 256]))
def test_a_replayed_pool_yields_the_plan_it_was_given(trace: Trace, alignment: int) -> None:
    placed = first_fit(trace, alignment=alignment)
    script, head = stepwise(trace)
    if len(script) > head:
        pool = SmartPool.of(trace, placed, Native(granularity=256))
        assert replay(trace, pool).offset.tolist() == placed.offset.tolist()
        assert not pool.statistics.deviations


@given(traces(max_ops=8, max_buffers=8))
def test_a_replayed_pool_that_detects_yields_a_placement(trace: Trace) -> None:
    pool = SmartPool(Caching(), min_length=1)
    check.placement(trace, replay(trace, pool, iterations=8))
    assert not pool.statistics.deviations


@given(traces(max_ops=8, max_buffers=6))
def test_any_trace_is_found_and_served_alike_in_each_iteration(trace: Trace) -> None:
    script, head = stepwise(trace)
    if len(script) == head:
        return
    judge = Judge(small(min_length=1))
    first, rounds = requests(trace, 12)
    play(judge, first)
    for program in rounds[:-2]:
        play(judge, program)
    before = judge.pool.statistics.misses, judge.pool.statistics.deviations.total()
    at = judge.at
    assert offsets(judge.pool, at, rounds[-2]) == offsets(judge.pool, at, rounds[-1])
    assert (judge.pool.statistics.misses, judge.pool.statistics.deviations.total()) == before
    assert judge.pool.placement is not None
    assert judge.pool.statistics.reserved.peak >= judge.pool.placement.height


@pytest.mark.parametrize("name", ["vgg16", "resnet18", "mlp3"])
def test_bundled_traces_are_found_in_the_third_iteration(name: str) -> None:
    trace = bundled(name)
    served_from_the_first_request_on(trace, best_fit(trace), 4)
    pool = SmartPool(Native(granularity=256))
    head, rounds = requests(trace, 6)
    at: dict[object, int] = {}
    offsets(pool, at, head)
    found = [offsets(pool, at, program) for program in rounds]
    assert found[2] == found[3] == found[4] == found[5]
    assert pool.statistics.hits == 4 * len(found[0])
    assert not pool.statistics.deviations
    assert pool.placement is not None
    persistent = sum(-(-size // 256) * 256 for _, _, size in head)
    # the region is taken where only what lives for ever is live
    assert pool.statistics.reserved.current == persistent + -(-pool.placement.height // 256) * 256
    assert pool.statistics.reserved.peak <= 1.01 * trace.peak_load


def test_another_batch_size_midway() -> None:
    trace = bundled("vgg16")
    pool = SmartPool(Native(granularity=256))
    head, rounds = requests(trace, 9)
    persistent = {size for _, _, size in head}
    at: dict[object, int] = {}
    offsets(pool, at, head)
    for k, program in enumerate(rounds):  # from the fifth on, what is no parameter, nor as large as one, is half as big
        half = [(kind, b, size // 2 if kind == "m" and size not in persistent else size) for kind, b, size in program]
        before = pool.statistics.misses
        offsets(pool, at, program if k < 4 else half)
        if k in (2, 3, 7, 8):
            assert pool.statistics.misses == before
    assert pool.statistics.plans == 2


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/*.json.gz"), ids=lambda p: p.name.split(".")[0])
def test_recorded_traces_are_served_as_placed(path: Path) -> None:
    trace = load(path).trace
    if len(trace.buffers) < 3000:  # the larger ones take minutes to detect, and tell no more
        served_from_the_first_request_on(trace, best_fit(trace), 2)


# The table -----------------------------------------------------------------------------------------------------------


def test_a_recorded_iteration_is_a_trace_of_its_requests() -> None:
    # 0: -c of the previous iteration, made at 4, one iteration of 6 before: 2 requests ago; 1: a; 2: b; ...
    trace, requests_ = recorded([-2, 8, 4, -2, 6, -3])
    assert trace.n == 6
    assert list(zip(trace.buffers.size, trace.buffers.start, trace.buffers.end)) == [(8, 1, 3), (4, 2, 5), (6, 4, 6)]
    assert requests_ == [~2, 0, 1, ~0, 2, ~1]
    table = RequestTable.make(trace, tight(trace), requests_)
    assert (table.start, table.life) == ([1, 2, 4], [2, 3, 2])
    held = [[b for b in range(3) if table.holds(b, position)] for position in range(6)]
    assert held == [[2], [], [0], [0, 1], [1], [1, 2]]  # before each request
    assert table.quietest() == 1


def test_only_a_stretch_that_occurs_once_tells_where_it_is() -> None:
    trace, requests_ = recorded([5, -1] * 20 + [7, -1])
    found = RequestTable.make(trace, tight(trace), requests_).grams()
    assert all(7 in gram or -7 in gram for gram in found)
    assert found[(5, -5) * 3 + (7, -7)] == 41
    trace, requests_ = recorded([5, -1] * 10)  # no stretch is unique
    assert set(RequestTable.make(trace, tight(trace), requests_).grams()) == {(5, -5) * 4, (-5, 5) * 4}
