"""Values: who makes what an op finds, and until when it is there, against slow loops over the ops; by hand, holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.swap.plan import Decision, Hold, Plan, Recompute, Swap
from gpumem.swap.plan.values import REASONS, Origins, Versions
from gpumem.trace import COPY_IN, Buffers, Ops, Trace
from gpumem.trace.kinds import INPUT, OPT_STATE, PARAM
from tests.strategies import any_plans, steps, traces

RANDOM = "it is random, and the host cannot hold the state of the generator"


def life(trace: Trace, b: int, op: int) -> range:
    """The ops of this iteration that belong to the same lifetime of `b` as `op` does."""
    x = trace.buffers[b]
    if x.persistent and x.end - x.start == trace.n:
        return range(trace.n)
    return range(x.end - trace.n) if op < x.end - trace.n else range(x.start, min(x.end, trace.n))


def from_before(trace: Trace, b: int, op: int) -> bool:
    """Whether that lifetime began before this iteration."""
    x = trace.buffers[b]
    return op < x.end - trace.n or (x.persistent and x.end - x.start == trace.n)


def chain(trace: Trace, b: int, op: int, *, through: bool) -> list[int] | None:
    """The last whole write before `op` (or through it) and the changes after it; None where there is no whole one."""
    found: list[int] = []
    for i in reversed([i for i in life(trace, b, op) if i < op or (through and i == op)]):
        if b in trace.ops[i].writes:
            found.append(i)
            if b not in trace.ops[i].reads:
                return found[::-1]
    return None


def reason(trace: Trace, b: int, op: int, made: list[int] | None, *, changed: bool) -> str:
    """Why the chain cannot recomputed."""
    if trace.buffers[b].kind in (PARAM, OPT_STATE):
        return "it is a parameter or optimizer state"
    if made is None:
        return "it was made before the iteration boundary" if from_before(trace, b, op) else "no op makes it as a whole"
    first = trace.ops[made[0]]
    batch = trace.buffers[b].kind == INPUT or first.name.split(".")[0] == "_to_copy"
    nothing = first.name.startswith(("empty", "new_empty")) and len(made) == 1 and not changed
    if not first.reads and (batch or nothing):
        return "its data comes from outside, and may not come again"
    if any(trace.ops[i].role in ("copy_in", "copy_out") for i in made):
        return "it came by a copy"
    if any(b in trace.statistics[i] for i in made):
        return "an op updates it as a statistic, which happens once an iteration"
    return ""


def still_there(trace: Trace, b: int, op: int, place: int) -> bool:
    """Whether what `op` finds in `b` is on the device at the place before op `place`."""
    mine = life(trace, b, op)
    eternal = len(mine) == trace.n and from_before(trace, b, op)
    written = any(b in trace.ops[i].writes for i in range(op, place))
    return not written and (eternal or place in mine) and not trace.buffers.host[b]


def agrees(trace: Trace) -> None:
    v = Origins.of(trace)

    def version(rows: Versions, k: int) -> list[int]:
        ops: list[int] = v.writer[rows.first[k] : rows.stop[k]].tolist()
        return ops

    kept = trace.statistics.tolist()
    for op in trace.ops:
        mine = range(v.read_ptr[op.id], v.read_ptr[op.id + 1])
        assert v.read[mine].tolist() == [b for b in sorted(set(op.reads)) if b not in kept[op.id]]
        for k in mine:
            b = int(v.read[k])
            made = chain(trace, b, op.id, through=False)
            assert version(v.finds, k) == (made or [])
            assert REASONS[v.finds.why[k]] == reason(trace, b, op.id, made, changed=b in op.writes)
            assert v.dies[k] == (not any(b in trace.ops[i].writes for i in life(trace, b, op.id) if i >= op.id))
            for place in range(op.id + 1, trace.n):
                assert (place <= v.last[k]) == still_there(trace, b, op.id, place), (op.id, b, place)
        wrote = range(v.write_ptr[op.id], v.write_ptr[op.id + 1])
        assert v.write[wrote].tolist() == [b for b in sorted(set(op.writes)) if b not in kept[op.id]]
        for k in wrote:
            made = chain(trace, int(v.write[k]), op.id, through=True)
            assert v.made[k] == (made[0] if made else -1)
        for b in {*op.reads, *op.writes}:
            made, row = chain(trace, b, op.id, through=True), v.after(b, op.id)
            assert version(v.left, row) == (made or [])
            assert REASONS[v.left.why[row]] == reason(trace, b, op.id, made, changed=False)


@given(steps())
def test_what_ops_find_in_training_steps(trace: Trace) -> None:
    agrees(trace)


@given(traces(max_ops=12, streams=1, host=True))
def test_what_ops_find_in_any_trace(trace: Trace) -> None:
    agrees(trace)


@given(st.data())
def test_what_ops_find_after_a_plan(data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=3))
    agrees(data.draw(any_plans(trace)).apply(trace))


@given(st.data())
def test_what_a_barred_op_made_is_not_made_again(data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=6))
    ops = np.array(data.draw(st.lists(st.integers(0, 3).map(lambda k: k == 3), min_size=trace.n, max_size=trace.n)))
    v = Origins.of(trace)
    for before, after in zip((v.finds, v.left), (v.without(ops).finds, v.without(ops).left)):
        assert after.first is before.first and after.stop is before.stop
        for first, stop, why, then in zip(before.first, before.stop, before.why, after.why):
            assert then == (why if why or not ops[v.writer[first:stop]].any() else REASONS.index(RANDOM))


def two_values() -> Trace:
    """A: made by 0, changed by 1, read by 2, made anew by 3, read by 4. It dies with op 4; B, of A, with op 2."""
    ops = Ops.make([[], [0], [0], [1], [0], []], [[0], [0], [1], [0], [], []])
    return Trace(Buffers.make([8, 8], [0, 2], [5, 4]), ops)


def test_two_whole_writes_are_two_values() -> None:
    v = Origins.of(two_values())
    assert [v.writer[f:s].tolist() for f, s in zip(v.finds.first, v.finds.stop)] == [[0], [0, 1], [2], [3]]
    assert v.last.tolist() == [1, 3, 3, 4]  # A as op 0 left it is there until op 1 changes it
    assert v.dies.tolist() == [False, False, True, True]
    assert v.made.tolist() == [0, 0, 2, 3]


def test_the_first_write_of_all_is_looked_at_too() -> None:
    # A, the first buffer, comes from H by a copy in op 0 and is read by ops 1 and 3
    ops = Ops.make(
        [[1], [0], [], [0]], [[0], [], [], []], role=[COPY_IN, 0, 0, 0], stream=[1, 0, 0, 0], streams=["a", "h2d"]
    )
    trace = Trace(Buffers.make([8, 8], [0, 0], [4, 1], host=[False, True]), ops)
    with pytest.raises(ValueError, match="what buffer 0 holds after op 1: it came by a copy"):
        Plan.of(trace, [Recompute(0, 1, 3, 3)]).apply(trace)
    barred = Origins.of(two_values()).without(np.array([True, *[False] * 5]))
    assert [REASONS[why] for why in barred.finds.why] == [RANDOM, RANDOM, "", ""]


def filled(name: str) -> Trace:
    """A: allocated by 0, written in place by 1, read by 2 and 4."""
    ops = Ops.make([[], [0], [0], [], [0]], [[0], [0], [], [], []], name=[name, "fill_", "", "", ""])
    return Trace(Buffers.make([8], [0], [5]), ops)


def test_what_is_only_allocated_is_made_again_once_it_is_written_in_place() -> None:
    trace = filled("empty.memory_format")
    again = Plan.of(trace, [Recompute(0, 2, 4, 4)]).apply(trace)
    assert [o.of for o in again.ops if o.role == "recompute"] == [0, 1]
    check.data_flow(trace, again)
    with pytest.raises(ValueError, match="its data comes from outside"):
        Plan.of(trace, [Recompute(0, 2, 4, 4)]).apply(filled("_to_copy"))
    nobody = Trace(trace.buffers, Ops.make([[], [], [0], [], [0]], [[0], [], [], [], []], name=trace.ops.name))
    with pytest.raises(ValueError, match="its data comes from outside"):
        Plan.of(nobody, [Recompute(0, 2, 4, 4)]).apply(nobody)


def dead_input() -> Trace:
    """A made by 0, dead after 1; B made of A by 1, read by 2 and 5; C made by 3, read by 4."""
    ops = Ops.make([[], [0], [1], [], [2], [1]], [[0], [1], [], [2], [], []], name=list("abcdef"))
    return Trace(Buffers.make([4, 8, 2], [0, 1, 3], [2, 6, 5]), ops)


def test_a_held_input_is_read_instead_of_made_again() -> None:
    trace, again = dead_input(), Recompute(1, 2, 5, 5)
    assert [o.of for o in Plan.of(trace, [again]).apply(trace).ops] == [0, 1, 2, 3, 4, 0, 1, 5]
    held = Plan.of(trace, [again, Hold(0, 5)]).apply(trace)
    assert [(o.of, o.reads) for o in held.ops][5] == (1, (0,)) and held.n == 7
    assert (held.buffers.start[0], held.buffers.end[0]) == (0, 6)  # through the recomputation before op 5
    check.data_flow(trace, held)
    short = Plan.of(trace, [again, Hold(0, 4)]).apply(trace)  # not long enough
    assert short.n == 8 and short.buffers.end[0] == 4
    check.data_flow(trace, short)


def test_a_hold_alone_only_lengthens_a_lifetime() -> None:
    trace = dead_input()
    for until in range(2, 7):
        held = Plan.of(trace, [Hold(0, until)]).apply(trace)
        assert held.buffers.end.tolist() == [until, 6, 5] and held.n == trace.n


def test_what_is_swapped_and_held_stays_after_its_last_copy_in() -> None:
    trace = dead_input()
    decisions: list[Decision] = [Swap(1, 1, 2, 2, 2), Recompute(2, 3, 4, 4), Hold(2, 6), Hold(0, 3)]
    held = Plan.of(trace, decisions).apply(trace)
    check.data_flow(trace, held)
    assert max(b.end for b in held.buffers if b.of == 2) == held.n


@pytest.mark.parametrize(
    "hold, why",
    [
        (Hold(3, 5), "there are 3 buffers"),
        (Hold(0, 0), r"must obey 1 <= until <= 6, and its lifetime is \[0, 2\)"),
        (Hold(0, 7), "must obey 1 <= until <= 6"),
        (Hold(0, 3, after=5), "after must be an op that accesses the buffer"),
        (Hold(1, 4, after=2, at=2), "must obey after < at < until <= 6"),
        (Hold(1, 7, after=2, at=4), "must obey after < at < until <= 6"),
        (Hold(1, 4, at=3), "after must be an op that accesses the buffer"),
    ],
)
def test_a_hold_that_does_not_fit(hold: Hold, why: str) -> None:
    trace = dead_input()
    for before in ([], [Recompute(1, 2, 5, 5)]):  # recomputations look at holds too
        with pytest.raises(ValueError, match=why) as error:
            Plan.of(trace, [*before, hold]).apply(trace)
        assert str(hold) in str(error.value)


def test_who_cannot_be_held() -> None:
    trace = Trace(
        Buffers.make([8, 8, 8], [0, 2, 0], [3, 4, 2], persistent=[True, False, False], host=[False, False, True]),
        Ops.make([[0], [], []], [[], [], [1]]),
    )
    for buffer, why in [(0, "leaves nothing to hold"), (1, "leaves nothing to hold"), (2, "on the host already")]:
        with pytest.raises(ValueError, match=why):
            Plan.of(trace, [Hold(buffer, 3)]).apply(trace)
    twice = dead_input()
    with pytest.raises(ValueError, match="already held until op 3"):
        Plan.of(twice, [Hold(0, 3), Hold(0, 4)]).apply(twice)
