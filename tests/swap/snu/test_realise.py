"""Plans of a solution: every order of copies, no more than is looked at; solutions in which nothing is swapped."""

from __future__ import annotations

import tracemalloc
from importlib import import_module
from itertools import islice, permutations, product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem.base import work
from gpumem.simulator.machine import Link, Machine
from gpumem.swap import Plan, Swap
from gpumem.swap.facts.limits import Judge
from gpumem.swap.fluid import relax
from gpumem.swap.plan.gaps import Windows, windows
from gpumem.swap.snu import realise
from gpumem.swap.snu.realise import SwappedGaps, all_orders
from gpumem.trace import I64, Buffers, Ops, Trace

program = import_module("gpumem.swap.snu.ilp")  # the package's `ilp` is the planner
GTX = Machine.named("gtx1080ti").with_(launch_ns=0, out=Link(0, 1.0), into=Link(0, 1.0))


def held_over(buffers: int, ops: int) -> Trace:
    """Buffers that the first op makes and the last one reads."""
    everything = list(range(buffers))
    reads = [[], *[[]] * (ops - 2), everything]
    operators = Ops.make(reads, [everything, *[[]] * (ops - 1)], duration=[10] * ops)
    return Trace(Buffers.make([4] * buffers, [0] * buffers, [ops] * buffers), operators)


def naive_orders(spans: Windows, release: I64, fetch: I64, n: int, duplex: bool) -> list[list[Swap]]:
    """Every way to write the copies down, all at once; of those with one order the first."""
    places = {*(spans.after % n).tolist()} | (set() if duplex else {*(fetch % n).tolist()})
    outs = [
        [after, *(op for op in range(after + 1, end) if op % n in places)]
        for after, end in zip(spans.after.tolist(), release.tolist())
    ]
    orders: dict[tuple[tuple[int, int, int], ...], list[Swap]] = {}
    for out, order in product(product(*outs), permutations(range(len(spans)))):
        queue = [((op + 1) % n, 0, order.index(row), row) for row, op in enumerate(out)]
        queue += [(op % n, 1, order.index(row), row) for row, op in enumerate(fetch.tolist())]
        rows = np.array(order, np.int64)
        swaps = Swap.each(spans.where(rows), release[rows], fetch[rows], np.array(out, np.int64)[rows])
        key = tuple((place, kind, row) for place, kind, _, row in sorted(queue))
        orders.setdefault(key, [swap.within(n) for swap in swaps])
    return list(orders.values())


@given(st.data())
def test_the_orders_are_those_of_the_naive_form(data: st.DataObject) -> None:
    n, count = data.draw(st.integers(3, 6)), data.draw(st.integers(1, 3))
    after = [data.draw(st.integers(0, n - 3)) for _ in range(count)]
    writes = [[buffer for buffer in range(count) if after[buffer] == op] for op in range(n)]
    reads = [[]] * (n - 1) + [[*range(count)]]
    spans = windows(Trace(Buffers.make([4] * count, after, [n] * count), Ops.make(reads, writes)), GTX)
    release = np.array([data.draw(st.integers(start + 1, n - 1)) for start in spans.after.tolist()])
    fetch = np.array([data.draw(st.integers(start, n - 1)) for start in release.tolist()])
    duplex = data.draw(st.booleans())
    plans, is_all = all_orders(spans, release, fetch, n=n, duplex=duplex)
    assert [*plans] == naive_orders(spans, release, fetch, n, duplex) and is_all


def test_many_swaps_cost_no_more_memory_than_what_is_looked_at() -> None:
    spans = windows(held_over(10, 4), GTX)
    tracemalloc.start()
    try:
        plans, is_all = all_orders(spans, spans.after + 1, spans.before, n=4, duplex=True)
        assert len([*islice(plans, 3)]) == 3 and not is_all
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20  # 10! orders of 10 are half a gigabyte


def test_no_more_orders_are_looked_at_than_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realise, "ORDERS", 24)
    spans = windows(held_over(4, 4), GTX)
    plans, is_all = all_orders(spans, spans.after + 1, spans.before, n=4, duplex=True)
    assert len([*plans]) == 24 and is_all
    monkeypatch.setattr(realise, "ORDERS", 23)
    plans, is_all = all_orders(spans, spans.after + 1, spans.before, n=4, duplex=True)
    assert len([*plans]) == 23 and not is_all


def test_orders_are_simulated_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(work, "now", lambda: clock[0])
    trace = held_over(6, 5)
    search = program._Search(trace, GTX, 24, 0.0, 0)
    spans, offered = windows(trace, GTX), []

    def offer(plan: Plan) -> int:
        offered.append(plan)
        clock[0] += 4.0
        return 10**9

    monkeypatch.setattr(Judge, "offer", lambda self, plan: offer(plan))
    monkeypatch.setattr(program._Search, "solve", lambda self, *rest: np.zeros(1))
    monkeypatch.setattr(
        program.PlacedProgram, "decisions_of", lambda self, solution: (np.arange(6), spans.after + 1, spans.before)
    )
    monkeypatch.setattr(program.PlacedProgram, "forbid", lambda self, *rest: pytest.fail("not all orders were seen"))
    with work.within(10):
        search.solve_exactly(relax(trace, GTX, stalls=True, tiny=0.0), True)
    assert len(offered) == 3  # at 0, 4 and 8 s; 720 orders are left


def test_a_solution_in_which_nothing_is_swapped() -> None:
    trace = held_over(2, 4)
    fluid, breaks = relax(trace, GTX, stalls=True), np.arange(10)
    some = program.WholeProgram(fluid, breaks, trace.peak_live_bytes, 8)
    nothing = some.swapped_gaps(np.full(some.rows.columns, 0.4))
    for gap, instant in (nothing, [np.zeros(0, np.int64)] * 2):
        swapped = SwappedGaps.of(fluid, breaks, gap, instant)
        assert len(swapped) == 0
        assert (swapped.live_bytes(trace, 1).load == trace.live_bytes()).all()
        assert len(swapped.drop_needless(trace, 8)) == 0
