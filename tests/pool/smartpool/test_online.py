"""SmartPool as it runs, by hand-worked logs: when it plans, what it serves, what happens where something fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumem.base.errors import CheckError
from gpumem.pool.allocators.native import Native
from gpumem.pool.smartpool import SmartPool
from gpumem.pool.smartpool.offline import best_fit
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.pool.smartpool.judge import BIG, STEP, Judge, planned, small, tight

# Logs worked by hand -------------------------------------------------------------------------------------------------


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


# Plans come and go ---------------------------------------------------------------------------------------------------


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


def test_the_fallbacks_own_synchronize_is_the_pools() -> None:
    device = Native(granularity=1)
    heard = []
    device.synchronize = lambda: heard.append("the one set before")
    pool = SmartPool(device, alignment=1)
    pool.free(pool.allocate(4))
    pool.synchronize = lambda: heard.append("the one set after")
    pool.free(pool.allocate(4))
    assert heard == ["the one set before", "the one set after"]
