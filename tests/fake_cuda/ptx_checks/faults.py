"""What kernels must not do."""

import numpy as np
from cuda.bindings import driver
from cuda.core import Device

from fake_cuda import control
from fake_cuda.checks.common import E, device, ok, streams

from .common import SEEDS, faulty, kernel, numbers, run


def check_addresses_out_of_bounds():
    memory = device(64)
    there = int(memory.handle)
    load = kernel("ld.global.f32 %f1, [%x+60];", name="_ZN6gpumem7kernels4bias5_biasB3v36E")
    run(load, memory)
    words = f"gpumem.kernels.bias._bias: 4 bytes at {there + 64:#x} | ld.global.f32 %f1, [%x+60] | line 10 | (0, 0, 0)"
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, words, load, np.uint64(there + 4))
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "0x3c", load, np.uint64(0))
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, f"{there - 4:#x}", load, np.uint64(there - 64))
    host = np.zeros(16, np.float32)
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, f"{host.ctypes.data + 60:#x}", load, np.uint64(host.ctypes.data))
    past = kernel("mul.wide.u32 %d1, %i, 4; add.s64 %x, %x, %d1; st.global.u32 [%x], %i;")
    run(past, memory, grid=2, block=8)
    for seed in SEEDS:
        control.seed(seed)
        faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "st.global.u32 [%x], %i | thread (", past, memory, grid=3, block=8)
    straddling = kernel("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%x+48]; ld.global.v2.f32 {%f1, %f2}, [%x+64];")
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "8 bytes", straddling, memory)


def check_memory_that_is_freed():
    (stream,) = streams(1)
    memory = Device().allocate(64, stream=stream)
    there = np.uint64(int(memory.handle))
    code = kernel("ld.global.u32 %r1, [%x];")
    run(code, there)
    memory.close(stream)
    stream.sync()
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "ld.global.u32", code, there)


def check_addresses_that_are_not_aligned():
    memory = device(64)
    for kind, at in {"u16": 1, "u32": 2, "f32": 3, "u64": 4, "v2.f32": 4, "v4.f32": 8}.items():
        to = {"u16": "%h1", "u64": "%d1", "u32": "%r1", "f32": "%f1"}.get(
            kind, "{%f1, %f2}" if "2." in kind else "{%f1, %f2, %f3, %f4}"
        )
        code = kernel(f"ld.global.{kind} {to}, [%x];")
        run(code, memory)
        faulty(
            E.CUDA_ERROR_MISALIGNED_ADDRESS, f"not aligned | ld.global.{kind}", code, np.uint64(int(memory.handle) + at)
        )
    faulty(E.CUDA_ERROR_MISALIGNED_ADDRESS, "atom", kernel("atom.global.add.u32 %r1, [%x+2], 1;"), memory)


def check_arrays_in_shared_memory_do_not_touch():
    memory = device(8)
    outside = ".shared .align 4 .b8 one[64];\n.shared .align 4 .b8 two[64];\n"
    for at in ("[one+64]", "[two+64]", "[one+-4]", "[two+-4]"):
        faulty(
            E.CUDA_ERROR_ILLEGAL_ADDRESS,
            f"shared memory | {at}",
            kernel(f"st.shared.u32 {at}, %i;", outside=outside),
            memory,
        )
    run(kernel("st.shared.u32 [one+60], %i; st.shared.u32 [two], %i;", outside=outside), memory)
    far = kernel(".local .align 4 .b8 depot[16]; mov.u64 %d1, depot; ld.local.u32 %r1, [%d1+16];")
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "local memory", far, memory)


def check_memory_starts_as_garbage():
    memory, x = numbers(np.uint32, 3)
    code = kernel(
        """.local .align 4 .b8 depot[16];
        ld.shared.u32 %r4, [tile]; st.global.u32 [%x], %r4; st.shared.u32 [tile], %i;
        ld.local.u32 %r4, [depot]; st.global.u32 [%x+4], %r4; st.local.u32 [depot], 0;
        st.global.u32 [%x+8], %r5;""",
        outside=".shared .align 4 .b8 tile[16];\n",
    )
    run(code, memory, grid=3)
    assert x.tolist() == [0xA5A5A5A5] * 3


def check_traps_and_kernels_that_do_not_end():
    memory, _ = numbers(np.uint32, 1)
    faulty(
        E.CUDA_ERROR_LAUNCH_FAILED,
        "trap | thread (1, 0, 0)",
        kernel("setp.eq.s32 %p1, %i, 1; @%p1 trap;"),
        memory,
        block=2,
    )
    ok(driver.cuCtxSynchronize())
