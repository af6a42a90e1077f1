"""What all checks share."""

import numpy as np
from cuda.bindings import driver
from cuda.core import (
    Buffer,
    Device,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ObjectCode,
)

from fake_cuda import control

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
ONE = LaunchConfig(grid=1, block=1)
TIMED = EventOptions(timing_enabled=True)
PINNED = LegacyPinnedMemoryResource()
E = driver.CUresult


def mix(z):
    z &= MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def weight(salt, i):
    """Of position i in a checksum."""
    return mix(mix(salt) + (i + 1) * GOLDEN) | 1


def streams(n):
    return [Device().create_stream() for _ in range(n)]


def device(size):
    stream = Device().create_stream()
    memory = Device().allocate(size, stream=stream)
    stream.sync()
    return memory


def pinned(size, value=None):
    memory = PINNED.allocate(size)
    if value is not None:
        view(memory)[:] = value
    return memory


def part(memory, start, size):
    return Buffer.from_handle(int(memory.handle) + start, size, owner=memory)


def view(memory):
    return np.frombuffer(control.host(int(memory.handle), memory.size), np.uint8)


def kernel(name):
    return ObjectCode.from_cubin(b"anything").get_kernel(name)


def capture(stream, mode="GLOBAL"):
    """Begin a capture."""
    mode = getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
    assert driver.cuStreamBeginCapture(stream.handle, mode)[0] == E.CUDA_SUCCESS


def sync():
    """All of the device. `Device.sync` goes through the CUDA runtime, which does not start on the fake driver."""
    ok(driver.cuCtxSynchronize())


def says(failure, error):
    """Whether an exception names the error; cuda.core 1.0 names none when an allocation fails."""
    return error.name in str(failure) or (error == E.CUDA_ERROR_OUT_OF_MEMORY and "Failed to allocate" in str(failure))


def fails(error, call, *args, **kwargs):
    """The call must fail with this error: a result of cuda.bindings, or what cuda.core raises."""
    try:
        result = call(*args, **kwargs)
    except Exception as failure:
        assert says(failure, error), (error, failure)
    else:
        assert isinstance(result, tuple) and result[0] == error, (error, result)


def ok(result):
    assert result[0] == E.CUDA_SUCCESS, result
    return result[1] if len(result) == 2 else result[1:]
