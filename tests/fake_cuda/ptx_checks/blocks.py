"""Threads and blocks: where they are, in which order, at which barrier."""

import numpy as np
from cuda.bindings import driver

from fake_cuda import control
from fake_cuda.checks.common import E, ok

from .common import SEEDS, faulty, kernel, numbers, run

SUM = """
    mul.wide.u32 %d1, %i, 4; add.s64 %d1, %x, %d1; ld.global.f32 %f1, [%d1];
    mul.wide.u32 %d2, %r3, 4; mov.u64 %d3, tile; add.s64 %d2, %d3, %d2; st.shared.f32 [%d2], %f1;
    BARRIER
    mov.f32 %f1, 0f00000000; mov.u32 %r4, 0;
    $more: mul.wide.u32 %d4, %r4, 4; add.s64 %d4, %d3, %d4; ld.shared.f32 %f2, [%d4]; add.f32 %f1, %f1, %f2;
    add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r2; @%p1 bra $more;
    st.global.f32 [%d1], %f1;
"""
TILE = ".visible .shared .align 4 .b8 tile[256];\n"


def sums(code, block=64, shared=0):
    memory, x = numbers(np.float32, 4 * block)
    x[:] = np.arange(4 * block)
    want = np.repeat(x.reshape(4, block).sum(1), block)
    run(code, memory, grid=4, block=block, shared=shared)
    return np.array_equal(x, want)


def check_sums_over_blocks():
    code = kernel(SUM.replace("BARRIER", "bar.sync 0;"), outside=TILE)
    for seed in SEEDS:
        control.seed(seed)
        assert sums(code)
    assert ok(driver.cuKernelGetAttribute(driver.CUfunction_attribute(1), int(code.handle), 0)) == 256


def check_a_barrier_that_lacks_is_found():
    code, right = kernel(SUM.replace("BARRIER", ""), outside=TILE), []
    for seed in SEEDS:
        control.seed(seed)
        right.append(sums(code))
    assert not any(right)


def check_shared_memory_of_the_size_that_a_launch_says():
    code = kernel(SUM.replace("BARRIER", "barrier.sync 0;"), outside=".extern .shared .align 16 .b8 tile[];\n")
    assert sums(code, block=128, shared=512)
    memory, _ = numbers(np.float32, 512)
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "shared memory | thread", code, memory, grid=4, block=128, shared=508)


def check_orders_differ():
    """The last to write wins: threads, and blocks, in more than one order."""
    memory, x = numbers(np.uint32, 1)
    for shape in ({"block": 5}, {"grid": 5}):
        last = set()
        for seed in range(30):
            control.seed(seed)
            run(kernel("st.global.u32 [%x], %i;"), memory, **shape)
            last.add(int(x[0]))
        assert last == set(range(5))
    control.seed(3)


def check_threads_that_leave_and_barriers_in_branches():
    words = "thread ( | of block (0, 0, 0) | bar.sync 0"
    memory, _ = numbers(np.uint32, 1)
    half = "and.b32 %r4, %r3, 1; setp.eq.s32 %p1, %r4, 0;"
    gone = kernel(f"{half} @%p1 ret; bar.sync 0;")
    other = kernel(f"{half} @%p1 bra $a; bar.sync 0; bra $b; $a: bar.sync 0; $b:")
    once = kernel(f"{half} @!%p1 bar.sync 0; bar.sync 0;")
    for seed in SEEDS:
        control.seed(seed)
        faulty(
            E.CUDA_ERROR_LAUNCH_FAILED,
            f"not all threads of the block come to a barrier | {words}",
            gone,
            memory,
            block=8,
        )
        faulty(E.CUDA_ERROR_LAUNCH_FAILED, f"wait at different barriers | {words}", other, memory, block=8)
        faulty(E.CUDA_ERROR_LAUNCH_FAILED, f"wait at different barriers | {words}", once, memory, block=8)
    run(gone, memory)  # one thread, which leaves
    memory, x = numbers(np.uint32, 1)
    run(kernel("bar.sync 0; bar.sync 0; st.global.u32 [%x], 7;"), memory, block=1024)
    assert x[0] == 7
