"""The fake CUDA driver runs kernels from PTX (`fake_cuda/ptx_checks`), and refuses what it does not know."""

import pytest

from tests import fake_cuda
from tests.conftest import absent, needs
from tests.fake_cuda.ptx import Refused, translate
from tests.on_fake_driver import all_pass, checks_of

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

CHECKS = checks_of(*sorted((fake_cuda.HERE / "ptx_checks").glob("*.py")))


@pytest.mark.thorough
def test_on_the_fake_driver():
    needs(absent("cuda.core", "cuda.bindings", "numba_cuda") or fake_cuda.why_not())
    all_pass("ptx_checks", CHECKS, memory=1 << 24)


def refusal(body, outside=""):
    """Why a kernel is refused, without the line."""
    registers = ".reg .pred %p<3>; .reg .b16 %h<3>; .reg .b32 %r<5>; .reg .b64 %d<3>; .reg .f32 %f<5>; .reg .f64 %g<3>;"
    with pytest.raises(Refused) as refused:
        translate(f".version 8.0\n{outside}\n.visible .entry k(.param .u64 x)\n{{ {registers}\n{body}\nret; }}\n")
    line, _, why = str(refused.value).partition(": ")
    assert line == ("line 2" if outside else "line 5")
    return why


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;",
        "vote.sync.any.pred %p1, %p2, -1;",
        "add.f16 %h1, %h2, %h1;",
        "add.sat.s32 %r1, %r1, %r1;",
        "add.cc.u32 %r1, %r1, %r1;",
        "div.rz.f32 %f1, %f1, %f2;",
        "fma.rz.f64 %g1, %g1, %g1, %g1;",
        "sqrt.rm.f32 %f1, %f2;",
        "lop3.b32 %r1, %r1, %r2, %r2, 0x80;",
        "mad24.lo.s32 %r1, %r1, %r2, %r1;",
        "call.uni (%r1), f, (%r2);",
        "brx.idx %r1, table;",
    ],
)
def test_an_instruction_that_is_not_known(instruction):
    assert refusal(instruction) == f"{instruction[:-1]}: this instruction is not known"


@pytest.mark.parametrize(
    "instruction, why",
    {
        "add.s32 %r1, %r2;": "3 operands are expected",
        "add.s32 %r1, %r2, %r3, %r4;": "3 operands are expected",
        "add.s32 %r1, %r2, %q1;": "%q1 is not known",
        "add.s32 %q1, %r2, %r2;": "%q1 is not a register for s32",
        "add.s64 %r1, %d1, %d2;": "%r1 is not a register for s64",
        "add.s32 %p1, %r1, %r2;": "%p1 is not a register for s32",
        "add.s32 %r1, %p1, %r2;": "%p1 is a register of type pred",
        "mov.u32 %r1, %clock;": "%clock is not known",
        "mov.u32 %r1, x;": "x is not known",
        "mov.f32 %f1, 1.5;": "1.5 is not known",
        "cvt.rz.f32.s32 %f1, %r1;": "only rounding to the nearest is known here",
        "cvt.rn.f16.f32 %h1, %f1;": "this form is not known",
        "cvt.s32.f32 %r1, %f1;": "this form is not known",
        "setp.foo.s32 %p1, %r1, %r2;": "this form is not known",
        "setp.lt.s32 %p1, %r1, %r2, %p2;": "3 operands are expected",
        "setp.equ.s32 %p1, %r1, %r2;": "this form is not known",
        "ld.global.f32 %f1, %d1;": "%d1 is no address",
        "ld.global.v2.f32 %f1, [%d1];": "2 registers are expected",
        "ld.global.f32 {%f1, %f2}, [%d1];": "1 registers are expected",
        "ld.param.u64 %d1, [y];": "this form is not known",
        "ld.param.u64 %d1, [x+4];": "beyond the parameter",
        "ld.tex.f32 %f1, [%d1];": ".tex is not known",
        "st.global.foo.f32 [%d1], %f1;": ".foo is not known",
        "atom.global.mul.u32 %r1, [%d1], %r2;": "this form is not known",
        "bar.sync 1;": "only bar.sync 0 is known",
        "bar.arrive 0, 64;": "only bar.sync 0 is known",
        "bar.warp.sync -1;": "only bar.sync 0 is known",
        "bar.sync 0, 64;": "only bar.sync 0 is known",
        "cvta.to.param.u64 %d1, %d2;": "this space is not known",
        ".reg .f16 %k<3>;": "registers of type f16 are not known",
        ".branchtargets a, b;": "not known",
        "+++;": "this is no instruction",
    }.items(),
)
def test_a_form_that_is_not_known(instruction, why):
    assert refusal(instruction) == f"{instruction[:-1]}: {why}"


def test_outside_of_kernels():
    assert refusal("", ".tex .u64 t;") == ".tex .u64 t: not known"
    assert refusal("", ".global .align 8 .u64 p = other;") == "p: only numbers are known as first values"
    assert refusal("", ".shared .align 4 .texref t;").endswith("this variable is not known")
    with pytest.raises(Refused, match="line 3: ret: this does not end"):
        translate(".version 8.0\n.visible .entry k() {\nret")
    with pytest.raises(Refused, match="the last kernel does not end"):
        translate(".version 8.0\n.visible .entry k() {\nret;")
    assert "kernel_1" in translate(".func f() { frob; }\n.entry a() { ret; }\n.visible .entry b() .maxntid 32 { ret; }")
