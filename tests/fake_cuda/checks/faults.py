"""What fails when told, and what ruins the context."""

import gc

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, ObjectCode, launch

from fake_cuda import control
from fake_cuda.checks.common import ONE, E, capture, device, fails, kernel, ok, pinned, says, streams, sync, view


def check_calls_fail_when_told():
    (a,) = streams(1)
    cell, source = device(8), pinned(8)
    event, clear = Device().create_event(), kernel("clear")
    control.reset_counts()
    for what, error, call in [
        ("allocation", E.CUDA_ERROR_OUT_OF_MEMORY, lambda: ok(driver.cuMemAlloc(8))),
        ("allocation", E.CUDA_ERROR_OUT_OF_MEMORY, lambda: Device().allocate(8, stream=a)),
        ("pinned", E.CUDA_ERROR_OUT_OF_MEMORY, lambda: pinned(8)),
        ("copy", E.CUDA_ERROR_LAUNCH_FAILED, lambda: cell.copy_from(source, stream=a)),
        ("set", E.CUDA_ERROR_LAUNCH_FAILED, lambda: cell.fill(0, stream=a)),
        ("launch", E.CUDA_ERROR_LAUNCH_FAILED, lambda: launch(a, ONE, clear, cell)),
        ("record", E.CUDA_ERROR_UNKNOWN, lambda: a.record(event)),
        ("wait", E.CUDA_ERROR_UNKNOWN, lambda: a.wait(event)),
        ("event", E.CUDA_ERROR_UNKNOWN, lambda: ok(driver.cuEventCreate(0))),
        ("stream", E.CUDA_ERROR_UNKNOWN, lambda: streams(1)),
    ]:
        kept = []
        control.fail(what, 3)
        kept += [call(), call()]
        before = {n: control.count(n) for n in ("live_device", "live_events", "copies", "sets", "launches", "pending")}
        try:
            call()
        except Exception as failure:
            assert says(failure, error), (what, failure)
        else:
            raise AssertionError(what)
        assert {n: control.count(n) for n in before} == before, what
        kept.append(call())  # once, not for ever
        control.fail(what, 1)
        control.fail(what, 0)
        kept.append(call())
    sync()


def check_execution_fails_when_told():
    a, b = streams(2)
    first, second = pinned(8, 1), pinned(8, 1)
    control.fail("execution", 2)
    first.fill(2, stream=a)
    event = a.record()
    b.wait(event)
    second.fill(2, stream=b)
    last = b.record()
    fails(E.CUDA_ERROR_LAUNCH_FAILED, last.sync)
    assert (view(first) == 2).all() and (view(second) == 1).all()
    last.sync(), a.sync(), sync()
    launch(a, ONE, kernel("clear"), int(np.zeros(1).ctypes.data))
    fails(E.CUDA_ERROR_ILLEGAL_ADDRESS, a.sync)
    a.sync()


def check_work_on_freed_memory_fails():
    a, b = streams(2)
    seen = set()
    for seed in range(30):
        control.seed(seed)
        memory = device(8)
        memory.fill(0, stream=a)
        memory.close(b)  # nothing orders the two
        seen.add(driver.cuCtxSynchronize()[0])
    assert seen == {E.CUDA_SUCCESS, E.CUDA_ERROR_ILLEGAL_ADDRESS}


def check_unknown_names():
    for call in (lambda: control.count("x"), lambda: control.fail("x", 1), lambda: control.host(8, 1)):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError


# --- what ruins the context


def live():
    """What is there; queued entries too."""
    kinds = ("live_device", "live_pinned", "live_streams", "live_events", "live_graphs", "live_execs", "pending")
    return {what: control.count(what) for what in kinds}


def entering(a, cell, source, event, graph):
    """Calls that enter the driver, none of them a free."""
    exec_, status = graph, driver.CUstreamCaptureMode(0)
    return [
        lambda: driver.cuMemAlloc(8),
        lambda: driver.cuMemHostAlloc(8, 0),
        lambda: driver.cuMemAllocAsync(8, a.handle),
        lambda: driver.cuMemGetInfo(),
        lambda: cell.copy_from(source, stream=a),
        lambda: driver.cuMemcpyHtoD(int(cell.handle), int(source.handle), 8),
        lambda: cell.fill(0, stream=a),
        lambda: launch(a, ONE, kernel("clear"), cell),
        lambda: driver.cuModuleLoadData(b"anything"),
        lambda: driver.cuEventCreate(0),
        lambda: driver.cuEventRecord(event.handle, a.handle),
        lambda: driver.cuEventQuery(event.handle),
        lambda: driver.cuEventSynchronize(event.handle),
        lambda: driver.cuEventElapsedTime(event.handle, event.handle),
        lambda: driver.cuStreamCreate(1),
        lambda: driver.cuStreamWaitEvent(a.handle, event.handle, 0),
        lambda: driver.cuStreamQuery(a.handle),
        lambda: driver.cuStreamSynchronize(a.handle),
        lambda: driver.cuStreamBeginCapture(a.handle, status),
        lambda: driver.cuStreamIsCapturing(a.handle),
        lambda: driver.cuGraphLaunch(exec_, a.handle),
        sync,
    ]


def check_a_ruined_context_fails_all_calls_and_frees_all_the_same():
    gc.collect(), sync()
    before = live()
    a, b = streams(2)
    cell, source, event = device(8), pinned(8, 1), a.record()
    raw, host = int(ok(driver.cuMemAlloc(8))), int(ok(driver.cuMemHostAlloc(8, 0)))
    ordered, handle = int(ok(driver.cuMemAllocAsync(8, a.handle))), ok(driver.cuEventCreate(0))
    capture(a, "RELAXED")
    cell.fill(1, stream=a)
    captured = ok(driver.cuStreamEndCapture(a.handle))
    graph = ok(driver.cuGraphInstantiate(captured, 0))
    control.fail("context", 3)
    cell.fill(2, stream=a)
    ok(driver.cuGraphLaunch(graph, a.handle))
    cell.copy_to(source, stream=a)
    b.wait(a.record())
    fails(E.CUDA_ERROR_LAUNCH_FAILED, b.sync)
    assert control.count("pending") == 0 and (view(source) == 1).all()
    for call in entering(a, cell, source, event, graph):
        fails(E.CUDA_ERROR_LAUNCH_FAILED, call)
    for free, *what in [
        (driver.cuMemFree, raw),
        (driver.cuMemFreeHost, host),
        (driver.cuMemFreeHost, int(source.handle)),  # cuda.core synchronises first, and then does not free it
        (driver.cuMemFreeAsync, ordered, a.handle),
        (driver.cuEventDestroy, handle),
        (driver.cuGraphExecDestroy, graph),
        (driver.cuGraphDestroy, captured),
    ]:
        fails(E.CUDA_ERROR_LAUNCH_FAILED, free, *what)
    del call, cell, source, event, a, b
    gc.collect()
    assert live() == before, (live(), before)
    control.revive()
    sync()


def check_a_context_is_ruined_in_a_graph_and_in_a_capture():
    for n in range(1, 6):
        control.revive()
        (a,) = streams(1)
        cell = device(8)
        control.fail("context", n)
        builder = a.create_graph_builder().begin_building()
        cell.fill(1, stream=a), cell.fill(2, stream=a)
        graph = builder.end_building().complete()
        builder.close()
        graph.launch(a), graph.launch(a), cell.fill(3, stream=a)
        fails(E.CUDA_ERROR_LAUNCH_FAILED, a.sync)
        assert int(view(cell)[0]) == [0xA5, 1, 2, 1, 2][n - 1] and control.count("pending") == 0
        control.revive()
        (a, b) = streams(2)
        cell = device(8)
        capture(a, "RELAXED")
        cell.fill(1, stream=a)
        control.fail("context", 1)
        cell.fill(1, stream=b)
        fails(E.CUDA_ERROR_LAUNCH_FAILED, b.sync)
        fails(E.CUDA_ERROR_LAUNCH_FAILED, cell.fill, 1, stream=a)
        fails(E.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamEndCapture, a.handle)
        assert control.count("live_graphs") == 0
    control.revive()


def check_a_reset_takes_everything_away():
    (a,) = streams(1)
    memory, host, event = device(8), pinned(8), a.record()
    capture(a, "RELAXED")
    memory.fill(1, stream=a)
    raw = int(ok(driver.cuMemAlloc(8)))
    ok(driver.cuDevicePrimaryCtxReset(0))
    assert not any(live().values()), live()
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, raw)
    fails(E.CUDA_ERROR_INVALID_HANDLE, driver.cuEventRecord, event.handle, 0)
    fails(E.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamSynchronize, a.handle)
    assert host.size
    (b,) = streams(1)
    again = device(8)
    launch(b, ONE, kernel("clear"), again)
    b.sync()
    assert not view(again).any()


def check_creations_and_loads_are_counted():
    kinds = ("streams_created", "events_created", "loads", "host_allocations", "allocations")
    (a,) = streams(1)
    code = ObjectCode.from_cubin(b"anything")
    control.reset_counts()
    event = a.record()
    a.record(event)
    assert [control.count(what) for what in kinds] == [0, 1, 0, 0, 0]
    streams(2), ok(driver.cuModuleLoadData(b"anything")), code.get_kernel("clear"), code.get_kernel("fill")
    event.close(), ok(driver.cuMemFreeHost(int(ok(driver.cuMemHostAlloc(8, 0)))))
    loose = np.zeros(64, np.uint8)
    ok(driver.cuMemHostRegister(loose.ctypes.data, 64, 0)), ok(driver.cuMemHostUnregister(loose.ctypes.data))
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(8))))
    assert [control.count(what) for what in kinds] == [2, 1, 2, 2, 3]
