"""The measures behind the tables of SmartPool's paper: footprints, what calls cost, means, and how they are shown."""

from __future__ import annotations

import gc
from functools import partial
from itertools import count

import pytest
from hypothesis import given, strategies as st

from benchmarks.papers import smartpool as pool_tables
from benchmarks.papers.published import BELOW_CNMEM
from benchmarks.papers.smartpool import costs
from gpumem.io import bundled
from gpumem.pipeline.footprint import placed, replayed
from gpumem.pool import best_fit
from gpumem.pool.allocators.native import Native
from gpumem.pool.allocators.protocol import replay
from gpumem.pool.smartpool.online import SmartPool
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.strategies import traces

FIGURES = ["native", "cnmem", "cnmem_first_fit", "cnmem_singa", "smartpool"]


@given(traces(max_ops=6, max_buffers=6), st.integers(0, 100))
def test_a_footprint_knows_the_better_of_two_bounds(trace: Trace, more: int) -> None:
    def planner(t: Trace) -> Placement:
        found = best_fit(t, alignment=1)
        return Placement(found.offset, found.height, bound=more)

    found, peak = placed(trace, planner, name="p"), trace.peak_live_bytes
    height = best_fit(trace, alignment=1).height
    assert (found.name, found.buffers, found.peak_live_bytes, found.size) == ("p", len(trace.buffers), peak, height)
    assert found.bound == max(peak, more)
    assert found.optimal is (height <= max(peak, more))
    assert found.ratio == (height / peak if peak else 1.0)


@given(traces(max_ops=6, max_buffers=6))
def test_native_in_bytes_takes_the_peak_load(trace: Trace) -> None:
    try:
        found = replayed(trace, partial(Native, granularity=1))
    except ValueError as error:  # a buffer that wraps and moves on
        assert "no placement" in str(error)
        return
    assert (found.size, found.bound, found.optimal) == (trace.peak_live_bytes, trace.peak_live_bytes, True)


def test_a_footprint_is_what_was_reserved_not_the_highest_address() -> None:
    trace = bundled("vgg16")
    found, native = replayed(trace, Native), Native()
    height = replay(trace, native).height
    assert found.size == native.statistics.reserved.peak != height == found.placement.height


class Log(Native):
    """Writes down what it is asked for."""

    def __init__(self, log: list[tuple[str, int]]) -> None:
        super().__init__(granularity=1)
        self.log = log

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self.log.append(("malloc", size))
        return super().allocate(size)

    def free(self, offset: int, *, stream: int = 0) -> None:
        self.log.append(("free", self._live[offset].requested))
        super().free(offset)


@given(traces(max_ops=6, max_buffers=6, streams=1), st.integers(1, 3), st.integers(0, 2))
def test_what_is_timed_is_what_replay_asks_for(trace: Trace, replays: int, warm: int) -> None:
    timed: list[tuple[str, int]] = []
    try:
        (cost,) = costs(trace, {"log": partial(Log, timed)}, replays=replays, warm=warm)
    except ValueError as error:
        assert "nothing to time" in str(error)
        assert not any(b.size and b.space == "device" and b.end - b.start < trace.n for b in trace.buffers)
        return
    replayed: list[tuple[str, int]] = []
    try:
        replay(trace, Log(replayed), iterations=9)
    except ValueError as error:
        assert "no placement" in str(error)
    assert timed == replayed[: len(timed)]
    mine = [b for b in trace.buffers if b.size and b.space == "device"]
    passing = sum(b.end - b.start < trace.n for b in mine)
    before = sum(b.end - b.start == trace.n or b.end > trace.n for b in mine)  # the first iteration
    assert len(timed) == before + 2 * passing * (replays + warm)
    assert (cost.allocator, cost.pairs) == ("log", passing)


def test_the_median_of_replays_in_turn_by_a_clock_of_ours() -> None:
    order: list[str] = []

    class Named(Native):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def allocate(self, size: int, *, stream: int = 0) -> int:
            order.append(self.name)
            return super().allocate(size)

    trace = Trace.from_lifetimes([1, 1], [0, 1], [1, 2])
    # three turns of two allocators: a takes 10, 30, 1000 and b 2, 200, 4; two pairs each
    readings = iter([0, 10, 0, 2, 0, 30, 0, 200, 0, 1000, 0, 4])
    makes = {name: partial(Named, name) for name in "ab"}
    found = costs(trace, makes, replays=3, warm=0, clock=lambda: next(readings))
    assert [(c.allocator, c.pairs, c.ns) for c in found] == [("a", 2, 15.0), ("b", 2, 2.0)]
    assert order == ["a", "a", "b", "b"] * 3


def test_no_garbage_is_collected_while_the_clock_runs() -> None:
    seen: list[bool] = []
    ticks = count()

    def clock() -> int:
        seen.append(gc.isenabled())
        return next(ticks)

    trace = Trace.from_lifetimes([1], [0], [1], n=2)
    costs(trace, {"a": Native}, clock=clock)
    assert set(seen) == {False} and gc.isenabled()

    class Broken(Native):
        def free(self, offset: int, *, stream: int = 0) -> None:
            if not gc.isenabled():
                raise ValueError("broken")
            super().free(offset)

    with pytest.raises(ValueError, match="broken"):
        costs(trace, {"a": Broken})
    assert gc.isenabled()


def test_smartpool_is_timed_as_planned() -> None:
    trace = bundled("vgg16")
    pools: list[SmartPool] = []

    def make() -> SmartPool:
        pools.append(SmartPool.of(trace, best_fit(trace)))
        return pools[-1]

    costs(trace, {"smartpool": make}, replays=2)
    (pool,) = pools
    assert (pool.statistics.misses, sum(pool.statistics.deviations.values())) == (0, 0)


def test_nothing_to_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="trace 'still': no buffer comes and goes, so there is nothing to time"):
        costs(Trace.from_lifetimes([1], [0], [2], name="still"), {"a": Native})
    with pytest.raises(ValueError, match="replays: 0, time at least one"):
        costs(bundled("mlp3"), {"a": Native}, replays=0)


def line_of(net: str, below: float) -> dict[str, object]:
    savings = {"below_cnmem": below, "below_cnmem_first_fit": 2 * below, "below_cnmem_singa": 3 * below}
    ratios = dict.fromkeys(FIGURES, 1.0) | savings
    return {"net": net, "peak_live_bytes": 2**20, **ratios, "paper_below_cnmem": BELOW_CNMEM.get(net)}


def test_means_are_over_the_vggs_and_over_the_resnets() -> None:
    rows = [line_of(*row) for row in (("vgg11", 0.1), ("vgg16", 0.3), ("resnet50", 0.5), ("mlp3", 0.9), ("unet", 0.9))]
    vggs, resnets = pool_tables.means(rows)
    assert (vggs["net"], vggs["below_cnmem"], vggs["below_cnmem_first_fit"]) == (
        "VGGs, mean of 2",
        pytest.approx(0.2),
        pytest.approx(0.4),
    )
    assert (resnets["net"], resnets["below_cnmem"]) == ("ResNets, mean of 1", 0.5)
    assert pool_tables.means(rows[3:]) == []
    lines = pool_tables.ratio_table(rows).splitlines()
    assert lines[1].split() == ["vgg11", "1.0", *["1.0000"] * 5, "10.0", "20.0", "30.0", "13.3"]
    assert lines[2].split()[-1] == "-"
    assert lines[6].split() == ["VGGs,", "mean", "of", "2", *["1.0000"] * 5, "20.0", "40.0", "60.0", "-"]
    assert lines[-1].startswith("paper: SmartPool up to 13.3 % below CnMem (VGG11), and itself at most at 1.016")


def test_means_are_of_one_rule_for_workspaces_each() -> None:
    rows = [line_of("vgg11", 0.1) | {"workspaces": "none"}, line_of("vgg11, fastest", 0.3) | {"workspaces": "fastest"}]
    found = [(row["net"], row["below_cnmem"]) for row in pool_tables.means(rows)]
    assert found == [("VGGs, mean of 1", 0.1), ("VGGs, mean of 1, fastest", 0.3)]
    assert [row["net"] for row in pool_tables.means(rows[1:])] == ["VGGs, mean of 1"]


def test_the_lowest_of_an_instance_is_shown_with_what_is_proven() -> None:
    sizes = {"high": 30, "low": 21, "middle": 25}
    rows = [
        {"instance": "i", "planner": name, "buffers": 9, "peak_live_bytes": 20, "footprint": size, "ratio": size / 20}
        | {"bound": 20.5, "optimal": False, "seconds": 0.25}
        for name, size in sizes.items()
    ]
    head, line = pool_tables.instance_table(rows).splitlines()
    assert head.split() == [
        "instance",
        "buffers",
        "peak",
        "live",
        "high",
        "s",
        "low",
        "s",
        "middle",
        "s",
        "lowest",
        "bound",
    ]
    assert line.split() == ["i", "9", "20", "1.5000", "0.25", "1.0500", "0.25", "1.2500", "0.25", "1.0500", "1.0250"]
