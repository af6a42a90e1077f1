"""Virtual memory management: addresses without memory, memory without addresses, and both together."""

import ctypes
import faulthandler
import os

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer, Device, LaunchConfig, ObjectCode, VirtualMemoryResource, launch

from fake_cuda import control
from fake_cuda.checks.common import ONE, E, capture, device, fails, kernel, ok, pinned, streams, sync, view

PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry ones(.param .u64 to)
{
.reg .b32 %r<3>;
.reg .b64 %d<4>;
ld.param.u64 %d1, [to];
mov.u32 %r1, %tid.x;
mul.wide.u32 %d2, %r1, 4;
add.s64 %d3, %d1, %d2;
mov.u32 %r2, 1;
st.global.u32 [%d3], %r2;
ret;
}
"""
BAD = E.CUDA_ERROR_INVALID_VALUE
HELD = ("live_handles", "reserved_addresses", "mapped_bytes", "device_bytes")


def held():
    return {what: control.count(what) for what in HELD}


def properties():
    """Of ordinary memory on the device."""
    it = driver.CUmemAllocationProp()
    it.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    it.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return it


def granule():
    which = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return ok(driver.cuMemGetAllocationGranularity(properties(), which))


def reserve(size):
    return int(ok(driver.cuMemAddressReserve(size, 0, 0, 0)))


def create(size):
    return ok(driver.cuMemCreate(size, properties(), 0))


def access(flags=3):
    it = driver.CUmemAccessDesc()
    it.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    it.flags = driver.CUmemAccess_flags(flags)
    return [it]


def mapped(at, size, *, keep=False, flags=3):
    """Map fresh memory; its handle, released unless it is to be kept."""
    handle = create(size)
    ok(driver.cuMemMap(at, size, 0, handle, 0))
    if not keep:
        ok(driver.cuMemRelease(handle))
    if flags:
        ok(driver.cuMemSetAccess(at, size, access(flags), 1))
    return handle


def given_back(at, size):
    ok(driver.cuMemUnmap(at, size)), ok(driver.cuMemAddressFree(at, size))


def here(at, size):
    return np.frombuffer(control.host(at, size), np.uint8)


def check_what_is_mapped_is_memory():
    (a,) = streams(1)
    unit, before = granule(), held()
    at = reserve(3 * unit)
    assert at % unit == 0
    for k in range(3):
        mapped(at + k * unit, unit)
    assert {what: n - before[what] for what, n in held().items()} == {
        "live_handles": 3, "reserved_addresses": 3 * unit, "mapped_bytes": 3 * unit, "device_bytes": 3 * unit,
    }  # fmt: skip
    assert control.count("maps") == control.count("creates") == 3 and control.count("unmaps") == 0
    assert (here(at, 3 * unit) == 0xA5).all()
    locked = pinned(100, np.arange(100))
    across = Buffer.from_handle(at + unit - 50, 100)  # two mappings
    across.copy_from(locked, stream=a)
    Buffer.from_handle(at + 2 * unit - 7, 7).fill(9, stream=a)
    digest = device(8)
    launch(a, ONE, kernel("clear"), digest)
    launch(a, ONE, kernel("fill"), digest, at + 2 * unit, 16, 5)
    a.sync()
    assert (here(at + unit - 50, 100) == np.arange(100)).all() and (here(at + 2 * unit - 7, 7) == 9).all()
    assert not (here(at + 2 * unit, 16) == 0xA5).all()
    fails(BAD, driver.cuMemcpyAsync, at + 3 * unit - 50, int(locked.handle), 100, a.handle)  # beyond the end
    given_back(at, 3 * unit)
    assert control.count("unmaps") == 3
    digest.close(a)
    a.sync()
    assert {what: n - before[what] for what, n in held().items() if what != "device_bytes"} == {
        "live_handles": 0, "reserved_addresses": 0, "mapped_bytes": 0,
    }  # fmt: skip


def check_memory_counts_until_nobody_holds_it():
    unit = granule()
    total, before = ok(driver.cuMemGetInfo())[0], held()
    handle = create(unit)
    assert ok(driver.cuMemGetInfo())[0] == total - unit
    first, second = reserve(unit), reserve(unit)
    for at in (first, second):
        ok(driver.cuMemMap(at, unit, 0, handle, 0)), ok(driver.cuMemSetAccess(at, unit, access(), 1))
    ok(driver.cuMemRelease(handle))
    fails(BAD, driver.cuMemRelease, handle)
    fails(BAD, driver.cuMemMap, first, unit, 0, handle, 0)
    here(first, 8)[:] = 7
    ok(driver.cuMemUnmap(first, unit))
    assert (here(second, 8) == 7).all() and control.count("live_handles") == before["live_handles"] + 1
    again = ok(driver.cuMemRetainAllocationHandle(second + 5))
    assert int(again) == int(handle)
    ok(driver.cuMemUnmap(second, unit))
    assert ok(driver.cuMemGetInfo())[0] == total - unit
    ok(driver.cuMemMap(first, unit, 0, again, 0))  # its bytes come along
    assert (here(first, 8) == 7).all() and (here(first + 8, 8) == 0xA5).all()
    ok(driver.cuMemRelease(again)), ok(driver.cuMemUnmap(first, unit))
    assert ok(driver.cuMemGetInfo())[0] == total
    for at in (first, second):
        ok(driver.cuMemAddressFree(at, unit))
    assert held() == before


def check_physical_memory_is_limited():
    ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0))
    unit, before = granule(), held()
    room = ok(driver.cuMemGetInfo())[0] // unit * unit
    handle = create(room)
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, create, unit)
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, unit)
    ok(driver.cuMemRelease(handle))
    address = ok(driver.cuMemAlloc(unit))
    fails(E.CUDA_ERROR_OUT_OF_MEMORY, create, room)
    ok(driver.cuMemFree(address))
    assert held() == before


def check_what_mapping_refuses():
    unit, handle = granule(), create(2 * granule())
    at = reserve(4 * unit)
    ok(driver.cuMemMap(at + unit, 2 * unit, 0, handle, 0))
    before = held()
    for call, *arguments in [
        (driver.cuMemMap, at, 2 * unit, 0, handle, 0),  # over what is mapped
        (driver.cuMemMap, at + 2 * unit, unit, 0, handle, 0),
        (driver.cuMemMap, at + 3 * unit, 2 * unit, 0, handle, 0),  # past the end
        (driver.cuMemMap, at + 3 * unit + 8, unit, 0, handle, 0),  # no whole granules
        (driver.cuMemMap, at + 3 * unit, unit // 2, 0, handle, 0),
        (driver.cuMemMap, at + 3 * unit, unit, unit, handle, 0),  # an offset
        (driver.cuMemMap, at + 3 * unit, 0, 0, handle, 0),
        (driver.cuMemUnmap, at + unit, unit),  # a part of a mapping
        (driver.cuMemUnmap, at + 2 * unit, unit),
        (driver.cuMemUnmap, at + 2 * unit, 2 * unit),
        (driver.cuMemUnmap, at, 3 * unit),  # more than is mapped
        (driver.cuMemUnmap, at + unit, 3 * unit),
        (driver.cuMemUnmap, at, unit),
        (driver.cuMemSetAccess, at + unit, 3 * unit, access(), 1),
        (driver.cuMemSetAccess, at + unit, unit, access(), 1),
        (driver.cuMemAddressFree, at, 4 * unit),  # still mapped
        (driver.cuMemAddressFree, at, 2 * unit),
        (driver.cuMemAddressFree, at + unit, 2 * unit),
        (driver.cuMemCreate, unit + 1, properties(), 0),
        (driver.cuMemCreate, 0, properties(), 0),
        (driver.cuMemAddressReserve, unit, 3, 0, 0),
        (driver.cuMemAddressReserve, 100, 0, 0, 0),
        (driver.cuMemAddressReserve, 0, 0, 0, 0),
        (driver.cuMemFree, at + unit),
        (driver.cuMemHostUnregister, at + unit),
        (driver.cuMemRetainAllocationHandle, at),
    ]:
        fails(BAD, call, *arguments)
    elsewhere = properties()
    elsewhere.location.id = 1
    fails(E.CUDA_ERROR_INVALID_DEVICE, driver.cuMemCreate, unit, elsewhere, 0)
    fails(E.CUDA_ERROR_NOT_SUPPORTED, driver.cuMemSetAccess, at + unit, 2 * unit, access(1), 1)
    fails(E.CUDA_ERROR_NOT_SUPPORTED, driver.cuIpcGetMemHandle, at + unit)
    assert held() == before
    ok(driver.cuMemUnmap(at + unit, 2 * unit)), ok(driver.cuMemRelease(handle))
    fails(BAD, driver.cuMemUnmap, at + unit, 2 * unit)
    ok(driver.cuMemAddressFree(at, 4 * unit))
    fails(BAD, driver.cuMemAddressFree, at, 4 * unit)


def check_mappings_without_access_are_illegal_addresses():
    (a,) = streams(1)
    unit, locked = granule(), pinned(8)
    at = reserve(2 * unit)
    mapped(at, unit), mapped(at + unit, unit, flags=0)
    for start, legal in ((at, True), (at + unit, False), (at + unit - 4, False)):
        for work in (
            lambda x: ok(driver.cuMemcpyAsync(x, int(locked.handle), 8, a.handle)),
            lambda x: ok(driver.cuMemcpyAsync(int(locked.handle), x, 8, a.handle)),
            lambda x: ok(driver.cuMemsetD8Async(x, 0, 8, a.handle)),
            lambda x: launch(a, ONE, kernel("clear"), x),
        ):
            work(start)
            assert driver.cuCtxSynchronize()[0] == (E.CUDA_SUCCESS if legal else E.CUDA_ERROR_ILLEGAL_ADDRESS)
    whole = access()  # its location is a part of it
    place = whole[0].location
    assert [ok(driver.cuMemGetAccess(place, x)) for x in (at, at + unit)] == [3, 0]
    ok(driver.cuMemSetAccess(at, 2 * unit, access(), 1))
    ok(driver.cuMemsetD8Async(at + unit - 4, 0, 8, a.handle))
    a.sync()
    ok(driver.cuMemSetAccess(at, unit, access(0), 1))
    assert [ok(driver.cuMemGetAccess(place, x)) for x in (at, at + unit)] == [0, 3]
    given_back(at, 2 * unit)
    fails(BAD, driver.cuMemGetAccess, place, at)


def check_unmapping_is_in_no_streams_order():
    """It comes before work that is queued, unless the host has waited for that."""
    (a,) = streams(1)
    unit = granule()
    at, seen = reserve(unit), {True: set(), False: set()}
    for seed in range(20):
        control.seed(seed)
        for waited in (True, False):
            mapped(at, unit)
            ok(driver.cuMemsetD8Async(at, 1, 8, a.handle))
            if waited:
                a.sync()
            ok(driver.cuMemUnmap(at, unit))
            seen[waited].add(driver.cuCtxSynchronize()[0])
    ok(driver.cuMemAddressFree(at, unit))
    assert seen == {True: {E.CUDA_SUCCESS}, False: {E.CUDA_ERROR_ILLEGAL_ADDRESS}}


def check_mapping_calls_fail_when_told():
    unit, before, at = granule(), held(), reserve(granule())
    handle, none = create(unit), E.CUDA_ERROR_OUT_OF_MEMORY
    for what, call in (
        ("reserve", lambda: driver.cuMemAddressReserve(unit, 0, 0, 0)),
        ("create", lambda: driver.cuMemCreate(unit, properties(), 0)),
        ("map", lambda: driver.cuMemMap(at, unit, 0, handle, 0)),
    ):
        control.fail(what, 1)
        now = held()
        fails(none, call)
        assert held() == now, what
    ok(driver.cuMemMap(at, unit, 0, handle, 0))
    control.fail("access", 2)
    ok(driver.cuMemSetAccess(at, unit, access(), 1))
    fails(none, driver.cuMemSetAccess, at, unit, access(0), 1)
    whole = access()
    assert ok(driver.cuMemGetAccess(whole[0].location, at)) == 3
    given_back(at, unit), ok(driver.cuMemRelease(handle))
    assert held() == before


def check_a_reset_takes_mappings_away():
    unit = granule()
    at = reserve(2 * unit)
    handle = mapped(at, unit, keep=True)
    control.revive()
    assert [control.count(what) for what in HELD] == [0, 0, 0, 0]
    fails(BAD, driver.cuMemUnmap, at, unit), fails(BAD, driver.cuMemAddressFree, at, 2 * unit)
    fails(BAD, driver.cuMemRelease, handle)


def check_in_a_ruined_context_memory_is_given_back_all_the_same():
    (a,) = streams(1)
    unit, before = granule(), held()
    at = reserve(unit)
    handle = mapped(at, unit, keep=True)
    control.fail("context", 1)
    ok(driver.cuMemsetD8Async(at, 1, 8, a.handle))
    failed = E.CUDA_ERROR_LAUNCH_FAILED
    fails(failed, driver.cuCtxSynchronize)
    for call in (lambda: driver.cuMemCreate(unit, properties(), 0), lambda: driver.cuMemAddressReserve(unit, 0, 0, 0)):
        fails(failed, call)
    fails(failed, driver.cuMemUnmap, at, unit), fails(failed, driver.cuMemRelease, handle)
    fails(failed, driver.cuMemAddressFree, at, unit)
    assert held() == before


def check_pointers_know_what_they_are_mapped_to():
    unit = granule()
    at = reserve(3 * unit)
    mapped(at, unit), mapped(at + unit, unit)
    attribute = driver.CUpointer_attribute
    for name, expected in {
        "MEMORY_TYPE": driver.CUmemorytype.CU_MEMORYTYPE_DEVICE,
        "RANGE_START_ADDR": at,
        "RANGE_SIZE": 3 * unit,
        "MAPPING_BASE_ADDR": at + unit,
        "MAPPING_SIZE": unit,
        "MAPPED": 1,
        "IS_LEGACY_CUDA_IPC_CAPABLE": 0,
    }.items():
        found = ok(driver.cuPointerGetAttribute(getattr(attribute, f"CU_POINTER_ATTRIBUTE_{name}"), at + unit + 5))
        assert int(found) == expected, (name, found, expected)
    assert [int(x) for x in ok(driver.cuMemGetAddressRange(at + unit + 5))] == [at + unit, unit]
    fails(BAD, driver.cuPointerGetAttribute, attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 2 * unit)
    buffer = Buffer.from_handle(at + 100, unit)
    assert buffer.is_device_accessible and not buffer.is_host_accessible and buffer.device_id == 0
    ok(driver.cuMemUnmap(at, 2 * unit)), ok(driver.cuMemAddressFree(at, 3 * unit))


def check_the_host_cannot_touch_a_mapping():
    unit = granule()
    at = reserve(unit)
    mapped(at, unit)
    child = os.fork()
    if not child:  # a segmentation fault, and nothing said of it
        faulthandler.disable()
        ctypes.string_at(at, 8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 11
    given_back(at, unit)


def check_kernels_that_run_see_what_is_mapped():
    (a,) = streams(1)
    unit, threads = granule(), LaunchConfig(grid=1, block=8)
    at, ones = reserve(2 * unit), ObjectCode.from_ptx(PTX.encode()).get_kernel("ones")
    mapped(at, unit), mapped(at + unit, unit)
    launch(a, threads, ones, at + unit - 16)
    a.sync()
    assert (here(at + unit - 16, 32).view(np.uint32) == 1).all()
    control.report()
    ok(driver.cuMemSetAccess(at + unit, unit, access(0), 1))
    for gone in (False, True):
        if gone:
            ok(driver.cuMemUnmap(at + unit, unit))
        launch(a, threads, ones, at + unit - 16)
        fails(E.CUDA_ERROR_ILLEGAL_ADDRESS, a.sync)
        assert "are not in memory that is allocated" in control.report()  # of any thread from the fifth on
    ok(driver.cuMemUnmap(at, unit)), ok(driver.cuMemAddressFree(at, 2 * unit))


def check_a_capture_takes_mappings():
    """Mapping is no work of a stream, so that a capture leaves it alone; a launch finds what is mapped by then."""
    (a,) = streams(1)
    unit = granule()
    at = reserve(unit)
    mapped(at, unit)
    capture(a)
    ok(driver.cuMemsetD8Async(at, 1, 8, a.handle))
    ok(driver.cuMemUnmap(at, unit))
    graph = ok(driver.cuStreamEndCapture(a.handle))
    exec_ = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(exec_, a.handle))
    fails(E.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuStreamSynchronize, a.handle)
    mapped(at, unit)
    ok(driver.cuGraphLaunch(exec_, a.handle))
    a.sync()
    assert here(at, 9).tolist() == [1] * 8 + [0xA5]
    ok(driver.cuGraphExecDestroy(exec_)), ok(driver.cuGraphDestroy(graph))
    given_back(at, unit)


def check_the_virtual_memory_resource_of_cuda_core():
    (a,) = streams(1)
    unit = granule()
    assert Device().properties.virtual_memory_management_supported
    resource, before = VirtualMemoryResource(Device()), held()
    buffer = resource.allocate(unit + 1, stream=a)
    assert buffer.size == 2 * unit
    buffer.fill(3, stream=a)
    sync()
    assert (view(buffer) == 3).all()
    buffer.close()
    now = held()
    assert now["mapped_bytes"] == before["mapped_bytes"] and now["reserved_addresses"] == before["reserved_addresses"]
    control.revive()  # cuda.core retains a handle once more than it releases it
