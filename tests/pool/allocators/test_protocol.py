"""Replaying a trace: the order of requests against a naive script, the placements against the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gpumem import check
from gpumem.io import BUNDLED, bundled, load
from gpumem.pool import ALLOCATORS, best_fit
from gpumem.pool.allocators.cnmem import CnMem
from gpumem.pool.allocators.protocol import PATIENCE, replay
from gpumem.trace import COMPUTE, SYNC, Buffers, Ops, Trace
from gpumem.trace.placement import NOWHERE
from tests.conftest import shared
from tests.pool.allocators.naive_log import naive_log
from tests.strategies import traces

INSTANCES = shared("traces/*.json.gz")


class Diary:
    """Writes down the requests; addresses are never used twice, or those that `places` says for a size."""

    def __init__(self, places: dict[int, list[int]] | None = None) -> None:
        self.log: list[tuple[str, int, int]] = []
        self.places = places or {}
        self.top = 0

    def allocate(self, size: int, *, stream: int = 0) -> int:
        self.log.append(("+", size, stream))
        if places := self.places.get(size):
            return places.pop(0) if len(places) > 1 else places[0]
        self.top += size
        return self.top - size

    def free(self, offset: int, *, stream: int = 0) -> None:
        self.log.append(("-", offset, stream))


def test_requests_come_in_the_order_of_the_steps() -> None:
    #            0    1    2    3 = n       streams of the ops: 0 1 2
    # 10  whole  =====================
    # 20  wraps  =====          ======      made at op 2, last touched by op 0 of the next iteration
    # 30         ==========                 last touched by op 1
    # 40              ==========            untouched: made and freed on the stream of op 1
    # 50  host, 0 bytes: no requests
    buffers = Buffers.make(
        [10, 20, 30, 40, 50, 0],
        [0, 2, 0, 1, 0, 0],
        [3, 4, 2, 3, 3, 2],
        host=[False, False, False, False, True, False],
    )
    ops = Ops.make([[0, 1, 2], [2], [0]], [[2], [], [1]], stream=[0, 1, 2], streams=["a", "b", "c"])
    trace = Trace(buffers, ops)
    places = {10: [0], 20: [100], 30: [200], 40: [300]}
    diary = Diary(places)
    placed = replay(trace, diary, iterations=1)
    check.placement(trace, placed)
    assert placed.offset.tolist() == [0, 100, 200, 300, NOWHERE, 0]
    assert (placed.height, placed.alignment) == (340, 1)
    first = [("+", 10, 0), ("+", 20, 2)]
    iteration = [("+", 30, 0), ("-", 100, 0), ("+", 40, 1), ("-", 200, 1), ("+", 20, 2), ("-", 300, 1)]
    assert diary.log == first + 2 * iteration  # the second one repeats the first


def test_what_wraps_is_made_in_the_order_of_the_iteration_before() -> None:
    diary = Diary({4: [0], 8: [16], 2: [32]})
    replay(Trace.from_lifetimes([4, 8, 2], [3, 2, 2], [5, 5, 6], n=5), diary, iterations=1)  # the 8 ends at step 5
    assert diary.log[:3] == [("+", 2, 0), ("-", 32, 0), ("+", 8, 0)]
    late = Diary({4: [0], 8: [16]})
    replay(Trace.from_lifetimes([4, 8], [3, 2], [5, 5], n=4), late, iterations=1)
    assert late.log[:2] == [("+", 8, 0), ("+", 4, 0)]


def test_what_streams_do_is_told_at_their_ops() -> None:
    class Told(Diary):
        def use(self, offset: int, *, stream: int = 0) -> None:
            self.log.append(("=", offset, stream))

        def sync_and_coalesce(self) -> None:
            self.log.append(("|", 0, 0))

    # 10: read on stream 0 by op 1, then on stream 1 by op 4, which does not wait for that; ops 2, 3 and 5 are sync ops
    buffers = Buffers.make([10, 20], [0, 0], [5, 6])
    reads = [[], [0], [], [], [0], []]
    role = [COMPUTE, COMPUTE, SYNC, SYNC, COMPUTE, SYNC]
    ops = Ops.make(reads, [[0], [], [], [], [], []], stream=[0, 0, 0, 1, 1, 0], streams=["a", "b"], role=role)
    told = Told({10: [0], 20: [100]})
    replay(Trace(buffers, ops), told, iterations=2)
    iteration = [("+", 10, 0), ("=", 0, 0), ("|", 0, 0), ("-", 0, 1), ("|", 0, 0)]
    assert told.log == [("+", 20, 0), *iteration, *iteration]
    deaf = Diary({10: [0], 20: [100]})
    replay(Trace(buffers, ops), deaf, iterations=2)
    assert deaf.log == [entry for entry in told.log if entry[0] in "+-"]


@given(traces(), st.integers(1, 3))
def test_requests_are_those_of_a_naive_script(trace: Trace, iterations: int) -> None:
    named = Trace(Buffers.make(trace.buffers.size, trace.buffers.start, trace.buffers.end), trace.ops)
    offsets = {i: 1000 * i for i in range(len(named.buffers))}

    class Numbered(Diary):
        """Every buffer has its own place, so frees tell who went; several of one size take turns."""

        def free(self, offset: int, *, stream: int = 0) -> None:
            self.log.append(("-", offset // 1000, stream))

        def allocate(self, size: int, *, stream: int = 0) -> int:
            _, who, where = expected[len(self.log)]
            assert (size, stream) == (named.buffers[who].size, where)
            self.log.append(("+", who, stream))
            return offsets[who]

    class Told(Numbered):
        """Wants to know who else uses a buffer."""

        def use(self, offset: int, *, stream: int = 0) -> None:
            self.log.append(("=", offset // 1000, stream))

    for diary in (Numbered(), Told()):
        uses = isinstance(diary, Told)
        expected = naive_log(named, iterations + 1, uses)
        replay(named, diary, iterations=iterations)
        done = len(diary.log)
        assert diary.log == expected[:done]
        assert done in {len(naive_log(named, iterations + more, uses)) for more in (0, 1)}


@given(traces(), st.sampled_from(sorted(ALLOCATORS)))
def test_every_placement_is_valid(trace: Trace, name: str) -> None:
    allocator = ALLOCATORS[name]()
    try:
        placed = replay(trace, allocator)
    except ValueError as error:
        assert "wraps" in str(error)
        assert (trace.buffers.end > trace.n).any()
        return
    check.placement(trace, placed)
    assert placed.alignment == allocator.alignment
    assert allocator.statistics.reserved.peak >= trace.peak_live_bytes


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("bundle", BUNDLED)
def test_bundled_traces_are_placed_validly_and_deterministically(name: str, bundle: str) -> None:
    trace = bundled(bundle)
    allocators = [ALLOCATORS[name](), ALLOCATORS[name]()]
    first, second = [replay(trace, allocator) for allocator in allocators]
    check.placement(trace, first)
    assert (first.offset == second.offset).all()
    footprint = allocators[0].statistics.reserved.peak
    assert footprint >= trace.peak_live_bytes
    if name in ("native", "caching", "buddy"):  # the others choose by how much is left
        assert (replay(trace, ALLOCATORS[name](capacity=footprint)).offset == first.offset).all()


def test_the_device_has_no_byte_to_spare() -> None:
    trace, device = bundled("mlp3"), ALLOCATORS["native"]()
    replay(trace, device)
    footprint = device.statistics.reserved.peak
    with pytest.raises(MemoryError, match=r"buffer \d+, step \d+: no room"):
        replay(trace, ALLOCATORS["native"](capacity=footprint - 1))


@pytest.mark.shared
@pytest.mark.parametrize("path", INSTANCES, ids=lambda p: p.name.split(".")[0])
def test_recorded_traces_are_placed_validly(path: Path) -> None:
    trace = load(path).trace
    for make in ALLOCATORS.values():
        allocator = make()
        check.placement(trace, replay(trace, allocator, iterations=2))
        assert allocator.statistics.reserved.peak >= trace.peak_live_bytes


@pytest.mark.shared
@pytest.mark.parametrize("path", shared("traces/vgg*_cifar_*"), ids=lambda p: p.name.split(".")[0])
def test_smartpool_is_below_cnmem(path: Path) -> None:
    trace, cnmem = load(path).trace, CnMem()  # on ResNets it is the other way round
    assert best_fit(trace).height <= replay(trace, cnmem).height == cnmem.statistics.reserved.peak


def test_a_buffer_that_wraps_must_come_back_to_its_place() -> None:
    trace = Trace.from_lifetimes([4, 8], [2, 0], [5, 1], n=4)
    with pytest.raises(ValueError, match=r"buffer 0: wraps, but lies at \d+ and \d+ in turn, after 20 iterations"):
        replay(trace, Diary())  # a new address each time
    settles = Diary({4: [0, 16, 32, 0, 64, 16], 8: [128]})
    assert replay(trace, settles, iterations=1).offset.tolist() == [16, 128]  # one is made before the first iteration
    assert settles.log.count(("+", 4, 0)) == 1 + 6


def test_without_wrapping_the_last_iteration_is_the_placement() -> None:
    trace, diary = Trace.from_lifetimes([4, 8], [0, 1], [2, 3]), Diary()
    placed = replay(trace, diary, iterations=2)
    check.placement(trace, placed)
    assert placed.offset.tolist() == [12 * (2 + PATIENCE - 1), 12 * (2 + PATIENCE - 1) + 4]


def test_at_least_so_many_iterations() -> None:
    trace, diary = Trace.from_lifetimes([4], [0], [2], n=3), Diary({4: [0]})
    replay(trace, diary, iterations=7)
    assert diary.log.count(("+", 4, 0)) == 7
    with pytest.raises(ValueError, match="iterations: 0"):
        replay(trace, diary, iterations=0)


def test_out_of_memory_says_where() -> None:
    trace = Trace.from_lifetimes([600, 500, 600], [0, 1, 2], [3, 3, 3])
    with pytest.raises(MemoryError, match="buffer 2, step 2: no room for 600 bytes: 1536 of 1536 are reserved"):
        replay(trace, CnMem(capacity=1536, fit="first"))
    with pytest.raises(MemoryError, match="buffer 0, before the first iteration"):
        replay(Trace.from_lifetimes([600], [0], [1]), CnMem(capacity=512))
