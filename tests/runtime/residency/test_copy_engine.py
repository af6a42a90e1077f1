"""Copies wait for what they read and for whose memory they write, and nobody else waits for more than that."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from gpumem.runtime.residency.copy_engine import Beside, Slab


class Event:
    """A point of a stream: all that must have ended before it."""

    def __init__(self) -> None:
        self.after: frozenset[int] = frozenset()

    def record(self, stream: Stream) -> None:
        self.after = stream.after

    def synchronize(self) -> None: ...


class Stream:
    """What has been given to it runs after all of `after`, by numbers."""

    def __init__(self) -> None:
        self.after: frozenset[int] = frozenset()

    def wait_event(self, event: Event) -> None:
        self.after |= event.after

    def give(self, number: int) -> frozenset[int]:
        """Give it something to do; return all that has ended when that begins."""
        before, self.after = self.after, self.after | {number}
        return before


class Card:
    """A card that notes what each thing it does comes after."""

    def __init__(self) -> None:
        self.streams = [Stream(), Stream()]
        self.now, self.count = self.streams[0], 0
        self.before: list[frozenset[int]] = []  # of each thing done
        self.copies: list[tuple[Any, Any, int]] = []

    def current(self) -> Stream:
        return self.now

    def stream(self) -> Stream:
        return Stream()

    def event(self) -> Event:
        return Event()

    def size(self, storage: bytearray) -> int:
        return len(storage)

    def pinned(self, size: int) -> bytearray:
        return bytearray(size)

    def copy(self, stream: Stream, target: Any, source: Any, size: int) -> None:
        self.copies.append((target, source, size))
        self.do(stream)

    def do(self, stream: Stream) -> int:
        self.before.append(stream.give(len(self.before)))
        return len(self.before) - 1


@given(st.data())
def test_every_use_comes_after_what_it_needs(data: st.DataObject) -> None:
    """Kernels on two streams, copies out and back, slabs used again, in any order."""
    card = Card()
    engine = Beside(card)
    storages = [bytearray(size) for size in (3, 4, 4)]
    used = [-1, -1, -1]  # the last thing that used each storage
    computed: set[int] = set()
    held: dict[int, Slab] = {}
    last: dict[int, int] = {}  # of each slab's memory: the last copy with it
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["kernel", "kernel", "switch", "out", "back", "drop", "rest"]))
        k = data.draw(st.integers(0, 2))
        if what == "switch":
            card.now = card.streams[1 - card.streams.index(card.now)]
        elif what == "kernel":
            switched = card.now is not engine.compute
            assert engine.follow() == switched
            if k in held:
                engine.wait_for_copy(held[k])
            done = card.do(card.now)
            assert computed | {used[k]} - {-1} <= card.before[done]  # the ops of a run are in one order
            used[k] = done
            computed.add(done)
        elif what == "out" and k not in held:
            held[k] = engine.out(storages[k])
            copy = len(card.before) - 1
            need = {used[k], last.get(id(held[k].memory), -1)} - {-1}
            assert need <= card.before[copy] and card.copies[-1][1] is storages[k]
            last[id(held[k].memory)] = used[k] = copy
        elif what == "back" and k in held:
            engine.wait_for_copy(held[k])  # as its memory was given back
            engine.back(storages[k], held[k])
            copy = len(card.before) - 1
            assert {used[k], last[id(held[k].memory)]} <= card.before[copy] and card.copies[-1][0] is storages[k]
            last[id(held[k].memory)] = used[k] = copy
        elif what == "drop" and k in held:
            engine.wait_for_copy(held[k])
            engine.drop(held.pop(k))
        elif what == "rest":
            engine.rest()
            assert all(computed <= stream.after for stream in card.streams if stream.after)


def test_a_slab_is_as_large_as_a_power_of_two_and_is_found_again() -> None:
    card = Card()
    engine = Beside(card)
    slabs = [engine.out(bytearray(size)) for size in (0, 1, 2, 3, 4, 5, 1000, 1024, 1025)]
    assert [slab.whole for slab in slabs] == [1, 1, 2, 4, 4, 8, 1024, 1024, 2048]
    assert [len(slab.memory) for slab in slabs] == [slab.whole for slab in slabs]
    assert [size for _, _, size in card.copies] == [slab.size for slab in slabs] == [0, 1, 2, 3, 4, 5, 1000, 1024, 1025]
    engine.drop(slabs[3])
    engine.drop(slabs[4])
    assert engine.out(bytearray(4)) is slabs[3] and engine.out(bytearray(3)) is slabs[4]
    assert slabs[3].size == 4 and slabs[4].size == 3
    assert engine.out(bytearray(3)) not in slabs


def test_copies_out_and_in_do_not_wait_for_each_other() -> None:
    card = Card()
    engine = Beside(card)
    one, other = bytearray(4), bytearray(8)
    slab = engine.out(one)
    engine.wait_for_copy(slab)
    engine.out(other)  # under way
    engine.back(one, slab)
    assert card.before == [frozenset(), frozenset({0}), frozenset({0})]
    engine.out(one)  # waits for what computes, which has not settled the copy in
    assert card.before[-1] == frozenset({0, 1})


def test_all_streams_go_on_from_a_rest() -> None:
    card = Card()
    engine = Beside(card)
    first, second = card.streams
    for stream in (first, second, first):
        card.now = stream
        engine.follow()
        card.do(stream)
    assert second.after == {0, 1}
    engine.rest()
    assert first.after == second.after == {0, 1, 2}
    card.now = second
    engine.follow()
    card.do(second)
    engine.rest()  # first computed before the last one only
    assert first.after == {0, 1, 2, 3}
