"""What can be recomputed: reasons why not, the cost, where the backward pass begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import bundled
from gpumem.simulator.machine import Machine
from gpumem.swap.facts import recompute
from gpumem.swap.facts.recompute import REASONS, backward_start, recomputable
from gpumem.swap.plan import Plan, Recompute
from gpumem.swap.plan.gaps import gaps
from gpumem.trace import RECOMPUTE, Buffers, Ops, Trace
from tests.conftest import tiny_machine
from tests.strategies import traces
from tests.swap.nets import layers


def test_every_reason_is_told(machine: Machine) -> None:
    def reason(ops: Ops, *, buffer: int = 1, end: int = 3) -> str:
        found = recomputable(Trace(Buffers.make([1, 8], [0, 0], [end, 3], persistent=[end == 3, False]), ops), machine)
        k = int(np.flatnonzero((found.gaps.buffer == buffer) & (found.gaps.after == 0))[0])
        return REASONS[found.reason[k]]

    make = Ops.make([[0], [], [1]], [[1], [], []])
    assert reason(make) == ""
    assert reason(Ops.make([[0], [], []], [[], [], []]), buffer=0) == "the gap wraps the iteration boundary"
    assert reason(Ops.make([[1], [], [1]], [[], [], []])) == "no op makes it as a whole"
    assert reason(Ops.make([[0, 1], [], [1]], [[1], [], []])) == "no op makes it as a whole"
    assert reason(replace(make, rng=np.array([True, False, False]))) == ""
    assert "reads nothing" in reason(Ops.make([[], [], [1]], [[1], [], []]))
    assert reason(make, end=2) == "no op makes it as a whole"  # its input, which is dead by then
    assert reason(Ops.make([[0], [], [1]], [[1], [0], []])) == "it was made before the iteration boundary"


def test_the_producers_time_is_the_cost(machine: Machine) -> None:
    found = recomputable(layers(2), machine)
    assert found.cost_ns[found.ok].tolist() == [10] * int(found.ok.sum())


def test_the_turn_of_a_trace() -> None:
    trace = bundled("vgg16")
    assert trace.ops.name[backward_start(trace)] == "ones_like.default"  # the gradient of the loss
    plain = replace(trace, buffers=replace(trace.buffers, kind=("",) * len(trace.buffers)))
    assert trace.ops.name[backward_start(plain)] == "nll_loss_backward.default"
    assert backward_start(replace(plain, ops=replace(trace.ops, name=("",) * trace.n))) == trace.peak[0]


@given(st.data())
def test_what_is_called_recomputable_is(data: st.DataObject) -> None:
    trace = data.draw(traces())
    found = recomputable(trace, tiny_machine())
    for k in range(len(found)):
        b, after, before = (int(x[k]) for x in (found.gaps.buffer, found.gaps.after, found.gaps.before))
        if at := int(found.until[k]):
            check.data_flow(trace, Plan((Recompute(b, after, before, at),)).apply(trace))
        if at < before and "reads nothing" not in REASONS[found.reason[k]]:  # and no later
            with pytest.raises(ValueError):
                Plan((Recompute(b, after, before, max(at, after) + 1),)).apply(trace)


def test_the_last_place_is_the_last_one_though_a_read_is_gone_before(machine: Machine) -> None:
    """X: op 0, from outside, changed by 3. A = f(X): op 1, alive through 5. Y = g(A): op 2, read by 8."""
    ops = Ops.make([[], [0], [1], [0], [], [1], [], [], [2]], [[0], [1], [2], [0], *[[]] * 5])
    trace = Trace(Buffers.make([1, 1, 1], [0, 1, 2], [4, 6, 9], kind=["input", "", ""]), ops)
    found = recomputable(trace, machine)
    assert found.until[-1] == 5  # from op 6 on A has to be recomputed, which needs X
    assert "outside" in REASONS[found.reason[-1]]
    assert recomputable(trace, machine, earlier=False).until[-1] == 0


def dead_chain(n: int) -> Trace:
    """T(i) = f(T(i - 1)), dead when it is read. Y(i) is made beside it and read backwards: it needs all T before."""
    reads = [[0], *([2 * i - 1] for i in range(1, n)), *([2 * i] for i in range(n, 0, -1))]
    writes = [[2 * i + 1, 2 * i + 2] for i in range(n)] + [[]] * n
    start = [0, *(x for i in range(n) for x in (i, i))]
    end = [2 * n, *(x for i in range(n) for x in (i + 2 if i < n - 1 else i + 1, 2 * n - i))]
    ops = Ops.make(reads, writes, duration=[10] * 2 * n)
    return Trace(Buffers.make([1] * (2 * n + 1), start, end, persistent=[True] + [False] * 2 * n), ops)


def changed(n: int) -> Trace:
    """A is changed in place n times. Of each version a T is made, dead soon; of the last Y, which the last op reads."""
    reads, writes = [[0]], [[1]]
    for i in range(n):
        last = [i + 1] if i else []
        reads += [[1], [1, *last]]
        writes += [[1], [i + 2]]
    reads += [[n + 1], [], [n + 2]]
    writes += [[n + 2], [], []]
    turn = len(reads)
    start = [0, 0, *(2 * i + 2 for i in range(n)), turn - 3]
    end = [turn, turn - 3, *(2 * i + 5 if i < n - 1 else turn - 2 for i in range(n)), turn]
    ops = Ops.make(reads, writes, duration=[10] * turn)
    return Trace(Buffers.make([1] * (n + 3), start, end, persistent=[True] + [False] * (n + 2)), ops)


@pytest.mark.parametrize(("make", "most"), [(layers, None), (dead_chain, 50), (changed, 50)])
def test_what_is_looked_at_grows_with_the_chain(
    make: Callable[[int], Trace], most: int | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(n: int) -> int:
        trace = make(n)
        limits = None if most is None else np.full(len(gaps(trace)), most)
        return looked(lambda: recomputable(trace, machine, most=limits), monkeypatch)

    assert looks(400) < 2.5 * looks(200) < 2.5 * 2.5 * looks(100)  # a square: 4 times


def test_versions_of_one_buffer_are_marked_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(n: int) -> int:
        g = gaps(trace := changed(n))
        found: list[recompute.Recomputable] = []
        seen = looked(lambda: found.append(recomputable(trace, machine, g.where(g.buffer == n + 2))), monkeypatch)
        assert len(found[0].ops.idx) == 2 * n + 2  # the recomputations of Y are all that went before it
        return seen

    assert looks(400) < 2.5 * looks(200) < 2.5 * 2.5 * looks(100)  # a square: 4 times


def looked(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many reads and writes a call of `recomputable` looks at."""
    real, seen = recompute._recompute_each, list[np.ndarray]()

    def noting(*args: np.ndarray) -> object:
        seen.append(args[-1])
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(recompute, "_recompute_each", noting)
        call()
    return int(seen[0][0])


@given(st.data())
def test_most_ends_what_takes_longer(data: st.DataObject) -> None:
    trace, machine = data.draw(traces()), tiny_machine()
    free, most = recomputable(trace, machine), data.draw(st.integers(0, 40))
    found = recomputable(trace, machine, most=np.full(len(free), most))
    same = free.cost_ns <= most
    assert (found.until[same] == free.until[same]).all() and (found.cost_ns <= most).all()
    assert (found.until <= free.until).all() and (found.ok == (free.ok & same)).all()
    for k in np.flatnonzero(found.until > 0).tolist():
        b, after, before = (int(x[k]) for x in (found.gaps.buffer, found.gaps.after, found.gaps.before))
        again = Plan((Recompute(b, after, before, int(found.until[k])),)).apply(trace)
        assert found.cost_ns[k] == machine.durations(again)[again.ops.role == RECOMPUTE].sum()
