"""What the checks of kernels share."""

import numpy as np
from cuda.core import LaunchConfig, ObjectCode, launch

from fake_cuda import control
from fake_cuda.checks.common import pinned, says, streams, view

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
SEEDS = range(12)


def kernel(body, parameters="u64 x", outside="", name="k"):
    """A kernel with some registers; `%i` is the index of the thread among all."""
    listed = ", ".join(f".param .{it}" for it in parameters.split(", ") if it)
    code = f"""{HEAD}{outside}
.visible .entry {name}({listed})
{{
    .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .b32 %i; .reg .b64 %x;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %i, %r1, %r2, %r3;
    {"ld.param.u64 %x, [x];" if "u64 x" in parameters else ""}
    {body}
    ret;
}}"""
    return ObjectCode.from_ptx(code.encode()).get_kernel(name)


def run(code, *arguments, grid=1, block=1, shared=0):
    """Launch and wait."""
    (stream,) = streams(1)
    launch(stream, LaunchConfig(grid=grid, block=block, shmem_size=shared), code, *arguments)
    stream.sync()


def faulty(error, words, code, *arguments, **shape):
    """The launch fails with this error, and the report has all of these words."""
    control.report()
    try:
        run(code, *arguments, **shape)
    except Exception as failure:
        assert says(failure, error), (error, failure)
    else:
        raise AssertionError(f"no {error}")
    said = control.report()
    assert all(word in said for word in words.split(" | ")), said
    assert control.report() == ""


def numbers(kind, size, value=0):
    """An array in page-locked memory, which kernels reach as well."""
    memory = pinned(np.dtype(kind).itemsize * size)
    array = view(memory).view(kind)
    array[:] = value
    return memory, array
