"""Capture and graphs."""

import gc
import weakref

from cuda.bindings import driver
from cuda.core import Device, launch

from fake_cuda import control
from fake_cuda.checks.common import (
    MASK,
    ONE,
    E,
    capture,
    device,
    fails,
    kernel,
    ok,
    part,
    pinned,
    streams,
    sync,
    view,
    weight,
)


def three_streams(a, b, c, cells, target):
    """Work of which one part runs on `a`, two on `b` and `c` next to each other, and one on `a` again."""
    x, y, z = cells
    x.copy_from(pinned_seven, stream=a)
    fork = a.record()
    b.wait(fork), c.wait(fork)
    y.copy_from(x, stream=b)
    z.copy_from(x, stream=c)
    a.wait(b.record()), a.wait(c.record())
    part(target, 0, 8).copy_from(y, stream=a)
    part(target, 8, 8).copy_from(z, stream=a)


pinned_seven = None


def finished(builder):
    """The graph. The builder is closed: in cuda.core 1.0 one that dies later ends what its stream then captures."""
    graph = builder.end_building().complete()
    builder.close()
    return graph


def check_a_graph_over_three_streams():
    global pinned_seven
    a, b, c = streams(3)
    cells, target = [device(8) for _ in range(3)], pinned(16, 0)
    pinned_seven = pinned(8, 7)
    builder = a.create_graph_builder()
    builder.begin_building()
    assert builder.is_building
    three_streams(a, b, c, cells, target)
    graph = builder.end_building().complete()
    assert control.count("live_graphs") == control.count("live_execs") == 1
    builder.close()
    assert control.count("live_graphs") == 0
    sync()
    assert not view(target).any() and control.count("copies") == 5 and control.count("executed_copies") == 0
    graph.upload(a)
    for seed in range(50):
        control.seed(seed)
        view(target)[:] = 0
        view(pinned_seven)[:] = seed
        for cell in cells:
            cell.fill(255, stream=a)
        graph.launch(a)
        assert not view(target).any()
        a.sync()
        assert (view(target) == seed).all()
    assert control.count("graph_launches") == 50 and control.count("executed_copies") == 250
    graph.launch(b)
    graph.close()
    assert control.count("live_execs") == 0
    view(target)[:] = 0
    b.sync()  # a launch outlives its graph
    assert (view(target) == 49).all()


def check_launches_are_ordered_in_their_stream():
    a, b = streams(2)
    cell, digest = device(8), device(8)
    builder = a.create_graph_builder().begin_building()
    b.wait(a.record())
    launch(a, ONE, kernel("checksum"), part(cell, 0, 4), 4, digest, 1)
    launch(b, ONE, kernel("checksum"), part(cell, 4, 4), 4, digest, 2)
    a.wait(b)
    graph = finished(builder)
    results = set()
    for seed in range(20):
        control.seed(seed)
        view(digest)[:] = 0
        for value in (1, 2, 3):
            cell.fill(value, stream=a)
            graph.launch(a)
        cell.fill(0, stream=a)
        a.sync()
        results.add(bytes(view(digest)))
    expected = sum((v + 1) * weight(salt, i) for v in (1, 2, 3) for salt in (1, 2) for i in range(4)) & MASK
    assert results == {expected.to_bytes(8, "little")}
    graph.close()


def check_launches_of_one_graph_do_not_overlap():
    a, b = streams(2)
    cell, target = device(8), pinned(24, 0)
    builder = a.create_graph_builder().begin_building()
    cell.fill(1, stream=a)
    cell.copy_to(part(target, 0, 8), stream=a)
    cell.fill(2, stream=a)
    cell.copy_to(part(target, 8, 8), stream=a)
    graph = finished(builder)
    for seed in range(30):
        control.seed(seed)
        graph.launch(a), graph.launch(b)
        b.sync()
        assert bytes(view(target)) == bytes([1] * 8 + [2] * 8 + [0] * 8)
        a.sync()
    graph.close()


def check_branches_run_in_any_legal_order():
    a, b = streams(2)
    cell, target = device(8), pinned(8)
    for join, expected in ((True, {7}), (False, {1, 7})):
        builder = a.create_graph_builder().begin_building()
        fork = a.record()
        b.wait(fork)
        cell.fill(7, stream=a)
        if join:
            b.wait(a.record())
        cell.copy_to(target, stream=b)
        a.wait(b)
        graph = finished(builder)
        seen = set()
        for seed in range(30):
            control.seed(seed)
            cell.fill(1, stream=a)
            graph.launch(a)
            a.sync()
            seen.add(int(view(target)[0]))
        assert seen == expected
        graph.close()


def check_split_join_and_callbacks():
    (a,) = streams(1)
    cells, called = [pinned(8, 0) for _ in range(3)], []
    builder = a.create_graph_builder().begin_building()
    first, second, third = builder.split(3)
    for branch, cell in zip((first, second, third), cells):
        cell.fill(6, stream=branch)
    joined = type(builder).join(first, second, third)

    class Callback:
        def __call__(self):
            called.append([int(view(cell)[0]) for cell in cells])

    callback = Callback()
    alive = weakref.ref(callback)
    joined.callback(callback)
    del callback
    graph = finished(joined)
    graph.launch(a)
    graph.close()
    assert alive()
    a.sync()
    assert called == [[6, 6, 6]]
    for _ in range(3):  # cuda.core lets go of such things at its next call
        gc.collect(), a.sync(), streams(1)
    assert alive() is None


def check_what_a_capture_forbids():
    a, b = streams(2)
    outside, event = b.record(), Device().create_event()
    status = driver.CUstreamCaptureStatus
    fails(E.CUDA_ERROR_ILLEGAL_STATE, driver.cuStreamEndCapture, a.handle)

    def forbidden(error, call, *args, mode="RELAXED"):
        capture(a, mode)
        fails(error, call, *args)
        assert ok(driver.cuStreamIsCapturing(a.handle)) == status.CU_STREAM_CAPTURE_STATUS_INVALIDATED
        fails(E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, a.record, event)
        fails(E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, a.handle)
        assert ok(driver.cuStreamIsCapturing(a.handle)) == status.CU_STREAM_CAPTURE_STATUS_NONE
        assert control.count("live_graphs") == 0

    forbidden(E.CUDA_ERROR_STREAM_CAPTURE_ISOLATION, a.wait, outside)
    forbidden(E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, a.sync)
    forbidden(E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, driver.cuStreamQuery, a.handle)
    forbidden(E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, driver.cuCtxSynchronize)
    forbidden(E.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, driver.cuMemAlloc, 8, mode="GLOBAL")
    forbidden(E.CUDA_ERROR_CAPTURED_EVENT, lambda: (a.record(event), event.sync()))
    capture(a)
    fails(E.CUDA_ERROR_ILLEGAL_STATE, driver.cuStreamBeginCapture, a.handle, driver.CUstreamCaptureMode(0))
    b.wait(a.record())
    fails(E.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, driver.cuStreamEndCapture, b.handle)
    fails(E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, a.handle)
    b.sync()


def check_destroying_a_stream_ends_its_capture():
    a, b = streams(2)
    capture(a, "RELAXED")
    b.wait(a.record())
    a.close()
    sync(), b.sync()


def check_unjoined_and_merged_captures():
    a, b, c = streams(3)
    cell = device(8)
    capture(a, "RELAXED")
    b.wait(a.record())
    cell.fill(1, stream=b)
    fails(E.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, driver.cuStreamEndCapture, a.handle)
    b.sync(), a.sync()
    assert (view(cell) == 0xA5).all() and control.count("live_graphs") == 0
    capture(a, "RELAXED")
    forked = a.record()
    b.wait(forked)
    cell.fill(1, stream=b)
    capture(c, "RELAXED")
    fails(E.CUDA_ERROR_STREAM_CAPTURE_MERGE, c.wait, forked)
    for stream in (a, c):
        fails(E.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, stream.handle)
    capture(a, "RELAXED")
    event = a.record()
    graph = ok(driver.cuStreamEndCapture(a.handle))
    fails(E.CUDA_ERROR_CAPTURED_EVENT, b.wait, event)
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(executable, a.handle))  # an empty graph
    a.sync()
    a.record(event)
    b.wait(event), b.sync()
    ok(driver.cuGraphExecDestroy(executable)), ok(driver.cuGraphDestroy(graph))
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuGraphDestroy, graph)


def check_graphs_fail_when_told():
    (a,) = streams(1)
    cell = pinned(8, 0)
    builder = a.create_graph_builder().begin_building()
    cell.fill(1, stream=a)
    builder.end_building()
    control.fail("graph", 1)
    fails(E.CUDA_ERROR_UNKNOWN, builder.complete)
    graph = builder.complete()
    control.fail("graph", 1)
    fails(E.CUDA_ERROR_LAUNCH_FAILED, graph.launch, a)
    control.fail("execution", 1)
    graph.launch(a)
    fails(E.CUDA_ERROR_LAUNCH_FAILED, a.sync)
    assert not view(cell).any()
    graph.launch(a)
    a.sync()
    assert (view(cell) == 1).all()
    graph.close()
