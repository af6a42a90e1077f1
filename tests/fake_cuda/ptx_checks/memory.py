"""Loads, stores, parameters, variables and atomics."""

import ctypes

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, launch

from fake_cuda import control
from fake_cuda.checks.common import E, device, ok, part, streams

from .common import faulty, kernel, numbers, run


def check_loads_and_stores_of_every_width():
    memory, x = numbers(np.uint64, 16, 0x8182838485868788)
    code = kernel("""
        ld.global.u8 %h1, [%x]; st.global.u16 [%x+8], %h1;
        ld.global.s8 %h1, [%x]; st.global.u16 [%x+16], %h1;
        ld.global.s16 %r1, [%x]; st.global.u32 [%x+24], %r1;
        ld.global.s32 %d1, [%x]; st.global.u64 [%x+32], %d1;
        ld.global.b32 %d1, [%x+0]; st.global.b64 [%x+40], %d1;
        add.s64 %d2, %x, 64; ld.volatile.global.u64 %d1, [%d2+-64]; st.global.u8 [%d2+-16], %d1;
        ld.global.nc.u64 %d1, [%x]; st.u64 [%x+56], %d1;
        mov.b64 {%r1, %r2}, %d1; mov.b64 %d1, {%r2, %r1}; st.global.cs.u64 [%x+64], %d1;
        ld.global.v2.u32 {%r1, %r2}, [%x]; st.global.v4.u32 [%x+80], {%r2, %r1, %r1, %r2};
    """)
    run(code, memory)
    got = [int(v) for v in x]
    assert got[1:5] == [0x8182838485860088, 0x818283848586FF88, 0x81828384FFFF8788, 0xFFFFFFFF85868788]
    assert got[5:9] == [0x85868788, 0x8182838485868788 & ~0xFF | 0x88, got[0], 0x8586878881828384]
    assert got[10:12] == [0x8586878881828384, 0x8182838485868788]


def check_parameters_of_every_size():
    memory, x = numbers(np.float64, 7)
    code = kernel(
        """.reg .f64 %e; ld.param.u64 %x, [y];
        ld.param.u8 %h1, [a]; cvt.rn.f64.u16 %e, %h1; st.global.f64 [%x], %e;
        ld.param.f32 %f1, [b]; cvt.f64.f32 %e, %f1; st.global.f64 [%x+8], %e;
        ld.param.u16 %h1, [c]; cvt.rn.f64.u16 %e, %h1; st.global.f64 [%x+16], %e;
        ld.param.s32 %r1, [d]; cvt.rn.f64.s32 %e, %r1; st.global.f64 [%x+24], %e;
        ld.param.v2.u32 {%r4, %r1}, [e+4]; cvt.rn.f64.u32 %e, %r1; st.global.f64 [%x+32], %e;
        cvt.rn.f64.u32 %e, %r4; st.global.f64 [%x+40], %e;
        ld.param.f64 %e, [f]; st.global.f64 [%x+48], %e;""",
        "u8 a, f32 b, u16 c, u64 .ptr .global .align 8 y, s32 d, align 8 .b8 e[12], f64 f",
    )
    sizes = [ok(driver.cuKernelGetParamInfo(int(code.handle), i)) for i in range(7)]
    assert sizes == [(0, 1), (4, 4), (8, 2), (16, 8), (24, 4), (32, 12), (48, 8)]
    assert driver.cuKernelGetParamInfo(int(code.handle), 7)[0] == E.CUDA_ERROR_INVALID_VALUE
    assert [it.size for it in code.arguments_info] == [size for _, size in sizes]
    many = (ctypes.c_uint32 * 3)(6, 77, 78)
    types = (ctypes.c_uint8, ctypes.c_float, ctypes.c_uint16, ctypes.c_uint64, ctypes.c_int32)
    given = [kind(value) for kind, value in zip(types, (255, 0.5, 65535, int(memory.handle), -9))]
    given += [many, ctypes.c_double(1e300)]
    pointers = (ctypes.c_void_p * 7)(*map(ctypes.addressof, given))
    (stream,) = streams(1)
    function = ok(driver.cuKernelGetFunction(int(code.handle)))
    ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream.handle, ctypes.addressof(pointers), 0))
    stream.sync()
    assert x.tolist() == [255, 0.5, 65535, -9, 78, 77, 1e300]


def check_parameters_are_copied_when_launched():
    memory, x = numbers(np.uint64, 4)
    code = kernel(
        "ld.param.u32 %r1, [n]; mul.wide.u32 %d1, %r1, 8; add.s64 %x, %x, %d1; ld.param.f32 %f1, [v]; "
        "cvt.rni.u64.f32 %d1, %f1; st.global.u64 [%x], %d1;",
        "u64 x, u32 n, f32 v",
    )
    (stream,) = streams(1)
    n, v = np.uint32(0), np.float32(10)
    for i in range(4):
        launch(stream, LaunchConfig(grid=1, block=1), code, memory, np.uint32(i), np.float32(10 * i))
    del n, v
    stream.sync()
    assert x.tolist() == [0, 10, 20, 30]


def check_threads_know_where_they_are():
    memory, x = numbers(np.uint32, 3 * 2 * 2 * 4 * 3 * 2 * 12)
    names = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    block = "mad.lo.u32 %r1, {0}.z, {1}.y, {0}.y; mad.lo.u32 %r1, %r1, {1}.x, {0}.x;"
    at = block.format("%ctaid", "%nctaid") + " mov.u32 %r2, %r1; " + block.format("%tid", "%ntid")
    stores = " ".join(f"mov.u32 %r3, {name}; st.global.u32 [%x+{4 * i}], %r3;" for i, name in enumerate(names))
    run(
        kernel(f"{at} mad.lo.u32 %r1, %r2, 24, %r1; mul.wide.u32 %d1, %r1, 48; add.s64 %x, %x, %d1; {stores}"),
        memory,
        grid=(3, 2, 2),
        block=(4, 3, 2),
    )
    for i, row in enumerate(x.reshape(-1, 12).tolist()):
        b, t = divmod(i, 24)
        assert row == [t % 4, t // 4 % 3, t // 12, 4, 3, 2, b % 3, b // 3 % 2, b // 6, 3, 2, 2], (i, row)


def check_local_memory_and_generic_addresses():
    memory, x = numbers(np.uint32, 32)
    code = kernel(
        """.local .align 8 .b8 depot[32]; .local .align 4 .b8 more[40000];
        .reg .b64 %SP, %SPL;
        mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL;
        st.local.u32 [more+36], %r2; st.local.u32 [%SPL+4], %i;
        ld.u32 %r1, [%SP+4]; mul.lo.s32 %r1, %r1, 3; st.u32 [%SP+8], %r1;
        mov.u64 %d1, tile; cvta.shared.u64 %d2, %d1; mul.wide.u32 %d3, %r3, 4; add.s64 %d2, %d2, %d3;
        ld.local.u32 %r1, [%SPL+8]; st.u32 [%d2], %r1; bar.sync 0;
        cvta.to.shared.u64 %d4, %d2; ld.shared.u32 %r1, [%d4];
        mul.wide.u32 %d3, %i, 4; add.s64 %x, %x, %d3; st.u32 [%x], %r1;""",
        outside=".shared .align 4 .b8 tile[64];\n",
    )
    run(code, memory, grid=2, block=16)
    assert x.tolist() == [3 * i for i in range(32)]


def check_variables_of_a_module():
    memory, x = numbers(np.uint32, 8)
    outside = ".const .align 4 .u32 table[4] = {5, 0x10, 7, 8};\n.global .align 4 .f32 half = 0f3F000000;\n"
    outside += ".common .global .align 8 .u64 _ZN08NumbaEnv1a;\n.global .align 4 .b8 words[8];\n"
    code = kernel(
        """
        mul.wide.u32 %d1, %i, 4; mov.u64 %d2, table; add.s64 %d2, %d2, %d1; ld.const.u32 %r1, [%d2];
        add.s64 %x, %x, %d1;
        ld.global.f32 %f1, [half]; cvt.rn.f32.u32 %f2, %r1; mul.f32 %f1, %f1, %f2; cvt.rzi.u32.f32 %r1, %f1;
        st.global.u32 [%x], %r1; st.global.u32 [words+4], %r1; ld.global.u32 %r1, [words]; st.global.u32 [%x+16], %r1;
    """,
        outside=outside,
    )
    run(code, memory, block=4)
    assert x.tolist() == [2, 8, 3, 4, 0, 0, 0, 0]
    code = kernel("mov.u64 %d2, table; ld.const.u32 %r1, [%d2+16];", outside=outside)
    faulty(E.CUDA_ERROR_ILLEGAL_ADDRESS, "4 bytes at | ld.const.u32", code, memory)


ATOMICS = {  # what 64 threads make of a value with their indices, whatever their order
    "add.u32": (np.uint32, 5, 5 + 63 * 32),
    "add.u64": (np.uint64, 2**64 - 1, 63 * 32 - 1),
    "add.s32": (np.int32, -7, 63 * 32 - 7),
    "min.s64": (np.int64, 40, 0),
    "max.s32": (np.int32, 40, 63),
    "max.u32": (np.uint32, 2**32 - 1, 2**32 - 1),
    "min.u64": (np.uint64, 3, 0),
    "or.b32": (np.uint32, 64, 127),
    "and.b32": (np.uint32, 255, 0),
    "xor.b64": (np.uint64, 128, 128),
    "inc.u32": (np.uint32, 3, None),
    "exch.b32": (np.uint32, 99, None),
}


def check_atomics():
    memory, x = numbers(np.uint64, 130)
    for (name, (kind, first, last)), space in [
        (it, space) for it in ATOMICS.items() for space in ("global", "shared", "")
    ]:
        t = name.split(".")[1]
        a, b = ("%r4", "%r5") if t.endswith("32") else ("%d4", "%d5")
        where = {"global": "%x", "shared": "%d1", "": "%d2"}[space]
        control.seed(len(name))
        memory_kind = x[:1].view(kind)
        memory_kind[0] = first
        code = kernel(
            f"""
            mov.u64 %d1, cell; cvta.shared.u64 %d2, %d1;
            setp.ne.s32 %p1, %r3, 0; @%p1 bra $go; ld.global.{t} {a}, [%x]; st.shared.{t} [%d1], {a};
            $go: bar.sync 0;
            cvt.u{t[1:]}.u32 {b}, %i; atom.{space}{"." * bool(space)}{name} {a}, [{where}], {b};
            mul.wide.u32 %d6, %i, 8; add.s64 %d6, %x, %d6; st.global.{t} [%d6+16], {a};
            bar.sync 0; @%p1 bra $end; ld.shared.{t} {b}, [%d1];
            {f"st.global.{t} [%x], {b};" if space != "global" else ""}
            $end:""",
            outside=".shared .align 8 .b8 cell[8];\n",
        )
        run(code, memory, block=64)
        olds = x[2:66].view(kind)[:: 8 // np.dtype(kind).itemsize].tolist()
        if last is not None:
            assert memory_kind[0] == last, (name, space, memory_kind[0])
        if name == "exch.b32":  # every value is found once
            assert sorted([*olds, int(memory_kind[0])]) == sorted([99, *range(64)])
        if name == "add.u32":
            assert first in olds and len(set(olds)) >= 63


def check_compare_and_swap_and_reductions():
    memory, x = numbers(np.float32, 4, 1)
    code = kernel("""
        red.global.add.f32 [%x], 0f3F800000;
        $again: ld.global.u32 %r1, [%x+4]; mov.b32 %f1, %r1; add.f32 %f1, %f1, 0f40000000; mov.b32 %r2, %f1;
        atom.relaxed.gpu.global.cas.b32 %r4, [%x+4], %r1, %r2; setp.ne.s32 %p1, %r1, %r4; @%p1 bra $again;
        red.global.max.s32 [%x+8], 0x7F000000;""")
    run(code, memory, grid=2, block=32)
    assert x[:2].tolist() == [65, 129] and x.view(np.uint32)[2] == 0x7F000000


def check_pinned_and_device_memory():
    memory, x = numbers(np.uint32, 32)
    there = device(128)
    code = kernel(
        "mul.wide.u32 %d1, %i, 4; add.s64 %d1, %x, %d1; ld.param.u64 %d2, [y]; mul.wide.u32 %d3, %i, 4; "
        "add.s64 %d2, %d2, %d3; ld.global.u32 %r4, [%d1]; add.s32 %r4, %r4, 1; st.global.u32 [%d2], %r4;",
        "u64 x, u64 y",
    )
    x[:] = np.arange(32)
    run(code, memory, there, block=32)
    run(code, part(there, 64, 64), memory, block=16)
    assert x.tolist() == [*range(18, 34), *range(16, 32)]
