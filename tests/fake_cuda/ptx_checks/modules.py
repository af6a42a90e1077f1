"""What the driver does with modules, and who links them."""

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, Linker, LinkerOptions, ObjectCode, Program, ProgramOptions, launch

from fake_cuda import control
from fake_cuda.checks.common import E, fails, streams

from .common import HEAD, SEEDS, kernel, numbers, run


def check_kernels_run_in_the_order_of_their_stream_and_in_graphs():
    memory, x = numbers(np.uint64, 1)
    add, double = (
        kernel(
            "ld.param.u32 %r4, [n]; cvt.u64.u32 %d2, %r4; ld.global.u64 %d1, [%x]; add.s64 %d1, %d1, %d2; "
            "st.global.u64 [%x], %d1;",
            "u64 x, u32 n",
        ),
        kernel("ld.global.u64 %d1, [%x]; shl.b64 %d1, %d1, 1; st.global.u64 [%x], %d1;"),
    )
    one = LaunchConfig(grid=1, block=1)
    a, b = streams(2)
    builder = a.create_graph_builder()
    builder.begin_building()
    launch(a, one, add, memory, np.uint32(3))
    b.wait(a.record())
    launch(b, one, double, memory)
    a.wait(b.record())
    graph = builder.end_building().complete()
    builder.close()
    for seed in SEEDS:
        control.seed(seed)
        x[0] = 1
        launch(a, one, add, memory, np.uint32(1))
        launch(a, one, double, memory)
        graph.launch(a)
        graph.launch(a)
        a.sync()
        assert x[0] == ((4 + 3) * 2 + 3) * 2
    control.reset_counts()
    graph.launch(a)
    graph.close()
    a.sync()
    assert control.count("executed_launches") == 2


def check_what_is_counted():
    stamp = np.random.default_rng().integers(1 << 62)  # a text that nobody has had translated
    control.reset_counts()
    text = f"st.global.u64 [%x], {stamp};"
    memory, x = numbers(np.uint64, 1)
    run(kernel(text), memory)
    assert (control.count("loads"), control.count("translations"), int(x[0])) == (1, 1, stamp)
    run(kernel(text), memory)
    assert (control.count("loads"), control.count("translations")) == (2, 1)
    assert (control.count("launches"), control.count("unknown_launches")) == (2, 0)
    run(ObjectCode.from_cubin(b"anything").get_kernel("what"))
    assert (control.count("executed_launches"), control.count("unknown_launches")) == (3, 1)


def check_names_that_a_module_lacks():
    code = ObjectCode.from_ptx(f"{HEAD}.visible .entry k(.param .u64 x) {{ ret; }}".encode())
    fails(E.CUDA_ERROR_NOT_FOUND, code.get_kernel, "other")
    fails(E.CUDA_ERROR_NOT_FOUND, code.get_kernel, "clear")  # one that the driver would have for itself


def check_a_text_that_is_refused():
    control.report()
    code = (
        f"{HEAD}.visible .entry k(.param .u64 x)\n{{\n.reg .b32 %r<3>;\nfrobnicate.u32 %r1, %r2;\nret;\n}}\n".encode()
    )
    result, *_ = driver.cuModuleLoadData(code)
    said = control.report()
    assert result == E.CUDA_ERROR_INVALID_PTX, result
    assert said == "PTX is refused: line 7: frobnicate.u32 %r1, %r2: this instruction is not known", said
    try:
        ObjectCode.from_ptx(code).get_kernel("k")
    except Exception as failure:
        assert "CUDA_ERROR_INVALID_PTX" in str(failure)


def check_unmodified_linking():
    body = ".reg .b64 %d<3>; ld.param.u64 %d1, [x]; st.global.u64 [%d1], 9; ret;"
    text = f"{HEAD}.visible .entry k(.param .u64 x) {{ {body} }}"
    linked = Linker(ObjectCode.from_ptx(text.encode()), options=LinkerOptions(arch="sm_90")).link("cubin")
    made = Program(text, "ptx", ProgramOptions(arch="sm_90")).compile("cubin")
    for code in (linked, made, ObjectCode.from_ptx(text.encode())):
        memory, x = numbers(np.uint64, 1)
        run(code.get_kernel("k"), memory)
        assert x[0] == 9


def check_numba():
    from numba import cuda
    from numba.cuda.core import config

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # one block is enough here

    def broken(kind):
        @cuda.jit
        def turned(x):
            tile = cuda.shared.array(64, np.float32)
            i = cuda.threadIdx.x
            tile[i] = x[i]
            if kind != "no barrier" and (kind != "branch" or i < 40):
                cuda.syncthreads()
            x[i + (kind == "end")] = tile[63 - i]

        return turned

    there = cuda.to_device(np.zeros(64, np.float32))
    for kind in ("none", "no barrier"):
        turned, right = broken(kind), []
        for seed in SEEDS:
            control.seed(seed)
            there.copy_to_device(np.arange(64, dtype=np.float32))
            turned[1, 64](there)
            right.append(there.copy_to_host().tolist() == list(range(63, -1, -1)))
        assert all(right) if kind == "none" else not any(right), (kind, right)
    for kind, error in {"end": "CUDA_ERROR_ILLEGAL_ADDRESS", "branch": "CUDA_ERROR_LAUNCH_FAILED"}.items():
        control.report()
        broken(kind)[1, 64](there)
        try:
            cuda.synchronize()
        except Exception as failure:
            assert error in str(failure), failure
        else:
            raise AssertionError(kind)
        assert "turned" in control.report()
    assert control.count("unknown_launches") == 0
