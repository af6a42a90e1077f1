"""The device, its memory, and copies."""

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer, Device, DeviceMemoryResource

from fake_cuda import control
from fake_cuda.checks.common import E, device, fails, ok, part, pinned, streams, view


def check_device():
    it = Device()
    assert it.name == "Fake GPU" and it.compute_capability == (9, 0)
    assert it.properties.max_threads_per_block == 1024 and it.properties.warp_size == 32
    assert ok(driver.cuDeviceGetCount()) == 1 and ok(driver.cuDriverGetVersion()) == 13000
    assert ok(driver.cuGetErrorName(E.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)) == b"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"
    fails(E.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGet, 1)


def check_calls_are_found_as_the_driver_finds_them():
    query = driver.CUdriverProcAddressQueryResult
    pointer, status = ok(driver.cuGetProcAddress(b"cuMemAlloc", 13000, 0))
    assert pointer and status == query.CU_GET_PROC_ADDRESS_SUCCESS
    older, _ = ok(driver.cuGetProcAddress(b"cuStreamGetCaptureInfo", 11030, 0))
    newer, _ = ok(driver.cuGetProcAddress(b"cuStreamGetCaptureInfo", 12030, 0))
    assert older and newer and older != newer
    for name, version, expected in [
        (b"cuNoSuchThing", 13000, query.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        (b"malloc", 13000, query.CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        (b"cuMemAlloc", 13010, query.CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    ]:
        library = ctypes.CDLL("libcuda.so.1")
        found, why = ctypes.c_void_p(1), ctypes.c_int(-1)
        result = library.cuGetProcAddress_v2(name, ctypes.byref(found), version, ctypes.c_uint64(0), ctypes.byref(why))
        assert (result, found.value, why.value) == (E.CUDA_ERROR_NOT_FOUND, None, expected)


def check_device_memory_is_limited():
    total = ok(driver.cuMemGetInfo())[1]
    assert total == 1 << 24
    used = control.count("device_bytes")
    first = ok(driver.cuMemAlloc(total - used - 100))
    assert ok(driver.cuMemGetInfo())[0] == 100
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, 101)
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, Device().allocate, 101, stream=streams(1)[0])
    second = ok(driver.cuMemAlloc(100))
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, int(second) + 1)
    for pointer in (first, second):
        ok(driver.cuMemFree(pointer))
        fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, pointer)
    assert control.count("device_bytes") == used
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemAlloc, 0)


def check_allocations_are_counted():
    before = {what: control.count(what) for what in ("live_device", "live_pinned", "device_bytes", "pinned_bytes")}
    a, b = device(1000), pinned(300)
    assert control.count("allocations") == 2
    assert {what: control.count(what) - n for what, n in before.items()} == {
        "live_device": 1, "live_pinned": 1, "device_bytes": 1000, "pinned_bytes": 300,
    }  # fmt: skip
    (stream,) = streams(1)
    a.close(stream)
    assert control.count("live_device") == before["live_device"] + 1  # the free waits in the stream
    b.close()
    stream.sync()
    assert {what: control.count(what) for what in before} == before


def check_stream_ordered_frees_make_room():
    (stream,) = streams(1)
    ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0))
    room = ok(driver.cuMemGetInfo())[0]
    for _ in range(5):
        Device().allocate(room, stream=stream).close(stream)
    again = int(ok(driver.cuMemAllocAsync(1, stream.handle)))
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, Device().allocate, room, stream=stream)
    ok(driver.cuMemFreeAsync(again, stream.handle))
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemFreeAsync, again, stream.handle)
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemsetD8Async, again, 0, 1, stream.handle)  # though not executed yet
    stream.sync()


def check_buffers_know_where_they_are():
    a, b = device(512), pinned(512)
    for memory in (a, part(a, 100, 10)):
        assert memory.is_device_accessible and not memory.is_host_accessible and memory.device_id == 0
    for memory in (b, part(b, 100, 10)):
        assert memory.is_device_accessible and memory.is_host_accessible
    attribute = driver.CUpointer_attribute
    inside = int(a.handle) + 5
    assert int(ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside))) == a.handle
    assert ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside)) == 512
    outside = np.zeros(1).ctypes.data
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuPointerGetAttribute, attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, outside)


def check_other_resources():
    (stream,) = streams(1)
    memory = DeviceMemoryResource(Device()).allocate(64, stream=stream)
    memory.fill(3, stream=stream)
    stream.sync()
    assert (view(memory) == 3).all()
    raw = int(ok(driver.cuMemAlloc(64)))
    host = int(ok(driver.cuMemHostAlloc(64, 0)))
    for pointer in (raw, host):
        Buffer.from_handle(pointer, 64).copy_from(memory, stream=stream)
    stream.sync()
    assert bytes(control.host(raw, 64)) == bytes(control.host(host, 64)) == bytes([3] * 64)
    ok(driver.cuMemFree(raw)), ok(driver.cuMemFreeHost(host))


def check_freeing_synchronises():
    (a,) = streams(1)
    memory, spare = pinned(8, 1), int(ok(driver.cuMemAlloc(8)))
    memory.fill(2, stream=a)
    assert (view(memory) == 1).all()
    ok(driver.cuMemFree(spare))
    assert (view(memory) == 2).all()


# --- copies


def check_copies_are_queued():
    (a,) = streams(1)
    memory, source, target = device(4096), pinned(4096, np.arange(4096) % 251), pinned(4096, 9)
    assert (view(memory) == 0xA5).all()
    part(memory, 1024, 512).copy_from(part(source, 7, 512), stream=a)
    part(memory, 1024, 512).copy_to(part(target, 3, 512), stream=a)
    assert control.count("copies") == 2 and control.count("executed_copies") == 0
    assert (view(memory) == 0xA5).all() and (view(target) == 9).all()
    a.sync()
    assert control.count("executed_copies") == 2 and control.count("syncs") == 2  # one in device()
    assert (view(target)[3:515] == view(source)[7:519]).all()
    assert (view(target)[:3] == 9).all() and (view(target)[515:] == 9).all()
    assert (view(memory)[:1024] == 0xA5).all() and (view(memory)[1536:] == 0xA5).all()


def check_what_copies_are_refused():
    (a,) = streams(1)
    memory, locked, loose = device(64), pinned(64), np.zeros(64, np.uint8)
    d, p, q = int(memory.handle), int(locked.handle), loose.ctypes.data
    for call, args in [
        (driver.cuMemcpyHtoDAsync, (d, q, 64)),
        (driver.cuMemcpyDtoHAsync, (q, d, 64)),
        (driver.cuMemcpyAsync, (d, q, 64)),
        (driver.cuMemcpyAsync, (q, p, 64)),
    ]:
        fails(E.CUDA_ERROR_INVALID_VALUE, call, *args, a.handle)
    assert control.count("pageable_refused") == 4
    for call, args in [
        (driver.cuMemcpyAsync, (d, p + 1, 64)),  # out of bounds
        (driver.cuMemcpyAsync, (d + 64, p, 1)),
        (driver.cuMemcpyDtoDAsync, (d, p, 64)),
        (driver.cuMemcpyHtoDAsync, (p, p, 64)),
        (driver.cuMemsetD8Async, (d, 0, 65)),
        (driver.cuMemsetD32Async, (d + 1, 0, 1)),
    ]:
        fails(E.CUDA_ERROR_INVALID_VALUE, call, *args, a.handle)
    assert control.count("copies") == control.count("sets") == control.count("pending") == 0
    loose[:] = 5
    ok(driver.cuMemcpyHtoD(d, q, 64))
    loose[:] = 6
    ok(driver.cuMemcpyDtoH(q, d, 64))
    assert (loose == 5).all()


def check_memsets():
    (a,) = streams(1)
    memory = device(16)
    memory.fill(1, stream=a)
    part(memory, 4, 4).fill(b"\x01\x02", stream=a)
    part(memory, 8, 4).fill(b"\x01\x02\x03\x04", stream=a)
    a.sync()
    assert bytes(view(memory)) == b"\1\1\1\1\1\2\1\2\1\2\3\4\1\1\1\1" and control.count("sets") == 3


def check_synchronous_copies_wait_as_cuda_does():
    """For blocking streams, but not for the non-blocking ones."""
    blocking = ok(driver.cuStreamCreate(0))
    (other,) = streams(1)
    left, right = 0, 0
    for seed in range(30):
        control.seed(seed)
        memory, target = device(2), np.zeros(2, np.uint8)
        memory.fill(0, stream=other)
        other.sync()
        ok(driver.cuMemsetD8Async(int(memory.handle), 1, 1, blocking))
        part(memory, 1, 1).fill(1, stream=other)
        ok(driver.cuMemcpyDtoH(target.ctypes.data, int(memory.handle), 2))
        assert target[0] == 1
        left, right = left + (target[1] == 0), right + (target[1] == 1)
        other.sync()
    assert left and right
    ok(driver.cuStreamDestroy(blocking))
