"""CuPy's hook for allocators, with a double of CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from gpumem.pool import MultiStream, Native, SmartPool
from gpumem.runtime import cupy_allocator
from tests import cupy_double
from tests.runtime.serving import BASE, in_thread, served

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here


@pytest.fixture
def cuda() -> Iterator[cupy_double.Cuda]:
    with cupy_double.installed() as cuda:
        yield cuda


def test_arrays_lie_in_the_pool_and_go_back_to_it(cuda: cupy_double.Cuda) -> None:
    it = served(Native(granularity=256))
    cuda.set_allocator(cupy_allocator(it))
    x, y, nothing = cuda.alloc(100), cuda.alloc(300), cuda.alloc(0)
    assert (x.ptr, y.ptr, nothing.ptr) == (BASE, BASE + 256, 0)
    del x, nothing
    assert it.statistics.blocks.current == 1 and cuda.alloc(256).ptr == BASE


def test_requests_are_for_the_current_stream(cuda: cupy_double.Cuda) -> None:
    it = served(MultiStream(capacity=1024, allow_growth=False))
    allocate = cupy_allocator(it)
    with cuda.on(70):
        x = allocate(1024)
        del x
        y = allocate(1024)  # its own
        assert it.streams.joined == []
        del y
    with cuda.on(80):
        z = allocate(1024)
    assert it.streams.joined == [{70, 80}]
    del z  # while another stream is current: whoever had it last, all are waited for
    with cuda.on(80):
        allocate(1024)
    assert it.streams.joined[1:] == [{70, 80}]


def test_the_stream_that_memory_was_asked_for_on_is_kept_until_it_is_ordered(cuda: cupy_double.Cuda) -> None:
    it = served(Native(granularity=256))
    allocate = cupy_allocator(it)
    with cuda.on(70):
        stream = cuda.get_current_stream()
        x = allocate(1024)
        del x
        allocate(1024)
    assert it.streams.owners[:2] == [(70, stream), (70, stream)]


def test_what_is_refused(cuda: cupy_double.Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    it = served(Native(granularity=256, capacity=1024))
    allocate = cupy_allocator(it)
    with pytest.raises(MemoryError, match="no room for 2000 bytes"):
        allocate(2000)
    cuda.current.device = 1
    with pytest.raises(ValueError, match="device 1: this memory is on device 0"):
        allocate(8)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="CuPy is not installed: pip install cupy-cuda13x"):
        cupy_allocator(it)


def test_memory_goes_back_where_there_are_no_streams_any_more(cuda: cupy_double.Cuda) -> None:
    it = served(Native(granularity=256))
    x = cupy_allocator(it)(8)
    cuda.get_current_stream = None  # type: ignore[assignment,method-assign]
    del x
    assert it.statistics.blocks.current == 0


def test_a_steady_program_is_served_by_its_plan_in_any_thread(cuda: cupy_double.Cuda) -> None:
    it = served(SmartPool(MultiStream(), min_length=4))
    allocate = cupy_allocator(it)

    def steps() -> None:
        for _ in range(50):
            x, y = allocate(1000), allocate(500)
            del x
            z = allocate(1000)
            del y, z

    in_thread(steps)
    counts = it.statistics
    assert counts.blocks.current == 0 and counts.hits / counts.blocks.total >= 0.95
