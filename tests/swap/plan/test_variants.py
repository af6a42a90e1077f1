"""Other ways to run an op: what a variant replaces, of a recorded run and of a recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem import check
from gpumem.swap.plan import Plan, Recompute, Variant
from gpumem.trace import Buffers, Ops, Trace
from tests.swap.nets import activation


def test_a_variant_replaces_duration_and_workspace() -> None:
    trace = activation()
    once = Plan((Variant(2, "winograd", 7, 100),)).apply(trace)
    assert (once.ops[2].name, once.ops[2].duration) == ("winograd", 7)
    assert once.buffers[2] == replace(once.buffers[2], size=100, start=2, end=3, kind="workspace")
    twice = Plan((Variant(2, "gemm", 9, 10),)).apply(once)
    assert (len(twice.buffers), twice.buffers[2].size) == (3, 10)
    check.data_flow(trace, twice)
    with pytest.raises(ValueError, match="two variants"):
        Plan((Variant(2, "a", 1, 1), Variant(2, "b", 1, 1))).apply(trace)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_rerun_has_a_variant_of_its_own(recorded: bool, own: bool) -> None:
    # buffer 0 is made by op 0, again before op 3, and once more before op 5
    ops = Ops.make([[], [0], [], [0], [], [0]], [[0], [], [1], [], [], []], duration=[4] * 6)
    trace = Trace(Buffers.make([8, 3], [0, 2], [6, 3]), ops)
    trace = Plan.of(trace, [Variant(0, "wide", 4, 50)]).apply(trace) if own else trace
    drops = [Recompute(0, 1, 3, 3), Recompute(0, 3, 5, 5)]
    ways = [Variant(0, "fast", 2, 100, at=5), *([Variant(0, "slow", 9, 5)] if recorded else [])]
    again = Plan.of(trace, [*drops, *ways]).apply(trace)
    runs = [o for o in again.ops if o.of == 0]
    usual = ("slow", 9, [5]) if recorded else ("wide", 4, [50]) if own else ("", 4, [])
    for run, (name, duration, workspaces) in zip(runs, [usual, usual, ("fast", 2, [100])], strict=True):
        held = [b for b in (again.buffers[j] for j in run.writes) if b.kind == "workspace"]
        assert (run.name, run.duration, [b.size for b in held]) == (name, duration, workspaces)
        assert all((b.start, b.end) == (run.id, run.id + 1) for b in held)
    check.data_flow(trace, again)
    with pytest.raises(ValueError, match="op 0 is not recomputed before op 4, only before 3, 5"):
        Plan.of(trace, [*drops, Variant(0, "fast", 2, 100, at=4)]).apply(trace)
    with pytest.raises(ValueError, match="two variants"):
        Plan.of(trace, [*drops, *ways, ways[0]]).apply(trace)


def test_a_workspace_makes_nothing_a_statistic() -> None:
    # op 1 counts in buffer 0 and writes nothing else; its variant has a workspace
    ops = Ops.make([[], [0], [0], [], [0]], [[0], [0], [], [], []])
    trace = Trace(Buffers.make([8], [0], [5], kind=["buffer"]), ops)
    again = Plan.of(trace, [Variant(1, "fast", 5, 6), Recompute(0, 2, 4, 4)]).apply(trace)
    assert [o.of for o in again.ops if o.role == "recompute"] == [0, 1] and not again.statistics.idx.size
    check.data_flow(trace, again)
