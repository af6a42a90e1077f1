"""Who is on the device under a limit: who goes, what is copied, and what holds where there is too little memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpumem.runtime import Adaptive, InMemory, LimitError, LiveBlock, OnClock
from gpumem.runtime.residency.environment import Where
from gpumem.runtime.residency.limited_memory import ResidencyError
from gpumem.testing import Unmanaged
from tests.runtime.programs import CLOCK, Small, begin, short, step, told
from tests.runtime.residency.programs import Cell, Told


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
    environment, native = Full(), Unmanaged()
    device = short(environment, 500, wait=True)
    weights, others = begin(device), begin(native)
    for k in range(8):
        environment.full = k > 5
        made = [(device.malloc(100), native.malloc(100)) for _ in weights]
        for w, other, (x, y) in zip(weights, others, made):
            for one, row, out in ((device, [w], [x, w]), (native, [other], [y, other])):
                retried(environment, one, "forward", row, out, lambda stream, w, x: np.copyto(x, np.add(w, 1, out=w)))
        for w, other, (x, y) in zip(weights[::-1], others[::-1], made[::-1]):
            for one, row, out in ((device, [x, w], [w]), (native, [y, other], [other])):
                retried(environment, one, "backward", row, out, lambda stream, x, w: w.__iadd__(x))
            device.free(x)
            native.free(y)
    assert [device.read(w).tolist() for w in weights] == [native.read(w).tolist() for w in others]


def retried(environment: Full, device: Any, name: str, reads: list[int], writes: list[int], call: Any) -> None:
    """Run an op once more if it failed, when there is room on the host."""
    try:
        device.exec(name, reads, writes, call=call)
    except MemoryError:
        environment.full = False
        device.exec(name, reads, writes, call=call)
        environment.full = True


class Torn(InMemory):
    """A device whose n-th copy back fails, and fails again."""

    left = 3

    def back(self, storage: LiveBlock, copy: Any) -> None:
        self.left -= 1
        if self.left in (0, -1):
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


def cold(limit: int, *sizes: int) -> tuple[Told, list[Cell]]:
    """A memory with cells on the device, the one that was not used for longest first."""
    memory = Told(limit)
    cells = [Cell(chr(97 + k), size) for k, size in enumerate(sizes)]
    for cell in cells:
        memory.arrive(cell)
    return memory, cells


def gone(memory: Told) -> str:
    return "".join(name for _, move, name in memory.moves if move == "release")


@pytest.mark.parametrize(
    ("fresh", "goes"), [(0, ""), (10, ""), (11, "a"), (20, "a"), (21, "ab"), (50, "abcd"), (51, None)]
)
def test_no_more_goes_than_must(fresh: int, goes: str | None) -> None:
    memory, cells = cold(60, 10, 10, 10, 10, 10)
    kept = cells[-1:]
    if goes is None:
        with pytest.raises(LimitError, match=r"an op holds 61 B at once, the limit is 60 B; .* 61 bytes"):
            memory.ensure_resident(kept, fresh, "an op")
        return
    memory.ensure_resident(kept, fresh, "an op")
    assert gone(memory) == goes and memory.counts.evictions == len(goes) and memory.held == 50 - 10 * len(goes)


def test_who_is_used_last_goes_last() -> None:
    memory, (a, b, c, d) = cold(40, 10, 10, 10, 10)
    memory.ensure_resident([b, a], 0, "an op")
    memory.evict_for(30)
    assert gone(memory) == "cdb"
    memory.ensure_resident([a, c], 0, "an op")  # who was off the device is used as it is named
    assert [*memory.on_device] == [a, c] and memory.counts.misses == 1
    memory.ensure_resident([d, a], 0, "an op")
    assert [*memory.on_device] == [c, d, a] and memory.counts.misses == 2
    assert memory.counts.back == 20 and memory.counts.out == 30


def test_who_is_pinned_asked_for_or_without_bytes_makes_no_room() -> None:
    memory, (a, _, c, _) = cold(30, 10, 0, 10, 10)
    memory.pin(a, "a graph")
    c.exposed = True
    memory.evict_for(10)
    assert gone(memory) == "d" and memory.held == 20
    with pytest.raises(LimitError, match=r"holds 40 B at once, 20 B of it in storages that cannot move \(a graph\)"):
        memory.evict_for(20, what="an op")
    memory.recomputing = True  # bytes would be lost else
    memory.evict_for(20)
    assert gone(memory) == "dc"
    memory.charge(5)
    with pytest.raises(LimitError, match=r"holds 36 B at once, 15 B of it in storages that cannot move \(a graph\)"):
        memory.evict_for(21)


def test_what_somebody_may_read_unseen_goes_last() -> None:
    memory, (a, _, c) = cold(30, 10, 10, 10)
    a.exposed = memory.recomputing = True
    memory.evict_for(10, [c])
    assert gone(memory) == "b"
    memory.evict_for(20, [c])
    assert gone(memory) == "ba"


def test_a_policy_says_who_goes_unless_something_is_made_again() -> None:
    memory, cells = cold(30, 10, 10, 10)
    asked: list[tuple[int, list[str]]] = []

    class Last:
        def evict(self, size: int, keep: Any) -> bool:
            asked.append((size, [*keep]))
            last = next((cell for cell in reversed(memory.on_device) if cell not in keep), None)
            if last is not None:
                memory.release(last)
            return last is not None

        def reap(self) -> None:
            asked.append((0, []))

    memory.policy = Last()
    memory.evict_for(15, cells[2:])
    assert gone(memory) == "ba" and [x for x in asked if x[0]] == [(15, cells[2:]), (5, cells[2:])]
    with pytest.raises(LimitError):
        memory.evict_for(21, cells[2:])
    memory.policy, memory.recomputing = Last(), True
    asked.clear()
    memory.evict_for(30)
    assert gone(memory) == "bac" and not any(size for size, _ in asked)


def test_books_of_what_is_held() -> None:
    memory, (a, b) = cold(2**62, 10, 20)
    assert (memory.held, memory.alive, memory.pinned, memory.peak, memory.least) == (30, 30, 0, 0, 0)
    memory.begin()
    assert (memory.peak, memory.least) == (30, 30)
    memory.pin(b, "somebody")
    memory.pin(b, "somebody else")
    assert memory.pinned == 20 and b.pinned == "somebody"
    memory.charge(7)
    memory.charge(-7)
    assert (memory.held, memory.peak) == (30, 37)
    memory.dead += [a, b]
    memory.reap()
    assert (memory.held, memory.alive, memory.pinned, memory.least, memory.peak) == (0, 0, 0, 0, 37)
    assert not memory.on_device


def test_where_the_device_has_no_memory_others_make_room_one_by_one() -> None:
    memory, (*_, c) = cold(2**62, 10, 10, 10)
    memory.release(c)
    refused = iter([MemoryError(), MemoryError(), MemoryError(), MemoryError(), None])

    def fill(storage: object, size: int) -> None:
        error = next(refused)
        if error is not None:
            raise error

    memory.pointers.fill = fill  # type: ignore[method-assign]
    told: list[str] = []
    memory.on_retry = lambda what, error: told.append(what)
    memory.bring(c)  # each try is made twice
    assert [*memory.on_device] == [c] and memory.held == 10
    assert told == ["memory for what comes back"] * 2 and memory.counts.evictions == 2
    assert not memory.evict_one([c])
    assert memory.evict_one() and not memory.on_device


def test_what_is_made_again_comes_before_what_is_copied() -> None:
    """To make it takes room beside the operands, who may leave for that and come back."""
    memory, (operand, source, made) = cold(2**62, 10, 10, 10)

    class Recipe:
        def done(self) -> None:
            made.recipe = None

    def recover(cell: Cell) -> None:
        memory.ensure_resident([source], cell.size, "recompute")
        memory.landed(cell)

    memory.recover = recover
    memory.drop(made, Recipe())
    memory.release(source)
    memory.limit = 20
    memory.ensure_resident([operand, made], 0, "an op")
    assert [*memory.on_device] == [operand, made] and memory.held == 20 and memory.counts.evictions == 2


def test_moves_that_are_none_of_the_picture() -> None:
    memory, (a, b) = cold(2**62, 10, 10)
    memory.release(a)
    with pytest.raises(ResidencyError, match=r"Cell\(a\) is not on the device, and so cannot be pinned by a test"):
        memory.pin(a, "a test")
    with pytest.raises(ResidencyError, match=r"Cell\(b\) is on the device already"):
        memory.landed(b)
    memory.out(b)
    with pytest.raises(ResidencyError, match=r"Cell\(b\) cannot be dropped"):
        memory.drop(b, object())
    with pytest.raises(ResidencyError, match=r"Cell\(a\) went from host to nothing"):
        memory._left_device(a, Where.NOTHING)
