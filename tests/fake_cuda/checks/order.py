"""In which order work is executed, and what waits for what."""

import ctypes
from itertools import pairwise

from cuda.bindings import driver
from cuda.core import Device, EventOptions

from fake_cuda import control
from fake_cuda.checks.common import TIMED, E, device, fails, ok, part, pinned, streams, sync, view


def shared_cell(seed, wait):
    """One stream writes, another reads; returns what it read."""
    control.seed(seed)
    a, b = streams(2)
    cell, source, target = device(8), pinned(8, 7), pinned(8, 0)
    cell.fill(1, stream=a)
    a.sync()
    cell.copy_from(source, stream=a)
    if wait:
        b.wait(a.record())
    cell.copy_to(target, stream=b)
    b.sync()
    read = view(target).tolist()
    sync()  # before the memory goes
    assert len(set(read)) == 1
    return read[0]


def check_a_missing_wait_shows():
    assert {shared_cell(seed, wait=False) for seed in range(20)} == {1, 7}
    assert {shared_cell(seed, wait=True) for seed in range(50)} == {7}


def check_a_missing_wait_shows_in_reuse():
    """The reader must be waited for before the cell is written again."""
    for wait, expected in ((True, {1}), (False, {1, 7})):
        seen = set()
        for seed in range(50):
            control.seed(seed)
            a, b = streams(2)
            cell, source, target = device(8), pinned(8, 7), pinned(8, 0)
            cell.fill(1, stream=a)
            b.wait(a.record())
            cell.copy_to(target, stream=b)
            if wait:
                a.wait(b.record())
            cell.copy_from(source, stream=a)
            a.sync(), b.sync()
            seen.add(int(view(target)[0]))
        assert seen == expected


def order(*events):
    """The names of timed events in the order of their execution."""
    first = events[0][1]
    return "".join(name for name, event in sorted(events, key=lambda item: item[1] - first))


def check_every_legal_order_occurs():
    a, b = streams(2)
    seen = set()
    for seed in range(2000):
        control.seed(seed)
        events = [(name, stream.record(options=TIMED)) for name, stream in zip("xyzpqr", [a, a, a, b, b, b])]
        a.sync(), b.sync()
        seen.add(order(*events))
    assert len(seen) == 20, seen  # 6 over 3
    assert all([c for c in text if c in "xyz"] == list("xyz") for text in seen)


def check_a_seed_gives_one_order():
    a, b = streams(2)
    seen = set()
    for _ in range(5):
        control.seed(11)
        events = [(name, stream.record(options=TIMED)) for name, stream in zip("uvwxyz", [a, b] * 3)]
        a.sync(), b.sync()
        seen.add(order(*events))
    assert len(seen) == 1


def check_streams_are_starved():
    """With work for hundreds of steps on one stream, another with one entry sometimes comes last, sometimes first."""
    places = []
    a, b = streams(2)
    cell = device(8)
    for seed in range(100):
        control.seed(seed)
        start = a.record(options=TIMED)
        for _ in range(200):
            cell.fill(0, stream=a)
        end, single = a.record(options=TIMED), b.record(options=TIMED)
        sync()
        places.append((single - start) / (end - start))
    assert min(places) < 0.05 and max(places) > 1 and any(0.2 < place < 0.95 for place in places), places


def check_a_synchronisation_executes_what_it_needs_and_sometimes_more():
    left = set()
    a, b = streams(2)
    for seed in range(40):
        control.seed(seed)
        needed, extra = a.record(), [b.record() for _ in range(5)]
        needed.sync()
        assert needed.is_done and control.count("pending") <= 5
        left.add(control.count("pending"))
        assert extra
        sync()
        assert control.count("pending") == 0
    assert {0, 5} < left


def check_a_wait_is_for_the_latest_record_when_it_was_made():
    a, b, c = streams(3)
    event, never = Device().create_event(), Device().create_event()
    for seed in range(20):
        control.seed(seed)
        b.wait(never)
        a.record(event)
        b.wait(event)
        c.wait(b.record())
        a.wait(c.record())  # a cycle, if the wait of b were for the record below
        a.record(event)
        b.sync()
        assert event.is_done in (True, False)
        sync()
        assert event.is_done


def check_events_are_recorded_again():
    """A wait after the second record is for the second, though the first is done."""
    a, b = streams(2)
    event, cell, source, target = Device().create_event(), device(8), pinned(8), pinned(8)
    for seed in range(30):
        control.seed(seed)
        view(source)[:] = seed
        cell.copy_from(source, stream=a)
        a.record(event)
        b.wait(event)
        cell.copy_to(target, stream=b)
        a.wait(b.record())
        b.sync()
        assert (view(target) == seed).all()


def check_a_synchronisation_of_nothing_may_execute_other_work():
    a, b = streams(2)
    left = set()
    for seed in range(40):
        control.seed(seed)
        event = b.record()
        a.sync()
        left.add(control.count("pending"))
        event.sync()
    assert left == {0, 1}


def check_host_functions():
    (a,) = streams(1)
    seen = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def function(data):
        seen.append((data, driver.cuStreamQuery(a.handle)[0]))

    host = driver.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    for i in (1, 2):
        ok(driver.cuLaunchHostFunc(a.handle, host, i))
    assert not seen
    a.sync()
    assert seen == [(1, E.CUDA_ERROR_NOT_PERMITTED), (2, E.CUDA_ERROR_NOT_PERMITTED)]


def check_chains_of_waits():
    all_streams = streams(5)
    cell, source, target = device(8), pinned(8, 7), pinned(8)
    for seed in range(30):
        control.seed(seed)
        cell.fill(0, stream=all_streams[0])
        all_streams[0].sync()
        cell.copy_from(source, stream=all_streams[0])
        for before, after in pairwise(all_streams):
            after.wait(before)
        cell.copy_to(target, stream=all_streams[-1])
        all_streams[-1].sync()
        assert (view(target) == 7).all()
        view(target)[:] = 0


def check_polling_gets_there():
    a, b = streams(2)
    event = a.record()
    b.wait(event)
    last, polls = b.record(), 0
    while not last.is_done:
        polls += 1
        assert polls < 1000
    assert driver.cuStreamQuery(b.handle)[0] == E.CUDA_SUCCESS


def check_a_destroyed_stream_finishes_its_work():
    (a,) = streams(1)
    before = control.count("live_streams")
    memory = pinned(8, 0)
    memory.fill(4, stream=a)
    a.close()
    assert control.count("live_streams") == before - 1
    sync()
    assert (view(memory) == 4).all()


def check_default_streams():
    memory = pinned(3, 0)
    for i, handle in enumerate([0, 1, 2]):
        ok(driver.cuMemsetD8Async(int(memory.handle) + i, 1, 1, handle))
    part(memory, 0, 1).fill(1, stream=Device().default_stream)
    sync()
    assert (view(memory) == 1).all()


# --- events


def check_event_times():
    (a,) = streams(1)
    memory = device(1 << 20)
    start = a.record(options=TIMED)
    memory.fill(0, stream=a)
    end, plain = a.record(options=TIMED), a.record()
    fails(E.CUDA_ERROR_NOT_READY, driver.cuEventElapsedTime, start.handle, end.handle)
    fails(E.CUDA_ERROR_INVALID_HANDLE, driver.cuEventElapsedTime, start.handle, plain.handle)
    end.sync()
    assert abs((end - start) * 1e6 - (500 + (1 << 16) + 10)) < 1 and (start - end) < 0
    fresh = Device().create_event(TIMED)
    fails(E.CUDA_ERROR_INVALID_HANDLE, driver.cuEventElapsedTime, start.handle, fresh.handle)
    assert fresh.is_done and end.is_timing_enabled and not plain.is_timing_enabled
    before = control.count("live_events")
    fresh.close()
    assert control.count("live_events") == before - 1


def check_synchronisations_that_spin_are_counted():
    """Those with events that were made to block do not."""
    (a,) = streams(1)
    control.reset_counts()
    spinning, blocking = (a.record(options=EventOptions(blocking_sync=blocks)) for blocks in (False, True))
    blocking.sync()
    assert control.count("spinning_syncs") == 0
    spinning.sync()
    a.sync(), sync()
    assert control.count("spinning_syncs") == 3 and control.count("syncs") == 4
    flags = driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC
    ok(driver.cuDevicePrimaryCtxSetFlags(0, flags))
    spinning.sync(), a.sync(), sync()
    assert control.count("spinning_syncs") == 3 and ok(driver.cuCtxGetFlags()) == flags
    ok(driver.cuDevicePrimaryCtxSetFlags(0, 0))
