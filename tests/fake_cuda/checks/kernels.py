"""Kernels, by their names, and numba."""

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, ObjectCode, launch

from fake_cuda import control
from fake_cuda.checks.common import (
    GOLDEN,
    MASK,
    ONE,
    E,
    device,
    fails,
    kernel,
    mix,
    ok,
    part,
    pinned,
    streams,
    view,
    weight,
)


def check_kernels():
    (a,) = streams(1)
    data, digest, out = device(1000), device(8), device(300)
    rng = np.random.default_rng(0)
    view(data)[:] = rng.integers(0, 256, 1000)
    salt, start = 0xFEDCBA9876543210, 12345
    view(digest)[:] = np.frombuffer(start.to_bytes(8, "little"), np.uint8)
    launch(a, ONE, kernel("checksum"), part(data, 10, 900), np.uint64(900), digest, np.uint64(salt))
    launch(a, ONE, kernel("fill"), digest, int(out.handle), 250, 77)
    a.sync()
    x = [int(v) for v in view(data)[10:910]]
    total = (start + sum((v + 1) * weight(salt, i) for i, v in enumerate(x))) & MASK
    assert int.from_bytes(view(digest).tobytes(), "little") == total
    assert [int(v) for v in view(out)[:250]] == [mix(mix(total ^ mix(77)) + (i + 1) * GOLDEN) >> 56 for i in range(250)]
    assert (view(out)[250:] == 0xA5).all()
    launch(a, ONE, kernel("clear"), digest)
    launch(a, ONE, kernel("advance"), digest)
    launch(a, ONE, kernel("advance"), digest)
    a.sync()
    assert view(digest).tolist() == [2] + [0] * 7
    assert control.count("launches") == control.count("executed_launches") == 5


def check_kernel_objects():
    for name, size in (("checksum", 4), ("fill", 4), ("clear", 1), ("advance", 1), ("other", 0)):
        it = kernel(name)
        assert it.num_arguments == size and [(p.offset, p.size) for p in it.arguments_info] == [
            (8 * i, 8) for i in range(size)
        ]
        assert it.attributes.max_threads_per_block == 1024
    assert ObjectCode.from_ptx(b"anything").get_kernel("clear").num_arguments == 1
    (a,) = streams(1)
    launch(a, ONE, kernel("other"), 1, 2, 3)
    a.sync()
    assert control.count("unknown_launches") == control.count("launches") == 1
    fails(E.CUDA_ERROR_INVALID_VALUE, launch, a, LaunchConfig(grid=1, block=1025), kernel("other"))


def check_kernel_parameters_are_copied():
    (a,) = streams(1)
    first, second = device(8), device(8)
    module = ok(driver.cuModuleLoadData(b"anything"))
    function = ok(driver.cuModuleGetFunction(module, b"clear"))
    word = ctypes.c_uint64(int(first.handle))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(word))
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, a.handle, ctypes.addressof(pointers), 0))
    word.value = int(second.handle)
    a.sync()
    assert not view(first).any() and (view(second) == 0xA5).all()
    fails(
        E.CUDA_ERROR_INVALID_VALUE,
        driver.cuLaunchKernel, function, 0, 1, 1, 1, 1, 1, 0, a.handle, ctypes.addressof(pointers), 0,
    )  # fmt: skip


# --- numba


def check_numba():
    from numba import cuda

    assert cuda.is_available() and len(cuda.gpus) == 1
    assert cuda.current_context().get_memory_info().total == 1 << 24
    (a,) = streams(1)
    memory = device(4096)
    interface = {
        "shape": (1024,), "typestr": "<f4", "data": (int(memory.handle), False), "version": 3, "strides": None,
    }  # fmt: skip
    array = cuda.from_cuda_array_interface(interface)
    assert array.device_ctypes_pointer.value == int(memory.handle)
    array.copy_to_device(np.arange(1024, dtype=np.float32))
    memory.copy_to(memory_back := pinned(4096), stream=a)
    a.sync()
    assert (view(memory_back).view(np.float32) == np.arange(1024)).all()
    stream = cuda.external_stream(int(a.handle))
    locked = cuda.pinned_array(10)
    locked[:] = 3
    there = cuda.to_device(locked, stream=stream)
    back = cuda.pinned_array(10)
    there.copy_to_host(back, stream=stream)
    stream.synchronize()
    assert (back == 3).all()
