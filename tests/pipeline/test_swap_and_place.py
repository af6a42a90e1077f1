"""SmartPool and AutoSwap together: a plan whose placement fits the pool; and the Chrome trace of a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpumem import check
from gpumem.base import work
from gpumem.base.errors import Infeasible, NotReached
from gpumem.io import bundled, chrome
from gpumem.pipeline.swap_and_place import Combined, at_load, in_pool, refine_limit
from gpumem.pool import best_fit, search as pack
from gpumem.simulator.simulate import simulate
from gpumem.simulator.timeline import Timeline
from gpumem.swap import Plan, search
from gpumem.trace import Trace
from gpumem.trace.placement import Placement
from tests.pipeline.swapping import GTX, swap


def test_the_pool_limit_holds_for_the_placement() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 7 // 10
    found = in_pool(trace, limit, swap=swap, pool=best_fit)
    assert found.placement.height <= limit
    assert (
        found.trace.peak_live_bytes <= found.load_limit < limit
    )  # best-fit wastes some, so the live bytes had to sink
    check.placement(found.trace, found.placement)


@pytest.mark.jit
def test_the_highest_load_limit_that_fits_is_taken() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 7 // 10
    found = in_pool(trace, limit, swap=swap, pool=best_fit)
    tried = limit
    while tried > found.load_limit:
        assert at_load(trace, tried, swap=swap, pool=best_fit).placement.height > limit
        tried -= trace.peak_live_bytes // 200


def test_a_pool_that_is_large_enough_needs_no_plan() -> None:
    trace = bundled("resnet18")
    found = in_pool(trace, trace.peak_live_bytes * 2, swap=swap, pool=best_fit)
    assert found.plan.decisions == ()
    assert found.trace is trace


@pytest.mark.jit
def test_a_pool_too_small_is_infeasible_or_not_reached() -> None:
    trace = bundled("vgg16")
    with pytest.raises(Infeasible):
        in_pool(trace, trace.peak_live_bytes // 10, swap=swap, pool=best_fit)
    with pytest.raises(NotReached, match="a peak of"):
        in_pool(trace, trace.peak_live_bytes // 4, swap=swap, pool=best_fit)

    def wasteful(trace: Trace) -> Placement:
        return Placement(best_fit(trace).offset, trace.peak_live_bytes * 2, 256)

    with pytest.raises(NotReached, match="a pool of") as stop:
        in_pool(trace, trace.peak_live_bytes // 2, swap=swap, pool=wasteful)
    assert stop.value.reached >= 2 * 141_007_120  # twice the load_min


@pytest.mark.jit
def test_progress_is_told() -> None:
    told: list[str] = []
    trace = bundled("vgg16")
    in_pool(trace, trace.peak_live_bytes * 7 // 10, swap=swap, pool=best_fit, progress=told.append)
    assert told[0].startswith("trying a load limit of 70.0%")
    assert len(told) > 1


def test_the_chrome_trace_has_every_op_on_its_stream(tmp_path: Path) -> None:
    trace = bundled("vgg16")
    swapped = swap(trace, trace.peak_live_bytes * 7 // 10).apply(trace)
    line = simulate(swapped, GTX, best_fit(swapped))
    chrome.write(tmp_path / "line.json", swapped, line)
    written = json.loads((tmp_path / "line.json").read_text())
    spans = [e for e in written["traceEvents"] if e["ph"] == "X"]
    tracks = {e["tid"]: e["args"]["name"] for e in written["traceEvents"] if e["ph"] == "M"}
    assert [tracks[e["tid"]] for e in spans] == [o.stream for o in swapped.ops]
    assert [e["ts"] * 1000 for e in spans] == pytest.approx(line.start.tolist())
    assert [e["dur"] * 1000 for e in spans] == pytest.approx((line.end - line.start).tolist())


def test_the_chrome_trace_has_a_track_for_each_host() -> None:
    trace = bundled("mlp3")
    trace = replace(trace, ops=replace(trace.ops, hosts=("main", "copies"), host=np.arange(trace.n) % 2))
    line = simulate(trace, GTX.with_(host_ns=3e4))
    events = chrome.events(trace, line)
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["compute", "host main", "host copies"]
    spans = [e for e in events if e["ph"] == "X"]
    ran, issued = ([e for e in spans if e["cat"] == cat] for cat in ("compute", "issue"))
    handed = line.issued - (line.issued[0] - 30_000)  # the first host begins at time 0
    assert [e["args"]["issued_us"] for e in ran] == pytest.approx((handed / 1000).tolist())
    assert sorted((e["args"]["op"], e["tid"], e["dur"]) for e in issued) == [(i, 1 + i % 2, 30) for i in range(trace.n)]
    for host in (1, 2):  # it launches or waits, from first to last
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == host)
        assert [end for _, end in mine[:-1]] == pytest.approx([begin for begin, _ in mine[1:]])
        assert mine[-1][1] - mine[0][0] == pytest.approx(line.makespan / 1000)
    assert min(e["ts"] for e in spans) == 0


def _by_search(trace: Trace, load_limit: int, *, seed: int = 0, placed: bool = True) -> Plan:
    return search(trace, GTX, load_limit, placed=placed, seed=seed, effort=0.02)


@pytest.mark.thorough
@pytest.mark.jit
def test_settling_finds_a_shorter_iteration_in_the_same_pool() -> None:
    trace = bundled("vgg16")
    limit = trace.peak_live_bytes * 45 // 100
    pool = partial(pack, target=limit, effort=0)
    told: list[str] = []

    def judge(found: Combined) -> Timeline:
        return simulate(found.trace, GTX, found.placement)

    first = in_pool(trace, limit, swap=swap, pool=pool)
    swaps = [partial(_by_search, seed=seed) for seed in (0, 1)]
    with work.within(progress=told.append):
        found = refine_limit(trace, limit, first, swaps=swaps, pool=pool, judge=judge)
    assert found.placement.height <= limit and found.trace.peak_live_bytes <= limit
    assert judge(found).makespan < judge(first).makespan and told
    check.everything(trace, found.trace, found.placement, judge(found), GTX, limit=found.load_limit)
    assert refine_limit(trace, limit, first, swaps=[], pool=pool, judge=judge) is first
    assert refine_limit(trace, limit, first, swaps=swaps, pool=pool, judge=judge, least=2**60) is first


@pytest.mark.thorough
@pytest.mark.jit
def test_a_plan_made_for_a_placement_runs_as_the_capacity_clock_says() -> None:
    trace = bundled("vgg16")
    limit, base = trace.peak_live_bytes * 40 // 100, simulate(trace, GTX)
    over = {}
    for placed in (True, False):
        swapped = _by_search(trace, limit, placed=placed).apply(trace)
        over[placed] = simulate(swapped, GTX, best_fit(swapped)).overhead(base)
        assert simulate(swapped, GTX, capacity=limit).overhead(base) < 0.2
    assert over[True] < 0.11 < over[False]
