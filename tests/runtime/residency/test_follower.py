"""What a plan has around an op is done there, to the storages that it is about; and it is left where ops differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from gpumem import Recorder
from gpumem.runtime.residency.follower import DOZEN, LOST, Follower
from gpumem.runtime.residency.hints import LEAVE, Hints, looks
from gpumem.runtime.residency.limited_memory import HOST
from gpumem.swap.plan import Hold, Plan, Recompute, Swap
from gpumem.testing import plans, steps
from gpumem.trace import Buffers, Ops, Trace
from tests.runtime.residency.programs import Cell, Cells, Op, Told

TURNS = 3


def run(trace: Trace, follower: Follower[Cell], memory: Told, cells: Cells, turn: int) -> None:
    """Run an iteration that is as planned; the memory's clock is 2 t before op t of all, and 2 t + 1 after it."""
    for i in range(trace.n):
        t = turn * trace.n + i
        memory.clock = 2 * t
        call = Op(trace.ops.name[i], follower.keys[i], cells.of(turn, i))
        assert follower.before(call) == i
        memory.clock = 2 * t + 1
        assert follower.after(call) == (i == trace.n - 1)


def due(trace: Trace, plan: Plan) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """When decisions are to move what; what is to be recomputed goes to the host, as nothing here can make it."""
    n, b = trace.n, trace.buffers
    for d in plan.decisions:
        for turn in range(TURNS):
            t = turn * n
            assert isinstance(d, Swap | Recompute)
            name = (d.buffer, 0 if b.persistent[d.buffer] else turn - int(d.after < b.start[d.buffer]))
            if isinstance(d, Swap):
                yield 2 * (t + d.out) + 1, "out", name
                yield 2 * (t + d.release), "release", name
                yield 2 * (t + d.prefetch), "bring", name
            else:
                yield 2 * (t + d.after + 1), "release", name
                yield 2 * (t + d.at), "bring", name


@pytest.mark.parametrize("kind", [Swap, Recompute])
@given(st.data())
def test_decisions_move_what_they_are_about_when_they_say(kind: type[Swap | Recompute], data: st.DataObject) -> None:
    trace = data.draw(steps(max_layers=4))
    plan = data.draw(plans(trace, kinds=(kind,)))
    memory = Told()
    follower, cells = Follower(memory, Hints.of(trace, plan)), Cells(trace, memory)
    for turn in range(TURNS):
        run(trace, follower, memory, cells, turn)
    assert sorted(memory.moves) == sorted(x for x in due(trace, plan) if x[0] < 2 * TURNS * trace.n)


COUNT = 16
A, W = 0, 1


def long() -> Trace:
    """An iteration of ops `op0` to `op15` that read `W`; the first makes `A`, the last reads it."""
    recorder = Recorder()
    a, w = recorder.malloc(100), recorder.malloc(8, kind="param")
    for i in range(COUNT):
        recorder.exec(f"op{i}", [w, a] if i in (5, COUNT - 1) else [w], [] if i else [a])
    recorder.free(a)
    return recorder.trace()


class Walk:
    """A program that follows a plan of `long`."""

    def __init__(self, *decisions: Swap | Hold, limit: int = 2**62) -> None:
        self.trace, self.memory = long(), Told(limit)
        self.follower = Follower(self.memory, Hints.of(self.trace, Plan.of(self.trace, decisions)))
        self.cells, self.turn = Cells(self.trace, self.memory), 0

    def op(self, i: int, touched: list[Cell] | None = None, key: int | None = None, name: str = "") -> int:
        """Run an op as it is planned, but for what is told; return where the follower is."""
        self.memory.clock = i
        touched = self.cells.of(self.turn, i) if touched is None else touched
        call = Op(name or f"op{i}", self.follower.keys[i] if key is None else key, touched)
        where = self.follower.before(call)
        self.follower.after(call)
        return where

    def ops(self, lo: int, hi: int) -> list[int]:
        return [self.op(i) for i in range(lo, hi)]

    @property
    def moves(self) -> list[tuple[int, str]]:
        """What was asked for, of `A` all of it."""
        return [(clock, move) for clock, move, (b, _) in self.memory.moves if b == A]


SWAP = Swap(A, 0, 5, 2, 4)


def test_an_op_that_touches_less_than_planned() -> None:
    """What the decision is about is not there: nothing is moved for it, and the plan goes on."""
    walk = Walk(SWAP)
    assert walk.op(0, touched=walk.cells.of(0, 1)) == 0 and walk.ops(1, COUNT) == [*range(1, COUNT)]
    assert walk.memory.moves == [] and walk.follower.position == 0


def test_room_decides_whether_something_comes_back_before_it_is_asked_for() -> None:
    for limit, comes in ((108, True), (107, False)):
        walk = Walk(SWAP, limit=limit)
        walk.ops(0, 5)
        assert walk.moves == [(0, "out"), (2, "release"), *[(4, "bring")] * comes]
        (cell,) = [cell for (b, _), cell in walk.cells.met.items() if b == A]
        assert (cell.where is HOST) != comes and cell.copy is not None and cell.copy.drop_copy_on_return == comes


def test_what_comes_back_once_more_is_kept_on_the_host() -> None:
    """Nobody writes it between two gaps, so the second release copies nothing."""
    walk = Walk(SWAP, Swap(A, 5, 15, 7, 12))
    assert walk.follower.hints.final == [False, True]
    walk.ops(0, COUNT)
    assert walk.moves == [(0, "out"), (2, "release"), (4, "bring"), (5, "out"), (7, "release"), (12, "bring")]
    assert walk.memory.counts.out == 100 and walk.memory.counts.back == 200


def test_the_host_keeps_what_is_still_to_be_fetched_from_it() -> None:
    """Of three gaps of what nobody writes within them, the first has the copy-out."""
    recorder = Recorder()
    a, w = recorder.malloc(16), recorder.malloc(8, kind="param")
    for i in range(10):
        recorder.exec(f"op{i}", [w, a] if i in (3, 6, 9) else [w], [] if i else [a])
    recorder.free(a)
    trace = recorder.trace()
    gaps = [Swap(A, 0, 3, 1, 2), Swap(A, 3, 6, 4, 5), Swap(A, 6, 9, 7, 8)]
    for k in range(3):  # however the plan has them in order
        plan = Plan.of(trace, gaps[k:] + gaps[:k])
        assert [d == gaps[2] for d in plan.decisions] == Hints.of(trace, plan).final


def test_a_plan_is_left_where_an_op_differs_and_says_so() -> None:
    walk = Walk(SWAP)
    walk.ops(0, 3)
    assert walk.op(4) == LOST and walk.follower.deviation == "op 3: op4 came for op3"
    walk.op(9)
    assert walk.follower.deviation == "op 3: op4 came for op3"  # the first is what matters
    assert walk.follower.bound == [None] and walk.follower.trail == []
    other = Walk(SWAP)
    other.ops(0, 3)
    assert other.op(3, key=1) == LOST and other.follower.deviation == "op 3, op3: of other sizes"


def test_a_plan_goes_on_where_its_first_ops_came_by() -> None:
    """All that was due around them is done then, and not before."""
    walk = Walk(Swap(A, 0, 5, 2, 4), Swap(A, 5, 15, 11, 13, out=10))
    walk.op(7)
    walk.ops(3, 5)  # neither the beginning, nor
    assert walk.ops(0, DOZEN) == [LOST] * (DOZEN - 1) + [DOZEN - 1]
    # before op 11 op 5 has used what would come at 4, so it is on the device when it is bound anew
    assert {clock for clock, _ in walk.moves} == {DOZEN - 1}
    assert [move for _, move in walk.moves] == ["out", "release", "bring", "out", "release"]
    assert walk.ops(DOZEN, COUNT) == [*range(DOZEN, COUNT)]
    assert walk.moves[-1] == (13, "bring") and walk.follower.position == 0
    assert [len(touched) for touched in walk.follower.trail] == [2, *[1] * 4, 2, *[1] * 9, 2]


def test_what_a_decision_is_about() -> None:
    hints = Walk(SWAP).follower.hints
    assert hints.buffer(0) == A and hints.says(0, Swap) and not hints.says(0, Hold) and not hints.says(1, Swap)


def test_the_end_of_a_call_is_next_only_while_the_plan_is_followed() -> None:
    walk = Walk(SWAP)
    keys = walk.follower.keys
    assert walk.follower.expects(keys[0]) and not walk.follower.expects(keys[1])
    walk.ops(0, 2)
    assert walk.follower.expects(keys[2])
    walk.op(9)
    assert not any(walk.follower.expects(key) for key in keys)
    assert looks(LEAVE, [1]) == looks(LEAVE, [2]) != looks("left", [1]) != looks("left", [2])


def test_a_storage_is_held_until_the_plan_lets_go_of_it() -> None:
    recorder = Recorder()
    a, w = recorder.malloc(100), recorder.malloc(8, kind="param")
    recorder.exec("make", [w], [a])
    recorder.exec("use", [a])
    recorder.free(a)
    for _ in range(3):
        recorder.exec("other", [w])
    trace, memory = recorder.trace(), Told()
    follower = Follower(memory, Hints.of(trace, Plan.of(trace, [Hold(A, 4)])))
    cells, held = Cells(trace, memory), []
    for turn in range(2):
        for i in range(trace.n):
            call = Op(trace.ops.name[i], follower.keys[i], cells.of(turn, i))
            follower.before(call)
            follower.after(call)
            held.append(len(follower.held))
    assert held == [0, 1, 1, 1, 0] * 2


V = 2


def over() -> Trace:
    """As `long`, and ops 5 and 9 read `V`."""
    recorder = Recorder()
    a, w, v = recorder.malloc(100), recorder.malloc(8, kind="param"), recorder.malloc(16, kind="param")
    for i in range(COUNT):
        recorder.exec(f"op{i}", [w, v] if i in (5, 9) else [w], [] if i else [a])
    recorder.free(a)
    return recorder.trace()


@pytest.mark.parametrize(
    ("swap", "moves"),
    [
        (Swap(V, 9, 21, 12, 18), ["out", "release"]),  # away over the boundary
        (Swap(V, 9, 21, 12, 16), ["out", "release"]),  # until the first op
        (Swap(V, 9, 21, 15, 16, out=14), ["out", "release"]),
        (Swap(V, 9, 21, 16, 18), ["out"]),  # it goes before the first op, which is to come
        (Swap(V, 9, 21, 10, 12), ["out"]),  # it is back by then
        (Swap(V, 9, 21, 18, 20, out=15), ["out"]),
        (Swap(V, 9, 21, 18, 20, out=16), []),  # all of it is to come
    ],
)
def test_a_plan_begins_where_another_iteration_ends(swap: Swap, moves: list[str]) -> None:
    """What would be away at its boundary goes at once, or is copied at least; all the rest is done along the way."""
    trace, memory = over(), Told()
    follower = Follower(memory, Hints.of(trace, Plan.of(trace, [swap])))
    cells = Cells(trace, memory)
    follower.switch([cells.of(0, i) for i in range(COUNT)])
    assert [(move, b) for _, move, (b, _) in memory.moves] == [(move, V) for move in moves]
    assert [cell and cell.name for cell in follower.bound] == [(V, 0)]


def test_a_plan_that_begins_over_storages_that_are_not_there() -> None:
    trace, memory = over(), Told()
    follower = Follower(memory, Hints.of(trace, Plan.of(trace, [Swap(V, 9, 21, 12, 18)])))
    cells = Cells(trace, memory)
    follower.switch([cells.of(0, 1) for _ in range(COUNT)])
    assert memory.moves == [] and follower.bound == [None]


@given(st.data())
def test_a_drop_that_only_a_piece_can_make_goes_to_the_host(data: st.DataObject) -> None:
    """Pieces are left out here; what else makes each value again is found, or the host has it until it is due."""
    trace = data.draw(steps(max_layers=6))
    plan = data.draw(plans(trace))
    hints = Hints.of(trace, plan)
    for k, d in enumerate(plan.decisions):
        if isinstance(d, Recompute):
            at, after = hints.at[d.at % trace.n], hints.at[d.after]
            assert at is not None and after is not None
            assert (k in at.wanted, k in at.fetch, k in after.out) == (
                (True, False, False) if k in hints.alone else (False, True, True)
            )


def test_without_its_piece_a_value_is_beyond_reach() -> None:
    """Op 1 makes a of the constant x, op 2 makes b of a; op 4 changes x, and from then on only a piece of a makes b."""
    x, a, b = range(3)
    ops = Ops.make([[], [x], [a], [], [x], [], [b]], [[], [a], [b], [], [x], [], []])
    trace = Trace(Buffers.make([8] * 3, [0, 1, 2], [7, 3, 7], persistent=[True, False, False]), ops)
    plan = Plan.of(trace, [Recompute(b, 2, 6, 6), Hold(a, 6, after=1, at=3)])
    assert [op.of for op in plan.apply(trace).ops if op.role == "recompute"] == [1, 2]
    hints = Hints.of(trace, plan)
    assert hints.alone == {}
    due = [(i, one.out, one.release, one.fetch) for i, one in enumerate(hints.at) if one is not None]
    assert due == [(2, [0], [], []), (3, [], [0], []), (6, [], [], [0])]
