"""The fake CUDA driver does what CUDA does, as far as `fake_cuda/README.md` says."""

import json
import re
import shutil

import pytest

from tests import fake_cuda
from tests.on_fake_driver import checks_of, needs_driver

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

CHECKS = checks_of(*sorted((fake_cuda.HERE / "checks").glob("*.py")))
SNIPPETS = re.findall(r"```python\n(.*?)```", (fake_cuda.HERE / "README.md").read_text(), re.S)


@pytest.fixture(scope="module", autouse=True)
def needed():
    """Skip where the fake driver or what it is for is missing."""
    needs_driver()


@pytest.fixture(scope="module")
def done():
    """All checks, which run in one process."""
    code = "from fake_cuda import checks; checks.main()"
    done = fake_cuda.run(code, memory=1 << 24, timeout=300, FAKE_CUDA_GRANULE="65536")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def results(done):
    """What came of each check."""
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CHECKS)
def test_check(results, name):
    assert results[name] is None, results[name]


def test_streams_that_wait_for_ever_are_named(done):
    assert re.search(r"^fake cuda: stream 0x\w+ waits for a value that nobody writes$", done.stderr, re.M)


def test_readme():
    done = fake_cuda.run(SNIPPETS[-1], seed=1)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.00201)


def test_seed_and_memory_come_from_the_environment():
    code = """
from cuda.bindings import driver
driver.cuInit(0)
context = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(context)
print(driver.cuMemGetInfo()[2])
events = [(name, driver.cuEventCreate(0)[1]) for name in "abcdefgh"]
streams = [driver.cuStreamCreate(1)[1] for _ in events]
for (_, event), stream in zip(events, streams):
    driver.cuEventRecord(event, stream)
driver.cuCtxSynchronize()
first = events[0][1]
print("".join(sorted("abcdefgh", key=lambda name: driver.cuEventElapsedTime(first, dict(events)[name])[1])))
"""
    orders = []
    for seed in (1, 1, 2):
        done = fake_cuda.run(code, seed=seed, memory=12345)
        assert done.returncode == 0, done.stderr
        memory, order = done.stdout.split()
        assert memory == "12345" and sorted(order) == sorted("abcdefgh")
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("driver.cuStreamDestroy(b); driver.cuStreamSynchronize(b)", "cuStreamSynchronize was given a stream"),
        ("driver.cuStreamDestroy(b); driver.cuStreamGetId(b)", "cuStreamGetId was given a stream"),
        ("driver.cuStreamDestroy(b); driver.cuStreamDestroy(b)", "cuStreamDestroy_v2 was given a stream"),
        ("driver.cuEventDestroy(e); driver.cuEventRecord(e, b)", "cuEventRecordWithFlags was given an event"),
    ],
)
def test_a_call_on_what_was_destroyed_ends_the_process(code, told):
    start = """
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
b, e = driver.cuStreamCreate(1)[1], driver.cuEventCreate(0)[1]
"""
    done = fake_cuda.run(start + code)
    assert done.returncode < 0 and f"fake cuda: {told} that was destroyed" in done.stderr, done.stderr
    assert "line 6" in done.stderr


def test_the_host_cannot_read_device_memory():
    code = """
import ctypes
from cuda.core import Device
device = Device(0)
device.set_current()
memory = device.allocate(8, stream=device.create_stream())
ctypes.string_at(int(memory.handle), 8)
"""
    assert fake_cuda.run(code).returncode == -11


def test_build(tmp_path, monkeypatch):
    library = fake_cuda.build(tmp_path / "here")
    made = library.stat().st_mtime_ns
    assert library == tmp_path / "here" / "libcuda.so.1"
    assert fake_cuda.build(tmp_path / "here").stat().st_mtime_ns == made
    made_there = sorted(path.name for path in library.parent.iterdir())
    assert made_there == ["built_from", "libcuda.so.1", "libnvJitLink.so.13"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(fake_cuda.NoCompiler):
        fake_cuda.build(tmp_path / "there")


def test_illegal_addresses_ruin_the_context_where_they_are_told_to():
    code = """
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
address = driver.cuMemAlloc(8)[1]
stream = driver.cuStreamCreate(1)[1]
driver.cuMemsetD8Async(address, 0, 1, stream)
driver.cuMemFreeAsync(address, 0)
results = [driver.cuCtxSynchronize()[0] for _ in range(2)]
driver.cuDevicePrimaryCtxReset(0)
print(*map(int, [*results, driver.cuCtxSynchronize()[0]]))
"""
    for sticky, expected in (("0", "700 0 0"), ("1", "700 700 0")):
        seen = {fake_cuda.run(code, seed=seed, FAKE_CUDA_STICKY=sticky).stdout.strip() for seed in range(6)}
        assert seen == {"0 0 0", expected}


def test_the_length_of_queues_comes_from_the_environment():
    code = """
from cuda.bindings import driver
from fake_cuda import control
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
stream = driver.cuStreamCreate(1)[1]
for _ in range(10):
    driver.cuEventRecord(driver.cuEventCreate(0)[1], stream)
print(control.count("pending"))
"""
    assert [fake_cuda.run(code, FAKE_CUDA_QUEUE=length).stdout for length in ("0", "3")] == ["10\n", "3\n"]


def test_granules_and_whether_there_are_any_come_from_the_environment():
    code = """
from cuda.bindings import driver
driver.cuInit(0)
wanted = driver.CUmemAllocationProp()
wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
print(driver.cuDeviceGetAttribute(attribute, 0)[1], driver.cuMemGetAllocationGranularity(wanted, 0)[1])
print(*(int(call[0]) for call in (
    driver.cuMemCreate(2 << 20, wanted, 0), driver.cuMemAddressReserve(2 << 20, 0, 0, 0), driver.cuMemUnmap(8, 8),
)))
"""
    for settings, expected in (
        ({}, "1 2097152\n0 0 1\n"),
        ({"FAKE_CUDA_GRANULE": "5000"}, "1 8192\n0 0 1\n"),
        ({"FAKE_CUDA_NO_MAPPING": "1"}, "0 None\n801 801 801\n"),
    ):
        assert fake_cuda.run(code, **settings).stdout == expected
