"""Blocks that an allocator serves as real memory: addresses, threads, finalizers, joins. No CUDA here."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

from gpumem.pool import ALLOCATORS, MultiStream, Native, SmartPool
from gpumem.runtime import Served
from gpumem.runtime.pooled.served import NOBODYS
from gpumem.runtime.pooled.stream_joins import known
from gpumem.testing import Witness, allocator_machine, check_allocator
from tests.runtime.serving import BASE, Joins, Plain, in_thread, served

FACTORIES: dict[str, Callable[[], Any]] = {
    "smartpool": lambda: SmartPool(Native(capacity=2**20, granularity=256), min_length=4),
    "multistream": lambda: SmartPool(MultiStream(capacity=2**20, allow_growth=False), min_length=4),
    **{name: ALLOCATORS[name] for name in ALLOCATORS},
}


GROWS = ("caching", "expandable", "streams")  # rather than having a stream wait, while the device has room


@pytest.mark.parametrize("name", FACTORIES)
def test_it_is_an_allocator_as_the_one_behind_it(name: str) -> None:
    skip = ["growth"] * (name in GROWS)
    check_allocator(lambda: served(FACTORIES[name]()), examples=10, steps=20, streams=3, skip=skip)


Machine = allocator_machine(lambda: served(FACTORIES["multistream"]()), streams=3).TestCase
Machine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_addresses_are_in_the_backing_and_the_backing_is_large_enough() -> None:
    it = served(Native(granularity=256))
    a, b = it.allocate(100), it.allocate(1000, 5)
    assert (a, b) == (BASE, BASE + 256) and it.backing.top == it.top == 1256
    it.free(b, 5)
    assert it.statistics.blocks.current == 1


def test_what_a_backing_must_be_and_what_is_no_block() -> None:
    with pytest.raises(ValueError, match="backing: its first byte, 0x64, is not a multiple of 256"):
        Served(Native(granularity=256), Plain(base=100), streams=Joins())
    it = served()
    for wrong in (0, BASE, "no", [1]):
        with pytest.raises(ValueError, match="no live block starts there"):
            it.free(wrong)  # type: ignore[arg-type]
    it.free(a := it.allocate(8))
    with pytest.raises(ValueError, match="no live block"):
        it.free(a)
    with pytest.raises(ValueError, match="size: 0"):
        it.allocate(0)


def test_streams_are_joined_where_bytes_change_hands() -> None:
    it = served(Native(granularity=256, capacity=512))
    a, _ = it.allocate(256, 7), it.allocate(256, 8)
    it.free(a, 7)
    assert it.streams.joined == []  # a free takes a note
    assert it.allocate(256, 8) == a
    assert it.streams.joined == [{7, 8}]


def test_each_request_admits_its_stream_and_each_free_is_seen() -> None:
    it, a, b = served(Native(granularity=256)), object(), object()
    it.free(it.allocate(256, 7, a), 9, b)
    assert it.streams.owners == [(7, a)]  # a free takes a note, and keeps the owner
    it.allocate(256, 8)
    assert it.streams.owners == [(7, a), (9, b), (8, None)]
    assert it.streams.joined == [{7, 9}]  # before stream 8 comes, which is admitted behind it


def test_a_stream_that_is_refused_gets_nothing() -> None:
    it = served(Native(granularity=256))
    it.streams.admit = _fails
    with pytest.raises(RuntimeError, match="no event"):
        it.allocate(256, 7)
    assert it.statistics.blocks.total == 0


def test_a_stream_that_is_only_freed_on_waits_before_it_gets_bytes() -> None:
    it = served(Native(granularity=256))
    a = it.allocate(256, 7)
    it.free(it.allocate(256, 7), 7)
    it.free(a, 9)
    it.allocate(256, 7)  # carries both out: the second with a join of both
    assert it.streams.joined == [{7, 9}]


def test_what_is_freed_while_others_are_waited_for_is_waited_for_afterwards() -> None:
    class Echo(MultiStream):
        """Frees another block in the middle of the first free, as a collection might."""

        def free(self, offset: int, *, stream: int = 0) -> None:
            if late:
                it.free(late.pop())
            super().free(offset, stream=stream)

    late: list[int] = []
    it = served(Echo(capacity=1024, allow_growth=False))
    a, b = it.allocate(256, 7), it.allocate(256, 8)
    it.free(a)
    late.append(b)
    it.allocate(256, 7)
    assert it.streams.joined == [{7, 8}, {7, 8}]


def test_where_nobody_knows_and_nobody_asks_nothing_waits() -> None:
    it = served(MultiStream(capacity=1024, allow_growth=False))
    it.allocate(256, 7)
    it.free(it.allocate(256, 8), NOBODYS)
    it.allocate(256, 7)  # there is room elsewhere
    assert it.streams.joined == [] and all(stream > 0 for stream, _ in it.streams.owners)
    it.allocate(256, 7), it.allocate(256, 7)
    assert it.streams.joined == [{7, 8}]


def test_what_is_idle_is_given_back_before_memory_is_refused() -> None:
    pool = SmartPool(MultiStream(capacity=2**20, allow_growth=False), min_length=4)
    it = served(pool, room=16 * 1024)
    for _ in range(5):
        x, y = it.allocate(4000), it.allocate(4000)
        it.free(x), it.free(y)
    assert pool.base == 0 and pool.statistics.hits
    assert it.allocate(12_000) == BASE  # there is room below what the plan has, and none above


def test_where_nobody_knows_who_used_a_block_last_all_are_waited_for() -> None:
    it = served(MultiStream(capacity=1024, allow_growth=False))
    blocks = [it.allocate(256, 7), it.allocate(256, 8), it.allocate(256, 8)]
    for block in blocks[:2]:
        it.free(block)
    assert it.allocate(256, 8) in blocks[:2]
    assert it.streams.joined == [{7, 8}]  # once for both


def test_a_join_that_fails_is_made_again() -> None:
    it = served(Native(granularity=256))
    a = it.allocate(256, 7)
    it.free(a, 7)
    it.free(it.allocate(256, 7), 7)
    join, it.streams.join = it.streams.join, _fails
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no event"):
            it.allocate(256, 9)
    it.streams.join = join
    assert it.allocate(256, 9) == a


class Again:
    """Makes each request again until its joins do not fail; they fail at random."""

    def __init__(self, it: Served, seed: int) -> None:
        self.it, self.draw, self.synchronize = it, random.Random(seed), lambda: None
        it.synchronize = self.join

    def join(self) -> None:
        if self.draw.random() < 0.4:
            raise RuntimeError("no event")
        self.synchronize()

    def again(self, request: Callable[[], Any]) -> Any:
        while True:
            try:
                return request()
            except RuntimeError:
                pass

    def allocate(self, size: int, *, stream: int = 0) -> int:
        address: int = self.again(lambda: self.it.allocate(size, stream))
        return address

    def free(self, address: int, *, stream: int = 0) -> None:
        self.it.free(address, stream)

    @property
    def statistics(self) -> Any:
        return self.again(lambda: self.it.statistics)


@pytest.mark.parametrize("fallback", [MultiStream, lambda: Native(granularity=256)], ids=["streams", "native"])
def test_wherever_a_join_fails_the_pool_is_as_it_was(fallback: Callable[[], Any]) -> None:
    plans = 0
    for seed in range(40):
        streams, late = (1, 1) if seed % 3 else (3, 0)  # from one stream alone, but for what lives longer
        draw, below = random.Random(seed), fallback()
        it = served(SmartPool(below, min_length=4))
        witness, kept = Witness(Again(it, seed)), []
        words = [
            [(draw.randrange(1, 2000), draw.randrange(streams), draw.randrange(streams)) for _ in range(length)]
            for length in (3, 5)
        ]
        for phase in range(8):
            for _ in range(draw.randrange(4, 8)):
                blocks = [(witness.allocate(size, stream=first), last) for size, first, last in words[phase % 2]]
                kept += [block for block in blocks if draw.random() < 0.05]
                for block in blocks:
                    if block not in kept:
                        witness.free(block[0], stream=block[1])
            while kept and draw.random() < 0.6:
                block = kept.pop(0)
                witness.free(block[0], stream=block[1] + late)
        for block in kept:
            witness.free(block[0], stream=block[1] + late)
        plans += it.statistics.plans
        assert below.statistics.blocks.current <= 1  # the region of the plan, and none of those before
    assert plans > 100


def _fails(*_: object) -> None:
    raise RuntimeError("no event")


def test_each_thread_has_a_default_stream_of_its_own() -> None:
    it = served(MultiStream(capacity=1024, allow_growth=False))
    blocks = [it.allocate(256, 2)]
    numbers = [known(2)]

    def other() -> None:
        numbers.append(known(2))
        blocks.append(it.allocate(256, 2))
        it.free(blocks[0], 2)  # a finalizer may come anywhere: whose stream it was is unknown

    in_thread(other)
    it.allocate(256, 2)
    assert numbers[0] != numbers[1] and max(numbers) < 0
    assert it.streams.joined == [{*numbers}]


class Collecting(Native):
    """Collects garbage in the middle of each request, so that finalizers run there."""

    def allocate(self, size: int, *, stream: int = 0) -> int:
        gc.collect()
        return super().allocate(size, stream=stream)

    def free(self, offset: int, *, stream: int = 0) -> None:
        gc.collect()
        super().free(offset, stream=stream)


class Block:
    """A block that is freed when nobody has it any more; in a circle, so that only a collection finds that."""

    def __init__(self, it: Served, size: int) -> None:
        self.it, self.me, self.address = it, self, it.allocate(size)

    def __del__(self) -> None:
        self.it.free(self.address)


def test_finalizers_may_free_while_their_thread_allocates() -> None:
    it = served(Collecting(granularity=256))

    def work() -> None:
        for _ in range(8):
            Block(it, 256)

    in_thread(work)
    gc.collect()
    assert it.statistics.blocks.current == 0 and it.statistics.blocks.total == 8
    assert it.top <= 3 * 256


def test_a_free_never_waits_for_a_request_in_another_thread() -> None:
    inside, go = threading.Event(), threading.Event()

    class Slow(Native):
        def allocate(self, size: int, *, stream: int = 0) -> int:
            if size > 256:
                inside.set()
                assert go.wait(20)
            return super().allocate(size, stream=stream)

    it = served(Slow(granularity=256))
    a = it.allocate(256)
    thread = threading.Thread(target=it.allocate, args=(512,))
    thread.start()
    assert inside.wait(20)
    in_thread(lambda: it.free(a))
    go.set()
    thread.join(20)
    assert it.statistics.blocks.current == 1


def test_a_request_within_a_request_is_refused() -> None:
    def planner(trace: Any) -> Any:
        it.allocate(8)

    it = served(SmartPool(planner=planner, min_length=2))
    with pytest.raises(RuntimeError, match="from within a request for memory, say by a planner"):
        for _ in range(9):
            it.free(it.allocate(8))
    it.allocate(8)  # the pool is as it was


def test_no_room_is_a_memory_error_that_changes_nothing() -> None:
    it = served(Native(granularity=256), room=512)
    a = it.allocate(256)
    for _ in range(2):
        with pytest.raises(MemoryError, match="768 bytes asked for, 512 are there"):
            it.allocate(512)
    assert it.statistics.blocks.current == 1 and it.top == 256
    it.free(a)
    assert it.allocate(512) == BASE


def test_four_threads_get_blocks_of_their_own() -> None:
    it = served(SmartPool(MultiStream(capacity=2**16, allow_growth=False), min_length=4))
    lock, live = threading.Lock(), {}
    wrong: list[tuple[int, int]] = []

    def work(stream: int) -> None:
        draw, mine = random.Random(stream), []
        for _ in range(400):
            if len(mine) > 4:
                address = mine.pop(draw.randrange(len(mine)))
                with lock:
                    del live[address]
                it.free(address, stream)
            size = draw.choice([1, 100, 256, 1000])
            address = it.allocate(size, stream)
            with lock:
                wrong.extend((address, low) for low, n in live.items() if low < address + size and address < low + n)
                live[address] = size
            mine.append(address)

    threads = [threading.Thread(target=work, args=(k,)) for k in (11, 12, 13, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and it.statistics.blocks.current == len(live) == 20


def test_closed_memory_gives_nothing_and_goes_with_its_last_block() -> None:
    it = served()
    a, b = it.allocate(8), it.allocate(8)
    it.close()
    it.free(a), it.close()
    assert not it.backing.closed
    with pytest.raises(RuntimeError, match="closed"):
        it.allocate(8)
    it.free(b)
    assert it.backing.closed and it.streams.waits == 1 and it.statistics.blocks.total == 2


def test_closed_at_once_blocks_are_worth_nothing() -> None:
    it = served()
    a = it.allocate(8)
    it.close(at_once=True)
    assert it.backing.closed
    it.free(a)
    assert it.streams.waits == 1


def test_memory_is_not_closed_from_within_a_request() -> None:
    class Closing(Native):
        def allocate(self, size: int, *, stream: int = 0) -> int:
            it.close()
            return 0

    it = served(Closing())
    with pytest.raises(RuntimeError, match="cannot be closed from within a request"):
        it.allocate(8)
    it.close()


def test_bytes_go_back_where_the_device_has_failed() -> None:
    it = served()
    it.streams.wait = _fails
    with pytest.raises(RuntimeError, match="no event"):
        it.close()
    assert it.backing.closed
