"""The transparent device by hand: what it does, entry by entry, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest

from gpumem import Machine
from gpumem.pipeline import Among
from gpumem.runtime import Adaptive, InMemory, LimitError, LiveBlock, OnClock
from gpumem.simulator.machine import Link
from gpumem.swap.plan import Plan
from gpumem.testing import Unmanaged
from gpumem.trace import Buffers, Ops, Trace
from gpumem.trace.lifetimes import tails, used, without_idle

CLOCK = Machine.named("rtx4090").with_(out=Link(0, 1.0), into=Link(0, 2.0))


def told(device: Adaptive, *kinds: str) -> list[tuple[Any, ...]]:
    """What the log says, of blocks by their numbers."""
    entries = [e for e in device.log if not kinds or e.kind in kinds]
    return [(e.kind, e.op, e.what) if e.block < 0 else (e.kind, e.op, e.block) for e in entries]


def test_native_until_the_limit_then_the_least_recently_used_goes() -> None:
    device = Adaptive(OnClock(CLOCK), 250)
    a, b, c = (device.malloc(100) for _ in range(3))
    device.exec("make a", [], [a], duration=10)
    device.exec("make b", [], [b], duration=10)
    device.exec("make c", [b], [c], duration=10)  # a must go, though it is as old as b: b is an operand
    device.exec("use a", [a], [], duration=10)  # and now b, unused for longer than c
    device.exec("use b", [b], [], duration=10)  # which the host still has when c goes
    assert told(device) == [
        ("fill", 0, a),
        ("op", 0, "make a"),
        ("fill", 1, b),
        ("op", 1, "make b"),
        ("out", 2, a),
        ("empty", 2, a),
        ("fill", 2, c),
        ("op", 2, "make c"),
        ("out", 3, b),
        ("empty", 3, b),
        ("fill", 3, a),
        ("in", 3, a),
        ("op", 3, "use a"),
        ("out", 4, c),
        ("empty", 4, c),
        ("fill", 4, b),
        ("in", 4, b),
        ("op", 4, "use b"),
    ]
    times = {(e.kind, e.op): (e.start, e.end) for e in device.log if e.kind in ("op", "out", "in")}
    assert times["out", 2] == (20, 120) and times["op", 2] == (120, 130)
    assert times["out", 3] == (130, 230) and times["in", 3] == (230, 430) and times["op", 3] == (430, 440)


def test_a_clean_block_goes_without_a_copy_and_a_written_one_with_another() -> None:
    device = Adaptive(InMemory(), 100)
    a, b = device.malloc(100), device.malloc(100)
    device.write(a, np.full(100, 7, np.uint8))
    device.write(b, b"x")
    device.read(a)
    device.read(b)  # a is clean
    device.exec("change", [a], [a], call=lambda stream, x: x.__iadd__(1))
    device.read(b)
    assert [e.block for e in device.log if e.kind == "out"] == [a, b, a]
    assert device.read(a).tolist() == [8] * 100 and device.read(b)[:2].tolist() == [ord("x"), 0]


def test_what_nobody_wrote_is_not_copied() -> None:
    device = Adaptive(InMemory(), 100)
    a, b = device.malloc(100), device.malloc(100)
    device.exec("look", [a])
    device.exec("look", [b])
    device.exec("look", [a])
    assert told(device, "out", "in") == [] and len(told(device, "fill")) == 3


def test_an_op_larger_than_the_limit_is_refused_and_all_goes_on() -> None:
    device = Adaptive(InMemory(), 250)
    a, b = device.malloc(200), device.malloc(100)
    device.write(a, np.arange(200, dtype=np.uint8))
    with pytest.raises(LimitError, match=r"both holds 300 B at once, the limit is 250 B; the least limit .* 300 bytes"):
        device.exec("both", [a], [b], call=lambda stream, x, y: pytest.fail("it was run"))
    device.exec("one", [], [b], call=lambda stream, x: x.fill(3))
    assert device.read(a).tolist() == list(range(200)) and device.read(b).tolist() == [3] * 100


def test_an_exception_passes_through_and_the_block_is_what_the_op_left() -> None:
    device = Adaptive(InMemory(), 100)
    a, b = device.malloc(100), device.malloc(100)
    device.write(a, bytes(100))

    def half(stream: object, x: Any) -> None:
        x[:50] = 1
        raise KeyError("half-way")

    device.read(b)  # sends a away, so that the host has a copy of it
    with pytest.raises(KeyError, match="half-way"):
        device.exec("half", [a], [a], call=half)
    device.read(b)
    assert device.read(a).tolist() == [1] * 50 + [0] * 50


def test_arrays_are_typed_and_each_block_comes_once() -> None:
    device = Adaptive(InMemory(), "1KiB")
    x = device.malloc(100, shape=(3, 4), dtype="float32")
    y = device.malloc(8)
    seen: list[tuple[Any, ...]] = []
    device.exec("look", [x, y, x], [y], call=lambda stream, *arrays: seen.extend((a.shape, a.dtype) for a in arrays))
    assert seen == [((3, 4), np.dtype("float32")), ((8,), np.dtype("uint8"))]


def wrong(**options: Any) -> Callable[[], object]:
    return lambda: Adaptive(InMemory(), **{"limit": 100, **options})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (wrong(limit=0), "limit"),
        (wrong(limit="many"), "limit"),
        (wrong(planner="nonsense"), "planner"),
        (wrong(planner=[]), "planner"),
        (wrong(detect="omens"), "detect"),
        (wrong(min_length=0), "min_length 0"),
        (wrong(seconds=-1.0), "seconds"),
    ],
)
def test_bad_options(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_bad_calls() -> None:
    device = Adaptive(InMemory(), 100)
    a = device.malloc(10)
    for call, says in (
        (lambda: device.malloc(-1), "malloc: size -1"),
        (lambda: device.malloc(4, shape=(2,), dtype="float32"), "takes more than 4 bytes"),
        (lambda: device.free(7), "free: block 7 was never allocated"),
        (lambda: device.exec("x", [a, 9]), r"op 0 \(x\): block 9 was never allocated"),
        (lambda: device.exec("x", [a], duration=-5), r"op 0 \(x\): duration -5 ns is negative"),
        (lambda: device.exec("x", [a], flops=float("nan")), r"op 0 \(x\): flops nan is not finite and >= 0"),
        (lambda: device.exec("x", [a], moved=-1), r"op 0 \(x\): moved -1 is not finite and >= 0"),
        (lambda: device.write(a, bytes(11)), "write: 11 bytes for block 0, which has 10"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    with pytest.raises(TypeError, match="integer"):
        device.exec("x", [a], duration=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"op 0 \(x\): 5 is no list of blocks"):
        device.exec("x", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write: 'abc' is no array of numbers, nor bytes"):
        device.write(a, "abc")  # type: ignore[arg-type]
    device.free(a)
    with pytest.raises(ValueError, match="read: block 0 was already freed"):
        device.read(a)
    assert not device.log


def test_nothing_goes_on_once_it_was_closed() -> None:
    device = Adaptive(InMemory(), 100)
    device.malloc(10)
    device.close()
    device.close()
    for call, where in ((lambda: device.malloc(10), "malloc"), (lambda: device.exec("x"), r"op 0 \(x\)")):
        with pytest.raises(ValueError, match=f"{where}: the device was closed"):
            call()


class Stuck(InMemory):
    """A device that fails to take memory back once."""

    failing = closed = False

    def empty(self, storage: LiveBlock) -> None:
        if self.failing:
            self.failing = False
            raise RuntimeError("stuck")
        super().empty(storage)

    def close(self) -> None:
        self.closed = True


def test_close_goes_on_where_a_step_fails() -> None:
    world = Stuck()
    device = Adaptive(world, 300)
    blocks = begin(device, 3)
    world.failing = True
    with pytest.raises(RuntimeError, match="stuck"):
        device.close()
    assert told(device, "empty") == [("empty", 3, block) for block in blocks[1:]] and world.closed


def test_what_ended_the_program_is_what_it_is_told() -> None:
    world = Stuck()
    with pytest.raises(KeyError, match="the program's"), Adaptive(world, 300) as device:
        begin(device, 3)
        world.failing = True
        raise KeyError("the program's")
    assert world.closed


def test_an_op_that_is_called_like_the_end_of_a_call() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        made = [device.malloc(100) for _ in weights]
        for w, x in zip(weights, made):
            device.exec("leave", [w], [x], duration=50)
        for w, x in zip(weights[::-1], made[::-1]):
            device.exec("backward", [x, w], [w], duration=50)
            device.free(x)
    assert [e.kind for e in device.log if e.kind in ("planned", "deviated")] == ["planned"]


def short(world: Any, limit: int | str, **options: Any) -> Adaptive:
    """A device for programs with short iterations."""
    return Adaptive(world, limit, min_length=8, **options)


def step(device: Any, weights: list[int], size: int = 100, batch: int = 1) -> None:
    """An iteration: forward, then backward, over blocks of their own."""
    made = [device.malloc(size * batch) for _ in weights]
    for w, x in zip(weights, made):
        device.exec("forward", [w], [x], call=lambda stream, w, x: x.fill(w.sum() % 251), duration=50)
    for w, x in zip(weights[::-1], made[::-1]):
        device.exec("backward", [x, w], [w], call=lambda stream, x, w: w.__iadd__(x[:1]), duration=50)
        device.free(x)


def begin(device: Any, count: int = 4, size: int = 100) -> list[int]:
    weights = [device.malloc(size) for _ in range(count)]
    for k, w in enumerate(weights):
        device.write(w, np.full(size, k + 1, np.uint8))
    return weights


def test_found_planned_followed_deviated_and_found_again() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    step(device, weights, size=50)  # a last batch that is shorter
    for _ in range(4):
        step(device, weights)
    marks = [(e.kind, e.op) for e in device.log if e.kind in ("found", "planned", "deviated", "resumed")]
    kinds = [kind for kind, _ in marks]
    assert kinds[:2] == ["found", "planned"] and marks[0][1] == marks[1][1] <= 4 + 3 * 8
    assert "deviated" in kinds and "resumed" in kinds[kinds.index("deviated") :]
    device.close()
    rows = device.report().iterations
    steady = [b for a, b in pairwise(rows) if a.state == b.state == "planned"]
    assert len(steady) >= 4 and all(row.misses == 0 == row.evictions for row in steady)
    assert any(row.deviation for row in rows)


def crossed(device: Any, weights: list[int], order: Sequence[int]) -> None:
    """An iteration whose ops look the same in any order."""
    made = [device.malloc(100) for _ in order]
    for x, w in zip(made, 2 * weights):
        device.exec("forward", [w], [x], duration=50)
    for k in order:
        w = weights[k % len(weights)]
        device.exec("backward", [made[k], w], [w], duration=50)
    for x in made:
        device.free(x)


def test_ops_that_look_as_planned_on_other_blocks_are_planned_for_anew() -> None:
    device = short(OnClock(CLOCK), 600, wait=True)
    weights = begin(device, 3)
    for k in range(20):
        crossed(device, weights, (5, 4, 3, 2, 1, 0) if k < 6 else range(6))
    assert [e.kind for e in device.log if e.kind in ("planned", "deviated")] == ["planned", "planned"]
    rows = device.report().iterations
    assert rows[7].misses > 0 and all(row.misses == 0 == row.evictions for row in rows[-4:])


def test_misses_that_planning_anew_does_not_avoid() -> None:
    """A plan that is none: what it finds away is no reason to plan for the same iteration again and again."""
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for _ in range(5):
        step(device, weights)
    follower = device._learner.follower
    assert follower is not None and device._learner.hints is not None
    follower.at[:] = [None] * len(follower.at)
    for _ in range(20):
        step(device, weights)
    rows = device.report().iterations
    assert rows[-2].state == "planned" and rows[-2].misses > 0
    assert [e.kind for e in device.log].count("planned") == 1 and device._learner.book is None


def test_an_op_that_raises_is_none_of_those_that_tell_where_an_iteration_begins() -> None:
    def fails(stream: object, *arrays: Any) -> None:
        raise KeyError

    device = short(InMemory(), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.exec("odd", weights[:1])
    for _ in range(2):
        with pytest.raises(KeyError):
            device.exec("forward", weights[:1], weights[1:2], call=fails)
        step(device, weights)
    marks = [e.kind for e in device.log if e.kind in ("deviated", "resumed")]
    assert marks == ["deviated", "resumed"]


def test_rows_are_the_sums_of_the_log() -> None:
    device = short(OnClock(CLOCK), "60%", wait=True)
    weights = begin(device)
    for k in range(9):
        step(device, weights, size=100 if k < 5 else 60)
        if k == 6:
            device.exec("odd", weights[:1], duration=1)
    device.close()
    rows = device.report().iterations
    assert any(row.deviation for row in rows) and sum(row.ops for row in rows) == len(told(device, "op"))
    for kind, sums in (("out", [row.moved_out for row in rows]), ("in", [row.moved_in for row in rows])):
        assert sum(sums) == sum(entry.size for entry in device.log if entry.kind == kind)


def test_branches_that_alternate_are_one_iteration() -> None:
    device = short(OnClock(CLOCK), 500, wait=True)
    weights = begin(device)
    for k in range(20):
        step(device, weights, size=100 - 40 * (k % 2))
    device.close()
    report = device.report()
    assert report.trace is not None and report.trace.n == 16
    assert report.iterations[-2].state == "planned" and report.iterations[-2].ops == 16


def test_within_the_limit_nothing_is_planned() -> None:
    device = short(InMemory(), "1MiB", wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.close()
    report = device.report()
    assert report.plan is None and {row.state for row in report.iterations} == {"native", "idle"}


def test_a_part_of_a_peak_that_nobody_knows_yet() -> None:
    device = short(InMemory(), "70%", wait=True)
    assert "70%" in repr(device)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert device.report().limit == 560  # of 4 weights and 4 activations
    assert [row.peak > 560 for row in device.report().iterations] == [True] * 3 + [False] * 4


def test_the_plan_is_made_beside_the_program_and_followed_from_a_boundary_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.pipeline import compare_planners as planning

    go, among = threading.Event(), planning.among
    monkeypatch.setattr(planning, "among", lambda *a, **k: (go.wait(30), among(*a, **k))[1])
    device = short(InMemory(), 500)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert "planned" not in [e.kind for e in device.log]  # it goes on meanwhile
    go.set()
    job = device._learner.job
    assert job is not None
    job.stop()
    first = next(e.op for e in device.log if e.kind == "found")
    for _ in range(3):
        step(device, weights)
    (switched,) = [e.op for e in device.log if e.kind == "planned"]
    assert (switched - first) % 8 == 0
    device.close()
    assert [row.state for row in device.report().iterations][-2] == "planned"


def test_close_does_not_wait_for_a_planner_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.pipeline import compare_planners as planning

    go, within = threading.Event(), []

    def slow(trace: Trace, *arguments: Any, seconds: float | None, **options: Any) -> Among:
        within.append(seconds)
        go.wait(10 if seconds is None else seconds)
        return Among(None, (), 0)

    monkeypatch.setattr(planning, "among", slow)
    for seconds in (0.3, 0.01):  # closed while it plans, and while it plans without an end
        device = short(InMemory(), 500, seconds=seconds)
        weights = begin(device)
        for _ in range(4):
            step(device, weights)
        job, start = device._learner.job, perf_counter()
        assert job is not None
        if seconds < 0.1:
            while None not in within:
                sleep(0.001)
        device.close()
        assert perf_counter() - start < 5
        if seconds > 0.1:
            job.stop()
            assert within == [0.3]
    go.set()


def test_a_planner_that_fails_leaves_the_program_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.pipeline import compare_planners as planning

    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(planning, "among", broken)
    device = short(InMemory(), 500, wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    assert device.report().notes == ("no plan, as planning failed: ZeroDivisionError: a defect",)


def test_on_demand_for_good() -> None:
    device = short(InMemory(), 500, planner="on-demand", wait=True)
    weights = begin(device)
    for _ in range(6):
        step(device, weights)
    device.close()
    rows = device.report().iterations
    assert device.report().plan is None and {row.state for row in rows[1:]} == {"on demand"}


def test_an_iteration_lies_between_two_writes_of_an_input() -> None:
    """The thesis' test, which compares tensors by what they are: a program whose blocks stay."""
    device = Adaptive(InMemory(), 300, detect="writes", wait=True)
    x, y, z, w = (device.malloc(100) for _ in range(4))
    for k in range(6):
        device.write(x, np.full(100, k, np.uint8))
        for one, other in ((x, y), (y, z), (z, w)):
            device.exec("next", [one], [other], call=lambda stream, a, b: np.add(a, 1, out=b))
    first = next(e for e in device.log if e.kind == "found")
    assert (first.op, first.what) == (8, "4 ops")  # when the third iteration's input is about to be written
    assert device.read(w)[0] == 8


def test_hooks_see_each_op_and_where_it_stands() -> None:
    device = short(InMemory(), 500, wait=True)
    seen: list[tuple[str, str, int]] = []
    device.before.append(lambda op, i: seen.append(("before", op.name, i)))
    device.after.append(lambda op, i: seen.append(("after", op.name, i)))
    weights = begin(device)
    assert seen == [(when, "write", -1) for _ in weights for when in ("before", "after")]
    for _ in range(6):
        step(device, weights)
    places = [i for when, _, i in seen if when == "after"]
    assert sorted(places[-8:]) == list(range(8))


class Small(InMemory):
    """A device that has less memory than the limit."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def fill(self, storage: LiveBlock, size: int) -> None:
        if size > self.room:
            raise MemoryError(f"{size} bytes")
        super().fill(storage, size)
        self.room -= size

    def empty(self, storage: LiveBlock) -> None:
        super().empty(storage)
        self.room += storage.size


def test_a_device_that_has_less_than_the_limit() -> None:
    device = short(Small(250), 1000, wait=True)
    weights = begin(device)
    for _ in range(3):
        step(device, weights)
    big = short(InMemory(), 1000)
    others = begin(big)
    for _ in range(3):
        step(big, others)
    assert [device.read(w).tolist() for w in weights] == [big.read(w).tolist() for w in others]
    more = device.malloc(300)
    with pytest.raises(MemoryError, match="300 bytes"):
        device.write(more, b"")
    assert device.read(weights[0]).tolist() == big.read(others[0]).tolist()


class Full(InMemory):
    """A host without memory for copies, now and then."""

    full = False

    def out(self, storage: LiveBlock) -> Any:
        if self.full:
            raise MemoryError("the host is full")
        return super().out(storage)


def test_an_op_that_ran_is_not_said_to_have_failed() -> None:
    """A planned copy for which there is no memory is not begun; an op that needs the room says so, and has not run."""
    world, native = Full(), Unmanaged()
    device = short(world, 500, wait=True)
    weights, others = begin(device), begin(native)
    for k in range(8):
        world.full = k > 5
        made = [(device.malloc(100), native.malloc(100)) for _ in weights]
        for w, other, (x, y) in zip(weights, others, made):
            for one, row, out in ((device, [w], [x, w]), (native, [other], [y, other])):
                retried(world, one, "forward", row, out, lambda stream, w, x: np.copyto(x, np.add(w, 1, out=w)))
        for w, other, (x, y) in zip(weights[::-1], others[::-1], made[::-1]):
            for one, row, out in ((device, [x, w], [w]), (native, [y, other], [other])):
                retried(world, one, "backward", row, out, lambda stream, x, w: w.__iadd__(x))
            device.free(x)
            native.free(y)
    assert [device.read(w).tolist() for w in weights] == [native.read(w).tolist() for w in others]


def retried(world: Full, device: Any, name: str, reads: list[int], writes: list[int], call: Any) -> None:
    """Run an op once more if it failed, when there is room on the host."""
    try:
        device.exec(name, reads, writes, call=call)
    except MemoryError:
        world.full = False
        device.exec(name, reads, writes, call=call)
        world.full = True


class Torn(InMemory):
    """A device whose n-th copy back fails."""

    left = 3

    def back(self, storage: LiveBlock, copy: Any) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("a copy was torn")
        super().back(storage, copy)


def test_a_copy_that_fails_leaves_the_block_on_the_host() -> None:
    device = short(Torn(), 100)
    blocks = begin(device, 3)
    for k in (0, 1):
        assert device.read(blocks[k])[0] == k + 1
    with pytest.raises(RuntimeError, match="torn"):
        device.read(blocks[2])
    assert [device.read(b)[0] for b in blocks] == [1, 2, 3]
    device.close()
    assert len(told(device, "fill")) == len(told(device, "empty"))


def test_close_gives_everything_back() -> None:
    world = Small(1000)
    with short(world, 500, wait=True) as device:
        weights = begin(device)
        for _ in range(6):
            step(device, weights)
    assert world.room == 1000


# what a device needs of an iteration


def test_a_plan_where_blocks_are_kept_for_longer_than_they_are_used() -> None:
    """Everything is freed at the end of the iteration only, so no swap gets below the limit."""
    device = short(OnClock(CLOCK), 320, wait=True)
    w = device.malloc(100)
    device.write(w, b"1")
    for _ in range(6):
        chain = [w, *(device.malloc(100) for _ in range(5))]
        for one, other in pairwise(chain):
            device.exec("next", [one], [other], duration=100)
        for x in chain[1:]:
            device.free(x)
    device.close()
    report = device.report()
    assert "infeasible" in report.notes[0] and report.plan is not None
    planned = [row for row in report.iterations if row.state == "planned"]
    assert len(planned) >= 2 and all(row.evictions == 0 == row.misses for row in planned[1:])


def test_what_is_used_of_a_trace() -> None:
    ops = Ops.make([[], [0], [], [3]], [[0], [], [2], []])
    trace = Trace(Buffers.make([8, 4, 2, 1], [0, 0, 2, 0], [4, 4, 5, 4], persistent=[False, True, False, True]), ops)
    some = without_idle(trace)
    assert some.buffers.size.tolist() == [8, 2, 1] and some.ops.reads.tolist() == [[], [0], [], [2]]
    short = used(some)
    assert short.buffers.end.tolist() == [2, 3, 4] and short.buffers.persistent.tolist() == [False, False, True]
    assert tails(some, short, 9) == [0, 1] and tails(some, short, 11) == []
    assert Plan.of(short).apply(short).peak_load == 9
