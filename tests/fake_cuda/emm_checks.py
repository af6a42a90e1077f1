"""What the tests of Numba's memory manager run on the fake driver: all in one process, which has that manager."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda.bindings import driver as api
from cuda.core import Device
from numba import cuda
from numba.cuda.cudadrv import driver as numba_driver

from fake_cuda import control
from fake_cuda.backend_checks import raised, report
from gpumem.runtime import emm as named
from gpumem.runtime.emm import manager as emm, streams as emm_streams
from gpumem.runtime.pooled.stream_joins import ANY_THREADS, Events
from gpumem.testing.allocators import check as allocators

N = 64
BYTES = 4 * N


@cuda.jit
def add(a: Any, value: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + value


def array(size: int = BYTES) -> Any:
    return cuda.device_array(size // 4, np.float32)


def added(a: Any, value: float, out: Any, stream: Any = 0) -> None:
    add[1, N, stream](a, np.float32(value), out)


def manager() -> emm.MemoryManager:
    found = cuda.current_context().memory_manager
    assert isinstance(found, emm.MemoryManager)
    return found


@contextmanager
def anew(**options: Any) -> Iterator[None]:
    """A manager that has served nothing yet; afterwards nothing is left of it."""
    gc.collect()
    manager().reset()  # the context's takes kernels away as well
    emm.configure(**options)
    try:
        yield
    finally:
        gc.collect()
        manager().reset()
        emm.configure()


def address(memory: Any) -> int:
    return int(memory.device_ctypes_pointer.value)


def iteration() -> list[int]:
    """A step of 40 requests: where its arrays are."""
    arrays = [array(1000 + 100 * k) for k in range(20)]
    return [address(x) for x in arrays]


def check_memory_is_served_from_the_plan_and_the_device_is_not_asked() -> None:
    with anew():
        places = [iteration() for _ in range(3)]
        before, control_before = emm.statistics(), control.count("allocations") + control.count("creates")
        places += [iteration() for _ in range(10)]
        after = emm.statistics()
        assert (after.hits - before.hits, after.misses - before.misses, after.plans) == (200, 0, 1), (before, after)
        assert places[-1] == places[-2] and len(set(places[-1])) == 20
        assert control.count("allocations") + control.count("creates") == control_before
        assert 0 < after.share < 1 and after.live_bytes == 0 < after.peak_bytes <= after.held_bytes


def check_the_interface() -> None:
    assert named._numba_memory_manager is emm.MemoryManager
    assert emm.MemoryManager(context=None).interface_version == 1
    assert issubclass(emm.MemoryManager, numba_driver.BaseCUDAMemoryManager)
    assert manager().deallocations.memory_capacity == cuda.current_context().get_memory_info().total
    memory = manager().memalloc(100)
    assert isinstance(memory, numba_driver.MemoryPointer) and memory.is_managed and memory.size == 100
    assert int(memory.handle) == memory.device_pointer_value == address(memory) and memory.owner is memory
    raised(ValueError, lambda: manager().memalloc(0))


def check_memory_info_counts_what_the_pool_has_left() -> None:
    with anew(capacity="4MiB"):
        context = cuda.current_context()
        empty = context.get_memory_info()
        x = array(2**20)
        assert context.get_memory_info() == (4 * 2**20 - 2**20, empty.total)
        y = array(2**20)
        assert context.get_memory_info() == (2 * 2**20, empty.total)
        del x, y
        assert context.get_memory_info() == (4 * 2**20, empty.total)
    with anew():
        assert context.get_memory_info() == empty
        x = array(2**20)
        assert context.get_memory_info() == (empty.free - 2**20, empty.total)
        del x
        assert context.get_memory_info() == empty


def check_ipc_is_refused_in_words() -> None:
    raised(TypeError, lambda: add[1, N, 5](array(), np.float32(0), array()))  # Numba's own refusal of a stream
    text = raised(NotImplementedError, array().get_ipc_handle)
    assert "copy it through the host" in text and "NUMBA_CUDA_MEMORY_MANAGER" in text


def check_pinned_mapped_and_managed_memory_are_numbas() -> None:
    with anew():
        made = {name: getattr(cuda, f"{name}_array")(N, np.float32) for name in ("pinned", "mapped", "managed")}
        for host in made.values():
            host[:] = 7
        out = array()
        for name in ("mapped", "managed"):
            added(made[name], 1, out)
            assert np.array_equal(out.copy_to_host(), np.full(N, 8, np.float32)), name
        with cuda.pinned(np.zeros(N, np.float32)):
            assert control.count("live_pinned") == 3
        del host, made
        cuda.current_context().memory_manager.deallocations.clear()
        assert control.count("live_pinned") == control.count("live_managed") == 0
        assert emm.statistics().misses == 1  # that of the device array


def check_a_view_keeps_the_memory_of_its_array() -> None:
    with anew():
        x = array()
        place, part = address(x), x[N // 2 :]
        del x
        assert address(part) == place + BYTES // 2
        other = array()
        assert address(other) != place
        inner = part[4:]
        del part, other
        assert emm.statistics().live_bytes == BYTES
        del inner
        assert emm.statistics().live_bytes == 0
        assert address(array()) == place


def check_memory_can_be_freed_once() -> None:
    with anew():
        x = array()
        x.gpu_data.free()
        assert emm.statistics().live_bytes == 0
        assert raised(RuntimeError, x.gpu_data.free) == "Freeing dead memory"
        y = array()
        del x
        assert emm.statistics().live_bytes == BYTES
        owned = manager().memalloc(BYTES).own()  # of Numba's pointers that count: nobody has the block itself
        raised(ReferenceError, partial(getattr, owned, "device_pointer"))
        del y
        assert emm.statistics().live_bytes == 0


def check_nothing_is_given_back_while_cleanup_is_deferred() -> None:
    for before in (True, False):
        with anew():
            kept = [array()] if before else []
            with cuda.defer_cleanup():
                first = address(array())
                with cuda.defer_cleanup():
                    second = address(array())
                third = address(array())
                assert len({first, second, third}) == 3
                assert emm.statistics().live_bytes == (3 + before) * BYTES
            assert emm.statistics().live_bytes == before * BYTES
            assert address(array()) == first
            del kept


def check_a_reset_gives_everything_back_and_the_next_request_begins_anew() -> None:
    with anew():
        used = control.count("device_bytes")
        old = [array(2**21) for _ in range(3)]
        view = old[0][4:]
        assert control.count("device_bytes") > used
        cuda.current_context().reset()
        assert control.count("device_bytes") == used and emm.statistics() == emm.ManagerStatistics()
        new = array()
        old.clear()
        del view
        assert emm.statistics().live_bytes == BYTES
        added(new, 1, new)
        cuda.synchronize()


def check_closing_the_context_gives_everything_back() -> None:
    with anew():
        x = array(2**21)
        stream = cuda.stream()
        added(x, 1, x, stream)
        cuda.close()
        del x, stream
        gc.collect()
        assert control.count("device_bytes") == control.count("reserved_addresses") == 0
        x = cuda.to_device(np.arange(N, dtype=np.float32))
        assert np.array_equal(x.copy_to_host(), np.arange(N))
        assert emm.statistics().misses == 1


def check_a_context_that_somebody_else_made() -> None:
    device = numba_driver.binding.CUdevice(0)
    context = numba_driver.Context(device, numba_driver.driver.cuDevicePrimaryCtxRetain(device))
    context.push()
    try:
        kept = context.memalloc(BYTES)
        x = array()
        added(x, 1, x)
        cuda.synchronize()
        assert abs(address(kept) - address(x)) >= BYTES
        assert context.memory_manager.statistics().live_bytes == BYTES
    finally:
        context.memory_manager.reset()
        context.pop()
        numba_driver.driver.cuDevicePrimaryCtxRelease(device)


def check_no_room_is_the_drivers_error_and_pythons() -> None:
    with anew(capacity="3MiB"):
        keep = array(2**21)
        for kind in (MemoryError, numba_driver.CudaAPIError):
            text = raised(kind, lambda: array(2**21))
            assert "CUDA_ERROR_OUT_OF_MEMORY" in text and "2097152" in text, text
        assert emm.statistics().live_bytes == 2**21
        del keep
        assert array(2**21).size == 2**19
    with anew():
        raised(MemoryError, lambda: array(2**40))


def check_options_are_checked_and_told_in_time() -> None:
    with anew():
        for told, option in (
            ("capacity: unit 'GB'", {"capacity": "1GB"}),
            ("planner: 'bestfit'", {"planner": "bestfit"}),
            ("min_length: 0", {"min_length": 0}),
        ):
            assert told in raised(ValueError, lambda option=option: emm.configure(**option))
        array()
        assert "before the first" in raised(RuntimeError, emm.configure)
    environment = {"GPUMEM_CAPACITY": "1MiB", "GPUMEM_PLANNER": "first-fit", "GPUMEM_MIN_LENGTH": "8"}
    with patch.dict("os.environ", environment):
        assert emm.Options.of_environment() == emm.Options("1MiB", "first-fit", 8)
    with patch.dict("os.environ", {"GPUMEM_MIN_LENGTH": "x"}):
        assert "GPUMEM_MIN_LENGTH: 'x'" in raised(ValueError, emm.Options.of_environment)


def check_memory_frees_itself_in_a_context_that_is_ruined() -> None:
    with anew():
        x, y = array(), array()
        control.fail("context", 1)
        added(x, 1, y)
        raised(numba_driver.CudaAPIError, cuda.synchronize)
        del x, y  # the driver is not asked
        assert emm.statistics().live_bytes == 0
        control.revive()


def check_what_fails_as_memory_is_taken_back_comes_out_of_the_next_request() -> None:
    with anew():
        x = array()
        pool = manager()._memory.pool
        with patch.object(pool, "free", side_effect=RuntimeError("no")):
            del x
            assert raised(RuntimeError, array) == "no"
        assert emm.statistics().live_bytes == 0
        array()


def check_a_cycle_that_is_collected_within_a_request_does_no_harm() -> None:
    with anew():
        pool = manager()
        pool.memalloc(8)

        def cycle() -> None:
            held: list[Any] = [array()]
            held.append(held)

        original = pool._memory.pool.allocate

        def collecting(size: int, *, stream: int = 0) -> int:
            gc.collect()
            return original(size, stream=stream)

        with patch.object(pool._memory.pool, "allocate", collecting):
            for _ in range(3):
                cycle()
        gc.collect()
        array()
        assert emm.statistics().live_bytes == 0


# Streams -------------------------------------------------------------------------------------------------------------


class Exchange:
    """Copies of some `x` are under way on one stream; then x's bytes go to `z`, to which another stream writes."""

    def __init__(self) -> None:
        self.source = cuda.to_device(np.arange(N, dtype=np.float32))
        self.kept: list[tuple[float, Any]] = []

    def use(self, value: float, stream: Any) -> None:
        xs = [array() for _ in range(4)]
        for x in xs:
            self.kept.append((value, array()))
            added(self.source, value, x, stream)
            added(x, 0, self.kept[-1][1], stream)

    def spoil(self, stream: Any) -> None:
        zs = [array() for _ in range(4)]
        for z in zs:
            added(z, -1, z, stream)

    def right(self) -> bool:
        cuda.synchronize()
        return all(np.array_equal(y.copy_to_host(), np.arange(N) + value) for value, y in self.kept)


def two_streams() -> bool:
    one, other, exchange = cuda.stream(), cuda.stream(), Exchange()
    for k in range(3):
        exchange.use(k, one)
        exchange.spoil(other)
    return exchange.right()


def a_stream_and_the_default_one() -> bool:
    one, exchange = cuda.stream(), Exchange()
    for k in range(4):
        exchange.use(k, one if k % 2 else 0)
        exchange.spoil(0 if k % 2 else one)
    return exchange.right()


def a_stream_that_comes_later() -> bool:
    exchange = Exchange()
    exchange.use(1, 0)
    exchange.spoil(cuda.stream())
    return exchange.right()


def a_stream_of_cuda_core() -> bool:
    exchange = Exchange()
    exchange.use(1, 0)
    exchange.spoil(Device(0).create_stream())
    return exchange.right()


def a_stream_that_somebody_else_made() -> bool:
    exchange = Exchange()
    handle = int(api.cuStreamCreate(1)[1])
    exchange.use(1, cuda.external_stream(handle))
    exchange.spoil(0)
    found = exchange.right()
    api.cuStreamDestroy(handle)
    return found


def a_stream_that_goes() -> bool:
    exchange, stream = Exchange(), cuda.stream()
    exchange.use(1, stream)
    handle = int(stream)
    type(add).configure.cache_clear()  # Numba keeps the last 128 of what kernels were launched with
    del stream
    cuda.current_context().deallocations.clear()
    exchange.spoil(0)
    assert handle not in manager().streams._streams
    return exchange.right()


def a_thread_of_its_own() -> bool:
    exchange, stream = Exchange(), cuda.per_thread_default_stream()
    exchange.use(1, 0)
    thread = threading.Thread(target=exchange.spoil, args=(stream,))
    thread.start()
    thread.join()
    return exchange.right()


STORIES = (
    two_streams,
    a_stream_and_the_default_one,
    a_stream_that_comes_later,
    a_stream_of_cuda_core,
    a_stream_that_somebody_else_made,
    a_stream_that_goes,
    a_thread_of_its_own,
)


def right(story: Callable[[], bool], seed: int) -> bool:
    """Whether a story leaves the right bytes, in an order of the device's."""
    with anew():
        control.seed(seed)
        found = story()
        gc.collect()
        cuda.current_context().deallocations.clear()
    return found


def check_bytes_change_hands_behind_what_used_them() -> None:
    for story in STORIES:
        assert all(right(story, seed) for seed in range(8)), story.__name__


def check_a_join_that_is_missing_is_found() -> None:
    nothing = {"_ordered": lambda *_: True, "_synchronise": lambda self: None, "_follow": lambda *_: None}
    with patch.multiple(Events, **nothing):
        for story in STORIES:
            assert not all(right(story, seed) for seed in range(40)), story.__name__


def check_one_stream_waits_for_nothing() -> None:
    manager().streams = None  # forget those of other checks
    manager().initialize()
    with anew():
        control.reset_counts()
        for _ in range(6):
            iteration()
        assert (control.count("records"), control.count("waits"), emm.statistics().joins) == (0, 0, 0)
        stream = cuda.stream()
        for _ in range(3):
            iteration()
        joins = emm.statistics().joins
        assert 2 <= joins <= 4, joins  # one serves all that was freed before it
        del stream
        iteration()
        joins = emm.statistics().joins
        for _ in range(3):
            iteration()
        assert emm.statistics().joins == joins  # the only other stream is gone


def check_a_threads_own_stream_is_waited_for_by_the_host_as_nobody_knows_whose_it_is() -> None:
    with anew():
        manager().streams = None
        manager().initialize()
        x, stream = array(), cuda.per_thread_default_stream()
        added(x, 1, x, stream)
        known = manager().streams
        assert known.several and known._streams.keys() == {0, ANY_THREADS} and ANY_THREADS < 0
        control.reset_counts()
        known.join()
        assert (control.count("syncs"), control.count("waits")) == (1, 0) and ANY_THREADS in known._streams
        added(x, 1, x, cuda.legacy_default_stream())  # the default stream by another name
        assert known._streams.keys() == {0, ANY_THREADS}
    manager().streams = None
    manager().initialize()


def check_a_stream_of_somebody_elses_is_met_when_it_is_used() -> None:
    with anew():
        known = manager().streams
        before = {*known._streams}
        nonsense = cuda.external_stream(0xBAD)  # a driver that is asked of it ends the process
        array()
        assert {*known._streams} == before and "external" in repr(nonsense).lower()
        handle = int(api.cuStreamCreate(1)[1])
        stream = cuda.external_stream(handle)
        x = array()
        added(x, 1, x, stream)
        assert {*known._streams} == {*before, handle}
        api.cuStreamSynchronize(handle), api.cuStreamDestroy(handle)  # while Numba's object of it lives
        control.reset_counts()
        known.join()
        assert control.count("syncs") == 1
        del stream, x, nonsense


def graph_builder() -> Any:
    builder = Device(0).create_stream().create_graph_builder()
    builder.begin_building("relaxed")
    return builder


def check_a_capture_disturbs_nobody_who_gets_no_memory() -> None:
    """A graph is built with kernels of Numba's; meanwhile others make streams, and none is refused."""
    with anew():
        x, y = array(), array()
        known, builder = manager().streams, graph_builder()
        added(x, 1, y, builder)
        assert int(builder.stream.handle) not in known._streams
        new = cuda.stream()
        added(x, 1, x, new)
        added(y, 1, y, builder)
        assert builder.is_building and int(new) in known._streams
        builder.end_building().close()
        del new, x, y


def check_a_stream_that_was_refused_is_not_known() -> None:
    with anew():
        known = manager().streams
        before = {*known._streams}
        with (
            patch.object(Events, "_follow", side_effect=RuntimeError("no")),
            patch.object(Events, "join", side_effect=RuntimeError("no")),
        ):
            assert raised(RuntimeError, cuda.stream) == "no"
        assert {*known._streams} == before


def check_numba_without_what_is_watched_is_refused() -> None:
    original = numba_driver._stream_handle
    del numba_driver._stream_handle
    try:
        text = raised(RuntimeError, lambda: emm_streams.watch(lambda context: None))
    finally:
        numba_driver._stream_handle = original
    assert "no numba.cuda.cudadrv.driver._stream_handle," in text and "use numba-cuda" in text


def check_threads_on_streams_of_their_own() -> None:
    with anew():
        context, failed = cuda.current_context(), []
        source = cuda.to_device(np.arange(N, dtype=np.float32))

        def work(k: int) -> None:
            try:
                stream = cuda.stream()
                for i in range(60):
                    x, y = array(), array()
                    added(source, 100 * k, x, stream)
                    added(x, i, y, stream)
                    stream.synchronize()
                    assert np.array_equal(y.copy_to_host(), np.arange(N) + 100 * k + i), (k, i)
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert context.memory_manager.statistics().live_bytes == BYTES


class Ranges:
    """Bytes that are in use, by several threads; no two of them overlap."""

    def __init__(self) -> None:
        self.lock, self.live = threading.Lock(), list[tuple[int, int]]()

    def take(self, low: int, size: int) -> None:
        with self.lock:
            i = bisect_left(self.live, (low,))
            assert i == 0 or self.live[i - 1][1] <= low, (self.live[i - 1], low)
            assert i == len(self.live) or low + size <= self.live[i][0], (low, size, self.live[i])
            self.live.insert(i, (low, low + size))

    def give(self, low: int) -> None:
        with self.lock:
            del self.live[bisect_left(self.live, (low,))]


def check_ten_thousand_requests_of_four_threads_never_overlap() -> None:
    with anew():
        manager_, ranges, failed = manager(), Ranges(), []

        def work(seed: int) -> None:
            drawn, held, stream = random.Random(seed), [], cuda.stream()
            try:
                for _ in range(1250):  # mallocs, and as many frees
                    size = drawn.choice((100, 1000, 5000, drawn.randrange(1, 20000)))
                    held.append(manager_.memalloc(size))
                    ranges.take(held[-1].device_pointer, size)
                    if len(held) > 8:
                        ranges.give(held[k := drawn.randrange(len(held))].device_pointer)
                        del held[k]
                while held:
                    ranges.give(held[-1].device_pointer)
                    held.pop()
                stream.synchronize()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        told = emm.statistics()
        assert (told.hits + told.misses, told.live_bytes) == (5000, 0) and told.joins > 0, told


# Contexts, and the contract ------------------------------------------------------------------------------------------


class Apart:
    """A manager beside that of the program, as another context has one; its memory by address."""

    alignment = 256

    def __init__(self, capacity: int) -> None:
        self.manager = emm.MemoryManager(context=cuda.current_context())
        self.manager.initialize()
        with patch.object(emm, "_options", emm.Options(capacity, min_length=4)):
            self.manager._begin()
        self.capacity, self.live = capacity, dict[int, emm.PoolPointer]()
        self.base = self.manager._memory.backing.base
        weakref.finalize(self, self.manager.reset)

    def allocate(self, size: int, *, stream: int = 0) -> int:
        block = self.manager.memalloc(size)
        offset = block.device_pointer - self.base
        self.live[offset] = block
        return offset

    def free(self, offset: int, *, stream: int = 0) -> None:
        try:
            del self.live[offset]
        except KeyError:
            raise ValueError(f"offset {offset!r}: no live block starts there") from None


def check_the_contract_of_allocators() -> None:
    allocators.check_allocator(lambda: Apart(2**20), examples=6, streams=1)


def check_contexts_have_memory_of_their_own() -> None:
    with anew():
        one, other = Apart(2**20), Apart(2**20)
        a, b = one.manager.memalloc(2**19), other.manager.memalloc(2**20)
        x = array(2**19)
        ranges = sorted([(address(a), a.size), (address(b), b.size), (address(x), 2**19)])
        assert all(low + size <= high for (low, size), (high, _) in pairwise(ranges))
        one.manager.reset()
        assert other.manager.statistics().live_bytes == 2**20 and emm.statistics().live_bytes == 2**19
        del a, b
        assert other.manager.statistics().live_bytes == 0 == one.manager.statistics().live_bytes
        other.manager.reset()


def main() -> None:
    """Run all checks."""
    x = array()
    added(x, 0, x)  # compiled now
    gc.collect()
    gc.freeze()  # it is called often here, and what Numba has made is much
    report(globals())
