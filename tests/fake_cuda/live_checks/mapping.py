"""Backings and pages: what they take, what they give back, and what is left after a call that failed."""

import random

import numpy as np
from cuda.bindings import driver
from cuda.core import Buffer

from fake_cuda import control
from fake_cuda.checks.common import E, fails, ok, streams, sync
from fake_cuda.checks.mapping import granule, held, here
from gpumem.execute.cuda.driver_calls import VirtualMemory, can_map
from gpumem.runtime.paged.pages import Pages, PageStatistics
from gpumem.runtime.pooled.backing import Fixed, Grown, backing

CALLS = ("reserve", "create", "map", "access")  # of the driver, each of which may fail


def raises(error, call, *arguments, saying=""):
    """The call must raise this, with these words."""
    try:
        call(*arguments)
    except error as raised:
        assert saying in str(raised), raised
        return str(raised)
    raise AssertionError(f"no {error.__name__}")


def failing(call):
    """Make a call with each of the driver's calls in it failing once, then with none: what it returns."""
    for what in CALLS:
        for n in range(1, 100):
            before = held()
            control.fail(what, n)
            try:
                found = call()
            except MemoryError as told:
                assert "CUDA_ERROR_OUT_OF_MEMORY" in str(told)
                assert held() == before, (what, n)
                continue
            break
        control.fail(what, 0)
        assert n < 99
        if what != CALLS[-1]:
            yield found
    yield found


# --- backings


def check_a_backing_is_there_as_far_as_it_has_grown():
    (a,) = streams(1)
    unit, before = granule(), held()
    made = backing(0, 5 * unit + 1)
    assert isinstance(made, Grown) and can_map(0)
    assert made.base % unit == 0 and made.size == 0
    assert held() == before | {"reserved_addresses": before["reserved_addresses"] + 6 * unit}
    for top, size, maps in ((1, 1, 1), (unit, 1, 1), (unit + 1, 2, 2), (5, 2, 2), (5 * unit + 1, 6, 3)):
        made.grow(top)
        assert made.size == size * unit == control.count("mapped_bytes") - before["mapped_bytes"], top
        assert control.count("maps") == maps and control.count("device_bytes") - before["device_bytes"] == made.size
        Buffer.from_handle(made.base, top).fill(top % 251, stream=a)
        a.sync()
        assert (here(made.base, top) == top % 251).all()
    fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemsetD8Async, made.base + 6 * unit, 0, 1, a.handle)
    raises(MemoryError, made.grow, 5 * unit + 2, saying=f"{5 * unit + 2} bytes: the pool may have {5 * unit + 1}")
    made.close()
    made.close()
    raises(ValueError, made.grow, 1, saying="given back")
    assert held() == before


def check_a_backing_that_fails_leaves_everything_as_it_was():
    unit, before = granule(), held()
    made = list(failing(lambda: Grown(0, 4 * unit)))
    for each in made[1:]:
        each.close()
    grown = made[0]
    top = 0

    def more():
        grown.grow(top)
        return grown.size

    for top in (unit, 3 * unit, 4 * unit):
        assert set(failing(more)) == {top}
        assert (here(grown.base, top) == 0xA5).all()
    grown.close()
    assert held() == before


def check_a_backing_grows_as_far_as_the_device_has_bytes():
    unit, before = granule(), held()
    sync()
    ok(driver.cuMemPoolTrimTo(ok(driver.cuDeviceGetDefaultMemPool(0)), 0))
    room = ok(driver.cuMemGetInfo())[0] // unit
    made = Grown(0, 100 * unit)
    made.grow((room - 1) * unit)
    raises(MemoryError, made.grow, (room + 1) * unit, saying="CUDA_ERROR_OUT_OF_MEMORY")
    made.grow(room * unit)
    made.close()
    now = held()
    assert {**now, "device_bytes": 0} == {**before, "device_bytes": 0}


def check_one_allocation_does_where_memory_cannot_be_mapped():
    before, live = held(), control.count("live_device")
    made = Fixed(0, 1000)
    assert made.size == 1000 and control.count("live_device") == live + 1
    made.grow(1000)
    here(made.base, 1000)[:] = 3
    raises(MemoryError, made.grow, 1001, saying="1001 bytes: the pool may have 1000")
    made.close()
    made.close()
    raises(ValueError, made.grow, 1, saying="given back")
    control.fail("allocation", 1)
    raises(MemoryError, Fixed, 0, 1000, saying="1000 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY")
    assert held() == before and control.count("live_device") == live


def check_a_fixed_backing_needs_no_context_and_leaves_none():
    current = ok(driver.cuCtxGetCurrent())
    ok(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    made = Fixed(0, 1000)
    assert not int(ok(driver.cuCtxGetCurrent()))
    made.close()
    assert not int(ok(driver.cuCtxGetCurrent()))
    grown = Grown(0, 1000)
    grown.grow(1000)
    grown.close()
    ok(driver.cuCtxSetCurrent(current))


def check_what_a_backing_is_not_made_for():
    for kind in (backing, Grown, Fixed):
        raises(ValueError, kind, 0, 0, saying="a capacity of 0 bytes")
        raises(ValueError, kind, 1, 8, saying="device 1: there are 1")
        raises(ValueError, kind, -1, 8, saying="device -1: there are 1")


# --- pages


def check_pages_keep_their_addresses():
    (a,) = streams(1)
    unit, before = granule(), held()
    pages = Pages(0, 3 * unit + 5)
    first, second = pages.reserve(unit + 1), pages.reserve(5)
    assert (first.size, first.taken, second.taken) == (unit + 1, 2 * unit, unit) and pages.whole(1) == unit
    assert not pages.filled(first) and pages.statistics == PageStatistics(unit, 0, 0, 3)
    for value in (1, 2, 3):
        pages.fill(first)
        Buffer.from_handle(first.address, first.size).fill(value, stream=a)
        a.sync()
        assert (here(first.address, first.size) == value).all()
        pages.empty(first)
        fails(E.CUDA_ERROR_INVALID_VALUE, driver.cuMemsetD8Async, first.address, 0, 1, a.handle)
    assert control.count("creates") == 2 and control.count("maps") == 6  # the granules are used again
    assert pages.statistics == PageStatistics(unit, 0, 2, 3)
    pages.fill(second)
    assert pages.statistics == PageStatistics(unit, 1, 1, 3) and control.count("creates") == 2
    pages.fill(first)  # one from the free list, one more
    assert pages.statistics == PageStatistics(unit, 3, 0, 3) and control.count("creates") == 3
    pages.empty(second)
    assert pages.trim() == unit and pages.trim() == 0 and pages.statistics == PageStatistics(unit, 2, 0, 3)
    assert control.count("device_bytes") - before["device_bytes"] == 2 * unit == pages.statistics.bytes_held
    pages.release(first)
    assert pages.statistics.free == 2 and control.count("mapped_bytes") == before["mapped_bytes"]
    pages.fill(second)
    pages.close()
    pages.close()
    assert held() == before


def check_pages_stay_within_their_budget():
    unit, before = granule(), held()
    pages = Pages(0, 4 * unit)
    large, small = pages.reserve(3 * unit), pages.reserve(2 * unit)
    pages.fill(small)
    raises(MemoryError, pages.fill, large, saying="192.00 KiB in granules: 128.00 KiB of 256.00 KiB are mapped")
    assert pages.statistics == PageStatistics(unit, 2, 0, 4) and not pages.filled(large)
    pages.empty(small)
    pages.fill(large)
    raises(MemoryError, pages.fill, small)
    raises(MemoryError, pages.fill, pages.reserve(5 * unit))
    pages.close()
    more = Pages(0, 100 * unit)
    whole = more.reserve(100 * unit)
    now = held()
    raises(MemoryError, more.fill, whole, saying="CUDA_ERROR_OUT_OF_MEMORY")  # the device has less
    assert held() == now and more.statistics == PageStatistics(unit, 0, 0, 100)
    more.close()
    assert held() == before


def check_pages_that_fail_leave_everything_as_it_was():
    unit, before = granule(), held()
    pages = Pages(0, 8 * unit)
    made = list(failing(lambda: pages.reserve(3 * unit)))
    for spare in made[2:]:
        pages.release(spare)
    first, second = made[:2]

    def refilled(range_):
        statistics = pages.statistics
        try:
            pages.fill(range_)
        except MemoryError:
            assert pages.statistics == statistics and not pages.filled(range_)
            raise
        here(range_.address, range_.size)[:] = 7
        pages.empty(range_)

    pages.fill(second)
    for _ in failing(lambda: refilled(first)):
        pages.trim()  # so that the next one creates
    pages.fill(first)
    pages.empty(second)
    pages.empty(first)
    list(failing(lambda: refilled(second)))  # from the free list
    assert control.count("creates") > 6 and pages.statistics == PageStatistics(unit, 0, 6, 8)
    pages.close()
    assert held() == before


def check_what_pages_refuse():
    unit, before = granule(), held()
    raises(
        ValueError, Pages, 0, unit - 1, saying=f"a budget of {unit - 1} bytes: memory is mapped in granules of 64.00 K"
    )
    raises(ValueError, Pages, 3, unit, saying="device 3")
    pages, others = Pages(0, unit), Pages(0, unit)
    raises(ValueError, pages.reserve, 0, saying="a range of 0 bytes")
    mine, theirs = pages.reserve(1), others.reserve(1)
    raises(ValueError, pages.empty, mine, saying="has no bytes")
    pages.fill(mine)
    raises(ValueError, pages.fill, mine, saying="has its bytes already")
    for call in (pages.fill, pages.empty, pages.release, pages.filled):
        raises(ValueError, call, theirs, saying="was not reserved here")
    pages.release(mine)
    raises(ValueError, pages.release, mine, saying="has been released")
    pages.close(), others.close()
    assert held() == before


def check_pages_at_random():
    """Against a model: what is filled keeps its bytes while others come and go, and no two share a granule."""
    unit, before = granule(), held()
    rng = random.Random(0)
    pages = Pages(0, 6 * unit)
    written = {}  # range -> the value that all its bytes have, or None
    for step in range(400):
        one = rng.choice([*written]) if written else None
        filled = [each for each, value in written.items() if value is not None]
        if one is None or (len(written) < 8 and rng.random() < 0.2):
            written[pages.reserve(rng.randint(1, 3 * unit))] = None
        elif rng.random() < 0.1:
            pages.release(one)
            del written[one]
        elif written[one] is not None:
            pages.empty(one)
            written[one] = None
        elif one.taken <= 6 * unit - sum(each.taken for each in filled):
            pages.fill(one)
            written[one] = step % 251
            here(one.address, one.taken)[:] = step % 251
        else:
            raises(MemoryError, pages.fill, one)
        if rng.random() < 0.05:
            pages.trim()
        for each, value in written.items():
            assert pages.filled(each) == (value is not None)
            assert value is None or (here(each.address, each.taken) == value).all()
        now, mapped = pages.statistics, sum(each.taken for each, value in written.items() if value is not None)
        assert now.mapped * unit == mapped == control.count("mapped_bytes") - before["mapped_bytes"]
        assert now.mapped + now.free <= 6 and now.bytes_held == control.count("device_bytes") - before["device_bytes"]
    assert control.count("maps") > 2 * control.count("creates") > 10, (control.count("maps"), control.count("creates"))
    pages.close()
    assert held() == before


def check_emptying_pages_in_use_is_found():
    """The driver does not wait, so whoever empties must."""
    (a,) = streams(1)
    pages = Pages(0, granule())
    mine, seen = pages.reserve(8), {True: set(), False: set()}
    for seed in range(10):
        control.seed(seed)
        for waited in (True, False):
            pages.fill(mine)
            ok(driver.cuMemsetD8Async(mine.address, 1, 8, a.handle))
            if waited:
                a.sync()
            pages.empty(mine)
            seen[waited].add(driver.cuCtxSynchronize()[0])
    assert seen == {True: {E.CUDA_SUCCESS}, False: {E.CUDA_ERROR_ILLEGAL_ADDRESS}}
    pages.close()


def check_in_a_ruined_context_everything_is_given_back():
    (a,) = streams(1)
    unit, before = granule(), held()
    grown, fixed, pages = Grown(0, 2 * unit), Fixed(0, 8), Pages(0, 2 * unit)
    grown.grow(1)
    mine, other = pages.reserve(1), pages.reserve(1)
    pages.fill(mine), pages.fill(other)
    control.fail("context", 1)
    ok(driver.cuMemsetD8Async(grown.base, 1, 8, a.handle))
    fails(E.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    for call in (lambda: Grown(0, unit), lambda: grown.grow(2 * unit), lambda: pages.reserve(1), lambda: Fixed(0, 8)):
        raises(RuntimeError, call, saying="CUDA_ERROR_LAUNCH_FAILED")
    for each in (grown, fixed, pages):
        each.close()
    assert held() == before
    control.revive()


def check_views_of_ranges_are_ordinary_device_memory():
    pages = Pages(0, 2 * granule())
    mine = pages.reserve(2 * granule())
    pages.fill(mine)
    data = np.arange(mine.size, dtype=np.uint8)
    ok(driver.cuMemcpyHtoD(mine.address, data.ctypes.data, data.nbytes))
    back = np.zeros_like(data)
    ok(driver.cuMemcpyDtoH(back.ctypes.data, mine.address, data.nbytes))
    assert (back == data).all()
    assert VirtualMemory(0).granule == pages.granule
    pages.close()
