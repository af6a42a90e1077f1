"""Are faults in values recomputed seen in the bytes of a run (`execute`), and by `check.data_flow`?

The faults are put in on purpose: bytes show each of them, data flow all but a fresh draw.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gpumem import check
from gpumem.base.errors import CheckError
from gpumem.execute import Call, Views, in_issue_order
from gpumem.pool.smartpool.offline import best_fit
from gpumem.swap.plan import Plan, Recompute
from gpumem.trace import RECOMPUTE, SYNC, Buffers, Csr, Op, Ops, Trace
from gpumem.trace.kinds import STATISTICS
from tests.runs import outcome, same
from tests.strategies import any_plans, steps

SIZES = st.sampled_from([8, 9, 16])  # so many bytes hardly ever agree by chance


def left_out(trace: Trace, i: int) -> Trace:
    """Op `i` does nothing."""
    ops, role = trace.ops, trace.ops.role.copy()
    role[i] = SYNC
    reads, writes = ([[] if k == i else row for k, row in enumerate(rows.tolist())] for rows in (ops.reads, ops.writes))
    return replace(trace, ops=replace(ops, role=role, reads=Csr.of(reads), writes=Csr.of(writes)))


def twice(trace: Trace, i: int) -> Trace:
    """Op `i` runs a second time right after itself."""
    n, b = trace.n, trace.buffers
    order = np.sort(np.append(np.arange(n), i))

    def moved(step: np.ndarray) -> np.ndarray:
        there: np.ndarray = step // n * (n + 1) + step % n + (step % n > i)
        return there

    last = b.end - 1
    buffers = replace(b, start=moved(b.start), end=moved(last) + (last % n == i) + 1)
    o = trace.ops
    return Trace(
        buffers,
        Ops.make(
            o.reads.take(order),
            o.writes.take(order),
            name=[o.name[k] for k in order],
            stream=o.stream[order],
            streams=o.streams,
            role=o.role[order],
            of=o.of[order],
            rng=o.rng[order],
            statistics=o.statistics and o.statistics.take(order),
        ),
    )


def updating(original: Trace, trace: Trace, i: int) -> Trace | None:
    """Rerun `i` updates its statistics as well; None where it has none on the device."""
    place = original.ops.of.tolist().index(trace.ops.of[i])
    b = trace.buffers
    there = ((i - b.start) % trace.n < b.end - b.start) & ~b.host
    kept = np.flatnonzero(there & np.isin(b.of, original.buffers.of[original.statistics[place]])).tolist()
    if not kept:
        return None
    reads, writes = (
        [sorted({*row, *kept}) if k == i else row for k, row in enumerate(rows.tolist())]
        for rows in (trace.ops.reads, trace.ops.writes)
    )
    return replace(trace, ops=replace(trace.ops, reads=Csr.of(reads), writes=Csr.of(writes)))


def bytes_differ(original: Trace, trace: Trace, *, fresh: int = -1) -> bool:
    """Whether some op of `trace` reads other bytes than the unswapped run, or leaves others; `fresh` draws anew."""

    def fault(op: Op, views: Views, call: Call) -> Call:
        return anew(call, views.generator()) if op.id == fresh else call

    runs = (original, {}), (trace, {"fault": fault})
    want, got = (outcome(original, t, best_fit(t), in_issue_order, iterations=4, **kw) for t, kw in runs)
    return not same(want, got)


def anew(call: Call, counter: np.ndarray) -> Call:
    """Draw other numbers this once; what the op draws as recorded stays what it is."""

    def fresh(stream: object) -> None:
        counter[0] += np.uint64(1000)
        call(stream)
        counter[0] -= np.uint64(1000)

    return fresh


def flow_objects(original: Trace, trace: Trace) -> bool:
    try:
        check.data_flow(original, trace)
    except CheckError:
        return True
    return False


X, R, A, D, G, H = range(6)


def net() -> tuple[Trace, Trace]:
    """X is normalized to A with the statistics R, A changed twice in place and read between; D is drawn from it.

    D is recomputed before op 7 (with A in scratch), A before op 8.
    """
    reads = [[], [X, R], [A], [A], [A], [A], [D], [D, G], [A, G]]
    writes = [[X], [A, R], [A], [], [A], [D], [G], [G], [H]]
    ops = Ops.make(reads, writes, rng=[i == 5 for i in range(9)], name=list("lnrusdgbb"))
    start, end = [0, 0, 1, 5, 6, 8], [9, 9, 9, 8, 9, 9]
    kind = ["", STATISTICS, "", "", "", ""]
    table = Buffers.make([8] * 6, start, end, persistent=[b == R for b in range(6)], kind=kind)
    trace = Trace(table, ops)
    rewritten = Plan.of(trace, [Recompute(D, 6, 7, 7), Recompute(A, 5, 8, 8)]).apply(trace)
    assert [o.of for o in rewritten.ops if o.role == "recompute"] == [1, 2, 4, 5, 1, 2, 4]
    assert not flow_objects(trace, rewritten) and not bytes_differ(trace, rewritten)
    return trace, rewritten


RERUNS = [7, 8, 9, 10, 12, 13, 14]  # where they lie in the rewritten trace


@pytest.mark.parametrize("i", RERUNS)
def test_a_rerun_left_out_shows(i: int) -> None:
    trace, rewritten = net()
    assert flow_objects(trace, left_out(rewritten, i)) and bytes_differ(trace, left_out(rewritten, i))


@pytest.mark.parametrize("i", [8, 9, 13, 14])
def test_a_change_done_twice_shows(i: int) -> None:
    trace, rewritten = net()
    assert flow_objects(trace, twice(rewritten, i)) and bytes_differ(trace, twice(rewritten, i))


@pytest.mark.parametrize("i", [7, 10, 12])
def test_a_whole_write_done_twice_does_not_matter(i: int) -> None:
    trace, rewritten = net()
    assert not flow_objects(trace, twice(rewritten, i)) and not bytes_differ(trace, twice(rewritten, i))


@pytest.mark.parametrize("i", [7, 12])
def test_statistics_written_again_show(i: int) -> None:
    trace, rewritten = net()
    faulty = updating(trace, rewritten, i)
    assert faulty and flow_objects(trace, faulty) and bytes_differ(trace, faulty)


def test_a_fresh_draw_shows_in_bytes_only() -> None:
    trace, rewritten = net()
    assert bytes_differ(trace, rewritten, fresh=10)
    assert not flow_objects(trace, rewritten)


@given(st.data())
def test_data_flow_and_bytes_object_to_the_same_faults(data: st.DataObject) -> None:
    trace = data.draw(steps(sizes=SIZES))
    rewritten = data.draw(any_plans(trace)).apply(trace)
    again = np.flatnonzero(rewritten.ops.role == RECOMPUTE).tolist()
    assume(again)
    i = data.draw(st.sampled_from(again))
    for faulty in (left_out(rewritten, i), twice(rewritten, i), updating(trace, rewritten, i)):
        if faulty:
            assert flow_objects(trace, faulty) == bytes_differ(trace, faulty)


@given(st.data())
def test_a_fresh_draw_shows_wherever_the_rerun_is_needed(data: st.DataObject) -> None:
    trace = data.draw(steps(sizes=SIZES))
    rewritten = data.draw(any_plans(trace)).apply(trace)
    drawn = np.flatnonzero((rewritten.ops.role == RECOMPUTE) & rewritten.ops.rng).tolist()
    assume(drawn)
    i = data.draw(st.sampled_from(drawn))
    assert bytes_differ(trace, rewritten, fresh=i) == flow_objects(trace, left_out(rewritten, i))
