"""Each opcode on edge values, against Python and NumPy. All are kernels of one module, which is compiled once."""

import ctypes
import struct

import numpy as np
from cuda.core import LaunchConfig, ObjectCode, launch

from fake_cuda.checks.common import device, pinned, streams, view

from . import conversions, floats, integers  # noqa: F401  (they have the cases)
from .cases import BITS, CASES, FLOATS, as_held, same, tried, wrap
from .common import HEAD

HOLDS = {"b8": "h", "b16": "h", "b32": "r", "b64": "d", "f32": "f", "f64": "g"}
ARRAYS = 4


def register(kind, k):
    return f"%p{k}" if kind == "pred" else f"%{HOLDS[kind if kind[0] == 'f' else f'b{BITS[kind]}']}{k}"


def source(k, of):
    """The kernel of a case: thread i has the i-th value of each operand, in 8 bytes."""
    to, *kinds = of.kinds.split()
    code = []
    for j, kind in enumerate(kinds, 1):
        code.append(f"ld.param.u64 %a1, [x{j}]; add.s64 %a1, %a1, %a0;")
        if kind == "pred":
            code.append(f"ld.global.u32 %r9, [%a1]; setp.ne.s32 %p{j}, %r9, 0;")
        else:
            code.append(f"ld.global.{kind} {register(kind, j)}, [%a1];")
    operands = ", ".join(register(kind, j) for j, kind in enumerate([to, *kinds]))
    out = "selp.u32 %r9, 1, 0, %p0; st.global.u32 [%a1], %r9;" if to == "pred" else ""
    return f"""
.visible .entry case_{k}({", ".join(f".param .u64 x{j}" for j in range(ARRAYS + 1))})
{{
    .reg .pred %p<6>; .reg .b16 %h<6>; .reg .b32 %r<10>; .reg .b64 %d<6>, %a<4>; .reg .f32 %f<6>; .reg .f64 %g<6>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r0, %r0, %r1, %r2;
    mul.wide.s32 %a0, %r0, 8;
    {" ".join(code)}
    {of.opcode} {operands};
    ld.param.u64 %a1, [x0]; add.s64 %a1, %a1, %a0;
    {out or f"st.global.{to} [%a1], {register(to, 0)};"}
    ret;
}}"""


def encoded(x, kind):
    if kind in FLOATS:
        return struct.pack("<f" if kind == "f32" else "<d", x).ljust(8, b"\0")
    return (int(x) % 2**64).to_bytes(8, "little")


def decoded(raw, kind):
    if kind in FLOATS:
        return struct.unpack_from("<f" if kind == "f32" else "<d", raw)[0]
    return wrap(int.from_bytes(raw, "little"), kind)


class Module:
    """All cases, loaded."""

    def __init__(self):
        self.code = ObjectCode.from_ptx((HEAD + "".join(source(k, of) for k, of in enumerate(CASES))).encode())
        (self.stream,) = streams(1)
        self.size = max(len(tried(of)) for of in CASES)
        self.there = [device(8 * self.size) for _ in range(ARRAYS + 1)]
        self.here = pinned(8 * self.size)

    def run(self, k, rows, kinds):
        """The results of a case, as bytes."""
        for j, kind in enumerate(kinds):
            raw = b"".join(encoded(row[j], kind) for row in rows)
            ctypes.memmove(int(self.here.handle), raw, len(raw))
            self.there[j + 1].copy_from(self.here, stream=self.stream)
            self.stream.sync()
        self.there[0].fill(0xEE, stream=self.stream)
        config = LaunchConfig(grid=len(rows), block=1)
        launch(self.stream, config, self.code.get_kernel(f"case_{k}"), *self.there)
        self.there[0].copy_to(self.here, stream=self.stream)
        self.stream.sync()
        return bytes(view(self.here))


def wrong():
    """What each instruction gets wrong: `opcode operands: got, want`."""
    module, found = Module(), []
    for k, of in enumerate(CASES):
        to, *kinds = of.kinds.split()
        rows = tried(of)
        raw = module.run(k, rows, kinds)
        with np.errstate(all="ignore"):
            for i, row in enumerate(rows):
                got = decoded(raw[8 * i : 8 * i + 8], "u32" if to == "pred" else to)
                want = of.expected(*row)
                want = as_held(float(want), to) if to in FLOATS else wrap(int(want), "u32" if to == "pred" else to)
                if not same(got, want, of.near):
                    found.append(f"{of.opcode} {row}: {got}, not {want}")
    return found


def check_every_opcode_on_edge_values():
    found = wrong()
    assert not found, f"{len(found)} of them: " + "\n".join(found[:40])
