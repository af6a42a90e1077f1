"""Memory pools, what they keep, and when their memory is there; managed memory."""

import ctypes
import faulthandler
import os

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer, Device

from fake_cuda import control
from fake_cuda.checks.common import E, capture, fails, ok, pinned, streams, sync, view

A = driver.CUmemPool_attribute
THRESHOLD = A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
RESERVED, RESERVED_HIGH = A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, A.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
USED, USED_HIGH = A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, A.CU_MEMPOOL_ATTR_USED_MEM_HIGH


def pool(host=False):
    """A new pool on the device, or for the host."""
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kinds = driver.CUmemLocationType
    properties.location.type = kinds.CU_MEM_LOCATION_TYPE_HOST if host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
    return ok(driver.cuMemPoolCreate(properties))


def iterations(of):
    """What a pool says: reserved, its high-water mark, used, its high-water mark."""
    return [int(ok(driver.cuMemPoolGetAttribute(of, a))) for a in (RESERVED, RESERVED_HIGH, USED, USED_HIGH)]


def set_to(of, attribute, value):
    """The result of setting an attribute."""
    return driver.cuMemPoolSetAttribute(of, attribute, driver.cuuint64_t(value))


def free_bytes():
    return ok(driver.cuMemGetInfo())[0]


def allocate(size, of, stream):
    return int(ok(driver.cuMemAllocFromPoolAsync(size, of, stream.handle)))


# --- what pools keep


def check_a_pool_keeps_memory_until_a_synchronisation():
    (a,) = streams(1)
    mine, room, reserved = pool(), free_bytes(), control.count("reserved_bytes")
    first, second = allocate(1000, mine, a), allocate(500, mine, a)
    assert iterations(mine) == [1500, 1500, 1500, 1500] and free_bytes() == room - 1500
    ok(driver.cuMemFreeAsync(first, a.handle))
    while driver.cuStreamQuery(a.handle)[0]:  # no synchronisation
        pass
    assert iterations(mine) == [1500, 1500, 500, 1500] and free_bytes() == room - 1500
    assert control.count("reserved_bytes") == reserved + 1500
    third = allocate(900, mine, a)
    assert iterations(mine) == [1500, 1500, 1400, 1500]
    ok(driver.cuMemFreeAsync(third, a.handle))
    a.sync()  # the threshold is 0
    assert iterations(mine) == [500, 1500, 500, 1500] and free_bytes() == room - 500
    ok(set_to(mine, RESERVED_HIGH, 0)), ok(set_to(mine, USED_HIGH, 0))
    assert iterations(mine) == [500, 500, 500, 500]
    for attribute, value in ((RESERVED, 0), (USED, 0), (USED_HIGH, 1)):
        fails(E.CUDA_ERROR_INVALID_VALUE, set_to, mine, attribute, value)
    ok(driver.cuMemFreeAsync(second, a.handle))
    a.sync()
    ok(driver.cuMemPoolDestroy(mine))
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemPoolDestroy, mine)
    assert free_bytes() == room and control.count("reserved_bytes") == reserved


def check_a_threshold_keeps_memory_and_trimming_gives_it_back():
    (a,) = streams(1)
    mine, room = pool(), free_bytes()
    ok(set_to(mine, THRESHOLD, 800))
    memory, rest = allocate(1000, mine, a), allocate(100, mine, a)
    ok(driver.cuMemFreeAsync(memory, a.handle))
    for synchronise in (a.sync, a.record().sync, sync):
        synchronise()
        assert iterations(mine)[0] == 800 and free_bytes() == room - 800
    ok(driver.cuMemPoolTrimTo(mine, 900))
    assert iterations(mine)[0] == 800
    ok(driver.cuMemPoolTrimTo(mine, 300))
    assert iterations(mine)[0] == 300
    ok(driver.cuMemPoolTrimTo(mine, 0))
    assert iterations(mine)[0] == 100 and free_bytes() == room - 100
    ok(driver.cuMemPoolDestroy(mine))
    ok(driver.cuMemFreeAsync(rest, a.handle))  # what was left of the pool goes with its last memory
    a.sync()
    assert free_bytes() == room


def check_cuda_core_keeps_memory_for_ever():
    (a,) = streams(1)
    default = ok(driver.cuDeviceGetDefaultMemPool(0))
    ok(driver.cuMemPoolTrimTo(default, 0))
    room = free_bytes()
    Device().allocate(4000, stream=a).close(a)
    a.sync(), sync()
    assert int(ok(driver.cuMemPoolGetAttribute(default, THRESHOLD))) == 2**64 - 1
    assert free_bytes() == room - 4000
    ok(driver.cuMemPoolTrimTo(default, 0))
    assert free_bytes() == room


def check_what_pools_keep_is_given_back_before_an_allocation_fails():
    (a,) = streams(1)
    kept, other = pool(), pool()
    for each in (kept, other):
        ok(set_to(each, THRESHOLD, 2**64 - 1))
    sync()
    for allocation in (lambda n: ok(driver.cuMemAlloc(n)), lambda n: allocate(n, other, a)):
        room = free_bytes()
        ok(driver.cuMemFreeAsync(allocate(room, kept, a), a.handle))
        a.sync()
        assert free_bytes() == 0 and iterations(kept)[:1] == [room]
        memory = allocation(room)
        assert iterations(kept)[0] == 0 and free_bytes() == 0
        fails(E.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, 1)
        ok(driver.cuMemFree(memory))
        ok(driver.cuMemPoolTrimTo(other, 0))
        assert free_bytes() == room
    for each in (kept, other):
        ok(driver.cuMemPoolDestroy(each))


def check_the_pool_of_the_device_can_be_changed():
    (a,) = streams(1)
    mine, default = pool(), ok(driver.cuDeviceGetDefaultMemPool(0))
    ok(driver.cuDeviceSetMemPool(0, mine))
    ok(driver.cuMemAllocAsync(700, a.handle))
    assert iterations(mine)[2] == 700 and int(ok(driver.cuDeviceGetMemPool(0))) == int(mine)
    ok(driver.cuDeviceSetMemPool(0, default))
    control.revive()
    assert iterations(mine)[::2] == [0, 0]


# --- when memory is there


def check_memory_is_used_before_it_is_there():
    """By a stream that does not wait for the one whose order says when it is."""
    for host in (False, True):
        for ordered in (False, True):
            seen = set()
            for seed in range(40):
                control.seed(seed)
                a, b = streams(2)
                mine = pool(host)
                memory = allocate(8, mine, a)
                if ordered:
                    b.wait(a.record())
                ok(driver.cuMemsetD8Async(memory, 1, 8, b.handle))
                ok(driver.cuMemFreeAsync(memory, b.handle))
                seen.add(driver.cuCtxSynchronize()[0])
            wrong = set() if ordered else {E.CUDA_ERROR_ILLEGAL_ADDRESS}
            assert seen == {E.CUDA_SUCCESS} | wrong, (host, ordered, seen)
    assert control.count("pending") == 0


def check_the_host_cannot_touch_memory_that_is_not_there_yet():
    (a,) = streams(1)
    memory = allocate(8, pool(host=True), a)
    child = os.fork()
    if not child:  # a segmentation fault, and nothing said of it
        faulthandler.disable()
        ctypes.string_at(memory, 8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 11
    a.sync()
    assert ctypes.string_at(memory, 8) == bytes([0xA5] * 8)


# --- managed memory


def check_managed_memory():
    (a,) = streams(1)
    room, size = free_bytes(), 1 << 25  # twice the device
    memory = int(ok(driver.cuMemAllocManaged(size, 1)))
    assert control.count("live_managed") == 1 and control.count("managed_bytes") == size and free_bytes() == room
    here = np.frombuffer((ctypes.c_uint8 * size).from_address(memory), np.uint8)
    ok(driver.cuMemsetD8Async(memory, 7, size, a.handle))
    a.sync()
    assert (here == 7).all()
    here[:8] = 9
    locked, device = pinned(8), int(ok(driver.cuMemAlloc(8)))
    for to, start in ((device, memory), (int(locked.handle), memory + 8), (memory + 16, device)):
        ok(driver.cuMemcpyAsync(to, start, 8, a.handle))
    ok(driver.cuMemcpyDtoHAsync(int(locked.handle), memory, 4, a.handle))
    ok(driver.cuMemcpyDtoDAsync(memory + 24, memory, 8, a.handle))
    a.sync()
    assert bytes(view(locked)) == bytes([9] * 4 + [7] * 4) and (here[16:32] == 9).all()
    attribute = driver.CUpointer_attribute
    assert ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, memory + 5))
    assert not ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, device))
    assert int(ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER, memory + 5))) == memory + 5
    buffer = Buffer.from_handle(memory, size)
    assert buffer.is_device_accessible and buffer.is_host_accessible
    ok(driver.cuMemFree(device)), ok(driver.cuMemFree(memory))
    assert control.count("live_managed") == control.count("managed_bytes") == 0
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemAllocManaged, 8, 0)


def check_prefetches_and_advice():
    prefetch, advise = (  # cuda.bindings 12 has the older signatures under the plain names
        getattr(driver, f"{name}_v2", getattr(driver, name)) for name in ("cuMemPrefetchAsync", "cuMemAdvise")
    )
    (a,) = streams(1)
    memory, device = int(ok(driver.cuMemAllocManaged(4096, 1))), int(ok(driver.cuMemAlloc(8)))
    here, there = driver.CUmemLocation(), driver.CUmemLocation()
    here.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    there.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    for place in (here, there):
        ok(prefetch(memory, 4096, place, 0, a.handle))
        ok(advise(memory, 4096, driver.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place))
    older = ctypes.CDLL("libcuda.so.1")  # the signatures before CUDA 12.2: a device, -1 for the host
    size, stream = ctypes.c_size_t(4096), ctypes.c_void_p(int(a.handle))
    assert not older.cuMemPrefetchAsync(ctypes.c_uint64(memory), size, -1, stream)
    assert not older.cuMemAdvise(ctypes.c_uint64(memory), size, 3, -1)
    assert control.count("prefetches") == control.count("pending") == 3
    for name in (b"cuMemPrefetchAsync", b"cuMemAdvise"):
        assert ok(driver.cuGetProcAddress(name, 8000, 0))[0] != ok(driver.cuGetProcAddress(name, 12020, 0))[0]
    for address, size in ((memory, 4097), (device, 8), (memory, 0)):
        fails(E.CUDA_ERROR_INVALID_VALUE, prefetch, address, size, there, 0, a.handle)
        fails(E.CUDA_ERROR_INVALID_VALUE, advise, address, size, driver.CUmem_advise(1), there)
    a.sync()
    capture(a, "RELAXED")
    fails(E.CUDA_ERROR_NOT_SUPPORTED, prefetch, memory, 4096, there, 0, a.handle)
    driver.cuGraphDestroy(ok(driver.cuStreamEndCapture(a.handle)))
    attributes = driver.CUdevice_attribute
    for name in ("CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY", "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS"):
        assert ok(driver.cuDeviceGetAttribute(getattr(attributes, name), 0)) == 1
    driver.cuMemFree(memory), driver.cuMemFree(device)
