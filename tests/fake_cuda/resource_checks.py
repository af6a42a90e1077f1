"""What the tests of pools behind other libraries' memory run on the fake driver: buffers, streams, threads, faults."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda.bindings import driver
from cuda.core import PER_THREAD_DEFAULT_STREAM, Buffer, Device, LegacyPinnedMemoryResource

from fake_cuda import control
from fake_cuda.backend_checks import raised, report
from gpumem import best_fit
from gpumem.pool import BFC, Buddy, Caching, CnMem, MultiStream, Native, SmartPool
from gpumem.runtime import Events, PoolMemoryResource, Served, cupy_allocator
from gpumem.runtime.cuda_core import takes_the_stream
from gpumem.runtime.pooled.backing import backing
from gpumem.trace import Trace
from tests import cupy_double

MIB = 2**20
PINNED = LegacyPinnedMemoryResource()
COUNTS = ("live_device", "device_bytes", "live_events", "live_streams", "live_pinned")


def held() -> dict[str, int]:
    """What is alive on the fake device."""
    gc.collect()
    return {what: control.count(what) for what in COUNTS}


@contextmanager
def clean() -> Iterator[None]:
    """Leave nothing behind."""
    before = held()
    yield
    assert held() == before, (before, held())


def small(capacity: int = 2**15) -> PoolMemoryResource:
    """A resource that has to reuse its bytes: they change streams, and each time these are joined."""
    pool = SmartPool(MultiStream(capacity=capacity, allow_growth=False), min_length=4)
    return PoolMemoryResource(0, 2 * MIB, allocator=pool)


def work(resource: PoolMemoryResource, number: int, requests: int, wrong: list[str]) -> None:
    """Fill blocks with bytes of one's own, now and then hand them to another stream, and look at them at their end."""
    Device(0).set_current()
    draw, mine, seen = random.Random(number), [], []
    streams = [Device().create_stream() for _ in range(1 + number % 2)]
    pinned = PINNED.allocate(requests * 2048)
    found = np.frombuffer(control.host(int(pinned.handle), pinned.size), np.uint8)
    for k in range(requests):
        stream = draw.choice(streams)
        if len(mine) > 3 or (mine and draw.random() < 0.4):
            block, byte, last = mine.pop(draw.randrange(len(mine)))
            stream.wait(last)
            at = 2048 * len(seen)
            block.copy_to(_part(pinned, at, block.size), stream=stream)
            seen.append((byte, found[at : at + block.size]))
            block.close(stream)
        else:
            block = resource.allocate(draw.choice([1, 300, 512, 2000]), stream=stream)
            byte = (16 * number + k) % 251
            block.fill(byte, stream=stream)
            mine.append((block, byte, stream))
    for block, _, last in mine:
        block.close(last)
    for stream in streams:
        stream.sync()
    wrong += [f"thread {number}: {byte} was {set(x.tolist())}" for byte, x in seen if not (x == byte).all()]
    pinned.close()
    for stream in streams:
        stream.close()


def _part(buffer: Any, start: int, size: int) -> Any:
    return Buffer.from_handle(int(buffer.handle) + start, size, owner=buffer)


def together(resource: PoolMemoryResource, seed: int, requests: int) -> list[str]:
    """What four threads on streams of their own find in their blocks that they did not put there."""
    control.seed(seed)
    wrong: list[str] = []
    threads = [threading.Thread(target=_noting, args=(wrong, resource, k, requests)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "dead locked"
    return wrong


def _noting(wrong: list[str], resource: PoolMemoryResource, number: int, requests: int) -> None:
    try:
        work(resource, number, requests, wrong)
    except Exception as error:
        wrong.append(f"thread {number}: {error!r}")


def check_four_threads_on_four_streams() -> None:
    control.reset_counts()
    with clean():
        with small() as resource:
            assert together(resource, 0, 2500) == []
            counts = resource.statistics
            assert counts.blocks.current == 0 and counts.requests >= 10_000
            assert control.count("waits") > 2500, control.count("waits")  # a thread's own are at most one a free
        del resource


def check_threads_with_any_seed() -> None:
    for seed in range(10):
        with small() as resource:
            assert together(resource, seed, 200) == []


def check_without_joins_bytes_are_wrong() -> None:
    with patch.object(Events, "join", lambda self: None), small() as resource:
        assert any(together(resource, seed, 200) for seed in range(10))


def iteration(device: Any, a: Any, b: Any) -> None:
    """A step on two streams: five blocks, of which two are read by the other stream."""
    x, y = device.allocate(4000, stream=a), device.allocate(1000, stream=a)
    x.fill(1, stream=a), y.fill(2, stream=a)
    b.wait(a)
    z = device.allocate(4000, stream=b)
    z.copy_from(x, stream=b)
    x.close(b), y.close(a)
    w = device.allocate(2000, stream=b)
    w.fill(3, stream=b)
    z.close(b), w.close()


@contextmanager
def as_memory_of(device: Any, resource: Any) -> Iterator[Any]:
    """Let a device allocate from a resource."""
    before, device.memory_resource = device.memory_resource, resource
    try:
        yield device
    finally:
        device.memory_resource = before


def check_a_steady_program_is_served_by_its_plan() -> None:
    with clean():
        a, b = Device().create_stream(), Device().create_stream()
        with PoolMemoryResource(capacity="50%") as resource, as_memory_of(Device(), resource) as device:
            weight = device.allocate(10_000, stream=a)
            for _ in range(100):
                iteration(device, a, b)
            assert resource.planned >= 0.95, resource.statistics
            assert resource.served.top <= 2**15, resource.served.top
            sync()
            weight.close()
        del resource, weight
        a.close(), b.close()


def check_a_plan_to_begin_with() -> None:
    trace = Trace.from_lifetimes([1000, 500, 1000], [0, 1, 2], [2, 3, 4])
    stream = Device().create_stream()
    pool = SmartPool.of(trace, best_fit(trace))
    with PoolMemoryResource(capacity="64MiB", allocator=pool) as resource:
        for _ in range(10):
            x, y = (resource.allocate(size, stream=stream) for size in (1000, 500))
            x.close()
            z = resource.allocate(1000, stream=stream)
            y.close(), z.close()
        assert resource.planned == 1 and resource.statistics.deviations == {}, resource.statistics


def check_any_allocator_will_do() -> None:
    a, b = Device().create_stream(), Device().create_stream()
    for make in (BFC, CnMem, Caching, Buddy, Native):
        with clean():
            with PoolMemoryResource(0, 64 * MIB, allocator=make(capacity=64 * MIB)) as resource:
                with as_memory_of(Device(), resource) as device:
                    for _ in range(3):
                        iteration(device, a, b)
                assert resource.planned == 0 and resource.statistics.blocks.total == 12
            sync()
            del resource, device


def sync() -> None:
    """All of the device."""
    assert not driver.cuCtxSynchronize()[0]


def check_what_a_resource_says_of_itself() -> None:
    stream = Device().create_stream()
    with PoolMemoryResource(Device(0), "64MiB") as resource:
        buffer = resource.allocate(100, stream=stream)
        assert (resource.device_id, buffer.device_id) == (0, 0)
        assert buffer.is_device_accessible and not buffer.is_host_accessible and buffer.memory_resource is resource
        assert not resource.is_managed and not resource.is_ipc_enabled
        nothing = resource.allocate(0, stream=stream)
        assert (int(nothing.handle), nothing.size) == (0, 0)
        nothing.close(), buffer.close(), buffer.close()
        assert resource.statistics.blocks.current == 0


def check_what_is_refused() -> None:
    stream = Device().create_stream()
    with PoolMemoryResource(0, "64MiB") as resource:
        buffer, builder = resource.allocate(100, stream=stream), stream.create_graph_builder()
        alone = "belongs to this process alone"
        for kind, told, call in [
            (TypeError, "stream: NoneType is no cuda.core.Stream", lambda: resource.allocate(1, stream=None)),
            (TypeError, "memory for a graph is allocated before", lambda: resource.allocate(1, stream=builder)),
            (ValueError, "size: -1 bytes", lambda: resource.allocate(-1, stream=stream)),
            (MemoryError, "no room for 1099511627776 bytes", lambda: resource.allocate(2**40, stream=stream)),
            (ValueError, "no live block starts there", lambda: resource.deallocate(64, 8, stream=stream)),
            (TypeError, alone, lambda: pickle.dumps(resource)),
            (RuntimeError, alone, lambda: resource.allocation_handle),
            (RuntimeError, "not IPC-enabled", lambda: buffer.ipc_descriptor),
            (ValueError, "capacity: unit 'GB' of '1GB'", lambda: PoolMemoryResource(0, "1GB")),
            (ValueError, "", lambda: PoolMemoryResource(7)),
        ]:
            assert told in raised(kind, call), (told, raised(kind, call))
        buffer.close(), builder.close()
    assert "was closed" in raised(RuntimeError, lambda: resource.allocate(1, stream=stream))


def check_memory_goes_back_with_the_last_buffer() -> None:
    with clean():
        stream = Device().create_stream()
        with PoolMemoryResource(0, "64MiB") as resource:
            buffer = resource.allocate(100, stream=stream)
        buffer.fill(1, stream=stream)  # still there
        sync()
        buffer.close(stream)
        assert control.count("device_bytes") == 0 or held()
        del buffer, resource
        unclosed = PoolMemoryResource(0, "64MiB").allocate(100, stream=stream)  # nobody has the resource but this
        del unclosed
        stream.close()


class Circle:
    """Has a buffer that only a collection gives back."""

    def __init__(self, resource: Any, stream: Any) -> None:
        self.me, self.buffer = self, resource.allocate(1000, stream=stream)


def check_finalizers_in_any_thread() -> None:
    stream = Device().create_stream()
    with clean():
        with PoolMemoryResource(0, "64MiB") as resource:

            def drop() -> None:
                for k in range(200):
                    Circle(resource, stream)
                    if k % 20 == 7:
                        gc.collect()

            threads = [threading.Thread(target=drop) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            gc.collect()
            assert resource.statistics.blocks.current == 0
        resource = drop = threads = thread = None


def check_a_thread_without_a_context() -> None:
    """Joins use the device's own context, whatever is current."""
    a, b = Device().create_stream(), Device().create_stream()
    with small(1024) as resource:
        resource.allocate(1024, stream=a).close()
        found: list[Any] = []

        def other() -> None:
            found.append(resource.served.allocate(1024, int(b.handle)))
            found.append(driver.cuCtxGetCurrent())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
        assert int(found[1][1]) == 0, found
        resource.served.free(found[0], int(b.handle))


def check_default_streams_of_threads() -> None:
    """The host waits for another thread's own, once."""
    memory = Served(MultiStream(capacity=1024, allow_growth=False), backing(0, MIB), streams=Events(0))
    stream = Device().create_stream()
    control.reset_counts()
    memory.free(memory.allocate(1024, 2), 2)

    def other() -> None:
        memory.free(memory.allocate(1024, 2), 2)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    counts = []
    for handle in (2, int(stream.handle), 2):
        block = memory.allocate(1024, handle, stream)
        Buffer.from_handle(block, 1024).fill(handle % 200, stream=PER_THREAD_DEFAULT_STREAM if handle == 2 else stream)
        memory.free(block, handle, stream)
        counts.append((control.count("syncs"), control.count("records")))
    assert counts == [(2, 0), (2, 2), (2, 4)], counts  # from each of the two threads; then events do
    sync()
    memory.close()


def check_arrays_of_cupy() -> None:
    """By way of a double of it, since CuPy needs more of CUDA than the fake driver has."""
    a, b = Device().create_stream(), Device().create_stream()
    with clean(), cupy_double.installed() as cuda:
        cuda.set_allocator(cupy_allocator(small(2**13)))
        for k in range(30):
            control.seed(k)
            for stream in (a, b, a):
                with cuda.on(int(stream.handle)):
                    x = cuda.alloc(8192 // (1 + k % 2))
                    Buffer.from_handle(x.ptr, 4096).fill(k, stream=stream)
                    del x
            a.sync()
            with cuda.on(int(a.handle)):
                x = cuda.alloc(4096)
                Buffer.from_handle(x.ptr, 4096).fill(k + 1, stream=a)
                sync()
                assert {*control.host(x.ptr, 4096)} == {k + 1}
                del x
        del cuda.alloc


def check_what_else_cuda_core_does_with_a_resource() -> None:
    a, b = Device().create_stream(), Device().create_stream()
    with PoolMemoryResource(0, "64MiB") as resource:
        x = resource.allocate(512, stream=a)
        x.fill(7, stream=a)
        y = x.copy_to(stream=a)  # into a buffer of the same resource
        assert y.memory_resource is resource and y.size == 512
        z = Buffer.from_handle(int(y.handle), 512, owner=y)  # owns nothing
        if takes_the_stream():
            b.wait(a)
            y.set_deallocation_stream(b)
        sync()
        assert {*control.host(int(z.handle), 512)} == {7} and resource.statistics.blocks.current == 2
        x.close()
        del y
        assert resource.statistics.blocks.current == 1
        del z
        assert resource.statistics.blocks.current == 0


def check_buffers_go_back_on_their_stream() -> None:
    a, b = Device().create_stream(), Device().create_stream()
    with small(1024) as resource:
        resource.allocate(1024, stream=a).close(b)
        resource.allocate(1024, stream=b).close(b)
        control.reset_counts()
        resource.allocate(1024, stream=b).close()
        resource.allocate(1024, stream=b).close(a)
        assert control.count("waits") == (0 if takes_the_stream() else 2)
        resource.allocate(1024, stream=b).close()
        assert control.count("waits") >= 2
    with small(1024) as resource, patch("gpumem.runtime.cuda_core.Buffer", None):
        raised(AttributeError, lambda: resource.allocate(8, stream=a))
        assert resource.statistics.blocks.current == 0


class Owner:
    """Says that a handle is valid, until it is closed."""

    def __init__(self, stream: Any) -> None:
        self.handle = int(stream.handle)


def check_a_handle_that_comes_again_is_another_stream() -> None:
    """The host waits once for what the old one may have left, and the new one comes behind the last join."""
    a, b = Device().create_stream(), Device().create_stream()
    memory, first, second = _two(a, b)
    second.handle = 0
    control.reset_counts()
    again = Owner(b)
    memory.free(memory.allocate(512, again.handle, again), again.handle, again)
    assert (control.count("waits"), control.count("syncs")) == (1, 1)
    memory.free(memory.allocate(1024, first.handle, first), first.handle, first)
    assert (control.count("waits"), control.count("syncs")) == (3, 1)
    memory.close()


def _two(a: Any, b: Any) -> tuple[Served, Owner, Owner]:
    """Memory of a kilobyte that two streams have had, the second one first."""
    memory = Served(MultiStream(capacity=1024, allow_growth=False), backing(0, MIB), streams=Events(0))
    first, second = Owner(a), Owner(b)
    for owner in (second, first):
        memory.free(memory.allocate(1024, owner.handle, owner), owner.handle, owner)
    return memory, first, second


def check_a_stream_that_was_destroyed() -> None:
    """The driver is not asked of it; the host waits for what it may have left, once."""
    a, b, c = (Device().create_stream() for _ in range(3))
    memory, _, owner = _two(b, a)
    a.close()
    owner.handle = 0
    control.reset_counts()
    for k, stream in enumerate((b, c, b, c)):
        memory.free(memory.allocate(1024, int(stream.handle), stream), int(stream.handle), stream)
        assert control.count("syncs") == (k > 0), k
    assert memory.streams._streams.keys() == {int(b.handle), int(c.handle)}
    memory.close()


def check_a_stream_that_nobody_owns_is_not_asked_of() -> None:
    """The driver has its handle while memory is asked for on it, and never later."""
    a, b = Device().create_stream(), Device().create_stream()
    memory = Served(MultiStream(capacity=1024, allow_growth=False), backing(0, MIB), streams=Events(0))
    memory.free(memory.allocate(1024, int(a.handle)), int(a.handle))
    a.close()
    control.reset_counts()
    memory.free(memory.allocate(1024, int(b.handle), b), int(b.handle), b)
    assert (control.count("syncs"), control.count("records")) == (1, 0)
    memory.close()


def check_a_stream_is_kept_until_what_was_freed_on_it_is_ordered() -> None:
    a, b = Device().create_stream(), Device().create_stream()
    gc.collect()
    before = control.count("live_streams")
    with small(1024) as resource:
        buffer = resource.allocate(1024, stream=a)
        buffer.fill(1, stream=a)
        buffer.close(a)
        control.reset_counts()
        a.close()
        del a
        gc.collect()
        kept = takes_the_stream()
        assert control.count("live_streams") == before - (not kept)
        block = resource.allocate(1024, stream=b)
        assert control.count("syncs") == (not kept) and control.count("live_streams") == before - 1
        block.close()


def check_one_stream_waits_for_all_others_and_they_for_it() -> None:
    streams = [Device().create_stream() for _ in range(64)]
    events = Events(0)
    for stream in streams:
        events.seen(int(stream.handle), stream)
    control.reset_counts()
    events.join()
    assert (control.count("records"), control.count("waits"), control.count("events_created")) == (64, 126, 1)
    late = Device().create_stream()
    events.admit(int(late.handle), late)
    events.admit(int(late.handle), late)
    assert (control.count("records"), control.count("waits")) == (64, 127)
    events.close()


def check_a_stream_that_is_being_captured() -> None:
    """It gets nothing, since its graph would write what others have by then; and it joins nobody."""
    a, b = Device().create_stream(), Device().create_stream()
    with small(1024) as resource:
        builder = b.create_graph_builder()
        builder.begin_building()
        told = raised(RuntimeError, lambda: resource.allocate(1024, stream=b))
        assert "is being captured into a graph" in told and "keep it as long as the graph" in told, told
        resource.allocate(1024, stream=a).close()
        assert builder.is_building
        builder.end_building().close()
        resource.allocate(1024, stream=b).close()
        builder = b.create_graph_builder()
        builder.begin_building()
        told = raised(RuntimeError, lambda: resource.allocate(1024, stream=a))
        assert "memory changes hands between streams" in told, told
        builder.end_building().close()
        resource.allocate(1024, stream=a).close()


def attempt(device: Any, a: Any, b: Any) -> list[Exception]:
    """Make a step until nothing fails; return what did."""
    failed: list[Exception] = []
    while len(failed) < 20:
        try:
            iteration(device, a, b)
            return failed
        except Exception as error:
            assert isinstance(error, (MemoryError, RuntimeError)) or "CUDA_ERROR" in str(error), error
            failed.append(error.with_traceback(None))
    raise AssertionError(failed)


def check_every_fault_at_every_place() -> None:
    """What is asked for is refused or there, nothing leaks, and it is there when asked for again."""
    a, b = Device().create_stream(), Device().create_stream()
    failed = dict.fromkeys(("reserve", "create", "map", "access", "event", "record", "wait", "set", "copy"), 0)
    for what in failed:
        for place in range(1, 9):
            with clean():
                control.seed(place)
                control.fail(what, place)
                try:
                    with small(2**14) as resource, as_memory_of(Device(), resource) as device:
                        failed[what] += sum(len(attempt(device, a, b)) + len(attempt(device, b, a)) for _ in range(3))
                except MemoryError:
                    failed[what] += what == "reserve"  # there is no resource
                control.fail(what, 0)
                resource = device = None
                sync()
    assert failed["reserve"] == 1 and not any(failed[what] for what in ("create", "map", "access")), failed  # once more


def check_where_events_cannot_be_had_the_host_waits() -> None:
    a, b = Device().create_stream(), Device().create_stream()
    places = [("event", 1), ("record", 1), ("record", 2), ("wait", 1), ("wait", 2)]
    for (what, place), seed in itertools.product(places, range(8)):
        control.seed(seed)
        control.reset_counts()
        memory = Served(MultiStream(capacity=1024, allow_growth=False), backing(0, MIB), streams=Events(0))
        x, y = memory.allocate(512, int(a.handle), a), memory.allocate(512, int(b.handle), b)
        Buffer.from_handle(x, 512).fill(1, stream=a)
        memory.free(x, int(a.handle), a), memory.free(y, int(a.handle), a)
        control.fail(what, place)
        whole = memory.allocate(1024, int(b.handle), b)
        Buffer.from_handle(whole, 1024).fill(2, stream=b)
        assert control.count("syncs") == 1, (what, place)
        sync()
        assert {*control.host(whole, 1024)} == {2}
        memory.free(whole), memory.close()


def check_a_ruined_context_gives_everything_back() -> None:
    for place in range(1, 9):
        control.revive()
        Device(0).set_current()
        a, b = Device().create_stream(), Device().create_stream()
        control.fail("context", place)
        resource = small(2**14)
        try:
            with as_memory_of(Device(), resource) as device:
                for _ in range(8):
                    iteration(device, a, b)
            sync()
            raise ValueError("nothing has failed")
        except (AssertionError, RuntimeError):
            pass
        assert "what was under way has failed" in raised(RuntimeError, resource.close)
        gc.collect()
        assert control.count("device_bytes") == 0 == control.count("live_events"), (place, held())
    control.fail("context", 0)
    control.revive()


def main() -> None:
    """Run all checks."""
    Device(0).set_current()
    gc.freeze()  # what is there stays: collections are quick
    report(globals())
