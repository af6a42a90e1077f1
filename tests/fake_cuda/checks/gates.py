"""Streams that wait for values in memory, streams that are full, and a host that is slower than the device."""

import threading
import time

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, ObjectCode, launch

from fake_cuda import control
from fake_cuda.checks.common import ONE, TIMED, E, capture, device, fails, kernel, ok, pinned, streams, sync, view

GEQ, EQ, AND, NOR = range(4)


def wait(stream, memory, value, flags=GEQ, bits=32, offset=0):
    """Queue a wait for a value."""
    call = driver.cuStreamWaitValue32 if bits == 32 else driver.cuStreamWaitValue64
    return call(stream.handle, int(memory.handle) + offset, value, flags)


def write(stream, memory, value, bits=32, offset=0):
    """Queue the writing of a value."""
    call = driver.cuStreamWriteValue32 if bits == 32 else driver.cuStreamWriteValue64
    return call(stream.handle, int(memory.handle) + offset, value, 0)


# --- values in memory


def check_a_stream_waits_until_the_host_writes():
    a, b = streams(2)
    gate, cell = pinned(8, 0), pinned(8, 1)
    for seed in range(20):
        control.seed(seed)
        view(gate)[:], view(cell)[:] = 0, 1
        ok(wait(a, gate, 1))
        cell.fill(2, stream=a)
        b.wait(done := a.record())
        for _ in range(50):
            assert driver.cuEventQuery(done.handle)[0] == E.CUDA_ERROR_NOT_READY
        assert (view(cell) == 1).all()
        fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, b.sync)
        fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, a.sync)
        fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, sync)
        fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, done.sync)
        assert (view(cell) == 1).all() and control.count("pending") == 4
        view(gate)[0] = 1
        b.sync()
        assert (view(cell) == 2).all()


def check_a_stream_waits_until_another_writes():
    a, b = streams(2)
    gate, cell = device(8), pinned(8, 1)
    for bits in (32, 64):
        for seed in range(20):
            control.seed(seed)
            gate.fill(0, stream=a)
            a.sync()
            ok(wait(a, gate, 7, bits=bits))
            cell.fill(3, stream=a)
            cell.fill(2, stream=b)
            ok(write(b, gate, 7, bits=bits))
            a.sync()
            assert (view(cell) == 3).all()
            assert bytes(view(gate)) == (7).to_bytes(8, "little")


def check_another_thread_may_write():
    a, b = streams(2)
    control.patience(20_000)
    calls = (a.sync, sync, lambda: ok(driver.cuMemFree(ok(driver.cuMemAlloc(8)))))
    shut = [pinned(8, 0) for _ in calls]  # kept to the end: freeing one waits for the next
    for gate, synchronise in zip(shut, calls):
        event = Device().create_event()
        ok(wait(a, gate, 1))
        a.record(event)

        def write_soon(gate=gate, event=event):
            Device(0).set_current()
            time.sleep(0.02)
            b.record(event)  # the call is not kept waiting
            view(gate)[0] = 1

        other = threading.Thread(target=write_soon)
        other.start()
        synchronise()
        assert control.count("pending") <= 1
        other.join()
        sync()


def check_when_a_value_is_enough():
    (a,) = streams(1)
    gate = pinned(8, 0)
    top = 1 << 31
    for flags, wanted, found, enough in [
        (GEQ, 5, 4, False), (GEQ, 5, 5, True), (GEQ, 5, 6, True), (GEQ, 5, (5 + top - 1) % 2**32, True),
        (GEQ, 5, (5 + top) % 2**32, False), (EQ, 5, 4, False), (EQ, 5, 6, False), (EQ, 5, 5, True),
        (AND, 6, 1, False), (AND, 6, 3, True), (NOR, 1, 2**32 - 2, False), (NOR, 1, 0, True),
    ]:  # fmt: skip
        for bits in (32, 64):
            scale = 2**32 if bits == 64 else 1
            width = bits // 8
            low = scale - 1 if flags == NOR else 0  # the lower half of the 64 bits must not matter
            view(gate)[:width] = np.frombuffer((found * scale + low).to_bytes(width, "little"), np.uint8)
            ok(wait(a, gate, wanted * scale, flags, bits=bits))
            if not enough:
                fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, a.sync)
                view(gate)[:width] = np.frombuffer((wanted * scale).to_bytes(width, "little"), np.uint8)
                view(gate)[:width] &= 0 if flags == NOR else 255
            a.sync()


def check_what_values_are_refused():
    (a,) = streams(1)
    gate = device(12)
    for call in (wait, write):
        fails(E.CUDA_ERROR_INVALID_VALUE, call, a, gate, 1, offset=2)
        fails(E.CUDA_ERROR_INVALID_VALUE, call, a, gate, 1, offset=12)
        fails(E.CUDA_ERROR_INVALID_VALUE, call, a, gate, 1, bits=64, offset=8)
        capture(a, "RELAXED")
        fails(E.CUDA_ERROR_NOT_SUPPORTED, call, a, gate, 1)
        driver.cuGraphDestroy(ok(driver.cuStreamEndCapture(a.handle)))
    assert control.count("pending") == 0
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
    assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == 1


def check_a_gate_whose_stream_is_destroyed_times_out_and_a_reset_drops_it():
    (a,) = streams(1)
    gate = pinned(8, 0)
    ok(wait(a, gate, 1))
    a.close()
    fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, sync)
    raw = int(ok(driver.cuMemAlloc(8)))
    fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuMemFree, raw)
    control.revive()
    assert control.count("pending") == 0
    sync()


def check_a_first_launch_behind_a_gate_times_out():
    """It loads the kernel, and that may wait for the whole device."""
    a, b = streams(2)
    gate, cell = pinned(8, 0), pinned(8, 1)
    code = ObjectCode.from_cubin(b"anything")
    launch(a, ONE, code.get_kernel("clear"), cell)
    a.sync()
    assert control.count("late_loads") == 1
    ok(wait(a, gate, 1))
    launch(b, ONE, code.get_kernel("clear"), cell)  # is loaded
    fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, launch, b, ONE, code.get_kernel("advance"), cell)
    assert control.count("late_loads") == 1
    function = ok(driver.cuKernelGetFunction(int(code.get_kernel("advance").handle)))
    assert ok(driver.cuFuncIsLoaded(function)) == 0
    ok(driver.cuFuncLoad(function))
    assert ok(driver.cuFuncIsLoaded(function)) == 1
    launch(b, ONE, code.get_kernel("advance"), cell)
    ok(write(b, gate, 1))
    launch(b, ONE, code.get_kernel("other"))  # no gate stays shut
    a.sync(), b.sync()
    assert control.count("late_loads") == 2 and view(cell).tolist() == [1] + [0] * 7


# --- full streams


def check_a_full_stream_executes_to_have_room():
    a, b = streams(2)
    cell, clear = device(8), kernel("clear")
    control.queue(4)
    for seed in range(20):
        control.seed(seed)
        control.reset_counts()
        for i in range(50):
            launch(a, ONE, clear, cell)
            if i % 5 == 0:
                b.wait(a.record())
            assert control.count("pending") <= 8
        assert control.count("executed_launches") >= 30 and control.count("syncs") == 0
        sync()
        assert control.count("executed_launches") == 50


def check_a_full_stream_behind_a_gate_times_out():
    (a,) = streams(1)
    gate, cell, clear = pinned(8, 0), device(8), kernel("clear")
    control.queue(8)
    launch(a, ONE, clear, cell)
    a.sync()
    control.reset_counts()
    ok(wait(a, gate, 1))
    for _ in range(7):
        launch(a, ONE, clear, cell)
    event = Device().create_event()
    for call in [
        lambda: launch(a, ONE, clear, cell),
        lambda: cell.fill(1, stream=a),
        lambda: cell.copy_to(gate, stream=a),
        lambda: a.record(event),
        lambda: a.wait(event),
        lambda: wait(a, gate, 1),
        lambda: driver.cuMemFreeAsync(int(cell.handle), a.handle),
    ]:
        fails(E.CUDA_ERROR_LAUNCH_TIMEOUT, call)
    assert control.count("pending") == 8 and control.count("launches") == 7
    view(gate)[0] = 1
    cell.fill(1, stream=a)
    a.sync()
    assert (view(cell) == 1).all() and event.is_done


# --- a slow host


def gap(stream, host_ns, launches):
    """Nanoseconds from an event to one after so many launches."""
    control.eager(host_ns)
    cell, clear, start = device(8), kernel("clear"), stream.record(options=TIMED)
    for _ in range(launches):
        launch(stream, ONE, clear, cell)
    end = stream.record(options=TIMED)
    end.sync()
    return round((end - start) * 1e6)


def check_events_show_how_slow_the_host_is():
    (a,) = streams(1)
    assert gap(a, 0, 5) == 5 * 1000 + 10  # the device is the slower
    assert gap(a, 700, 5) == 5 * 1000 + 10 + (700 - 10)  # the first launch waits for the host
    assert gap(a, 4000, 5) == 6 * 4000
    assert control.count("pending") == 0


def check_an_eager_device_executes_before_the_call_returns():
    a, b = streams(2)
    gate, cell = pinned(8, 0), pinned(8, 0)
    control.eager(100)
    cell.fill(1, stream=a)
    assert (view(cell) == 1).all() and control.count("pending") == 0
    ok(wait(a, gate, 1))
    b.wait(a.record())
    cell.fill(2, stream=b)
    assert (view(cell) == 1).all() and control.count("pending") == 4
    ok(write(Device().create_stream(), gate, 1))
    assert (view(cell) == 2).all() and control.count("pending") == 0
    control.fail("execution", 1)
    cell.fill(3, stream=a)
    fails(E.CUDA_ERROR_LAUNCH_FAILED, a.sync)
    control.eager(0)
    cell.fill(4, stream=a)
    assert (view(cell) == 2).all()
