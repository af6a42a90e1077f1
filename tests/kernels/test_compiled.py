"""What the compiler makes of the kernels of `kernels.device`: their PTX, and models with them on the fake driver."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests import fake_cuda
from tests.conftest import absent, needs
from tests.kernels.without_simulator import ROOT, run
from tests.on_fake_driver import all_pass, checks_of, needs_kernels

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@pytest.mark.thorough
def test_models_on_the_fake_driver() -> None:
    """See `fake_cuda/model_checks.py`."""
    needs_kernels()
    all_pass("model_checks", checks_of(fake_cuda.HERE / "model_checks.py"))


COMPILE = """
import json
import sys
from types import SimpleNamespace
from numba.cuda import dispatcher
from gpumem.kernels import device, numba_cuda
from tests.kernel_cases import CASES, Pick

sys.modules["gpumem.kernels.device.matmul"]._ENOUGH = 1  # both kernels
launched = {}

def note(what, ptx, grid, block, arguments):  # stands in for `ptx.bind`
    kernel, types = what
    name = kernel.py_func.__module__.split(".")[-1] + "." + kernel.py_func.__name__
    launched.setdefault(name, {})[types] = ptx
    return lambda stream: None

numba_cuda.bind = note
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))  # asked for by device functions
for pick in (lambda low, high: low, lambda low, high: high):
    for name in CASES:
        getattr(device, name)(None, **CASES[name](Pick(pick)))
try:
    print(json.dumps({name: [ptx((9, 0)) for ptx in each.values()] for name, each in launched.items()}))
except Exception as error:
    if type(error).__name__ not in ("DynamicLibNotFoundError", "NvvmSupportError"):
        raise
    print(json.dumps({"missing": str(error)}))
"""


@pytest.fixture(scope="module")
def ptx() -> dict[str, list[str]]:
    """The PTX of every kernel for compute capability 9.0, for each list of types that its launcher passes."""
    needs(absent("numba_cuda"))
    found = json.loads(run(COMPILE).splitlines()[-1])
    if "missing" in found:
        needs(f"no compiler for PTX, pip install 'numba-cuda[cu13]': {found['missing']}")
    return dict(found)


@pytest.mark.thorough
def test_every_kernel_compiles_to_ptx_with_one_signature(ptx: dict[str, list[str]]) -> None:
    source = ROOT / "src" / "gpumem" / "kernels"
    found = re.compile(r"^@(?:kernel|unary|binary)\ndef (\w+)", re.MULTILINE)
    decorated = {f"{p.stem}.{name}" for p in source.glob("device/*.py") for name in found.findall(p.read_text())}
    assert set(ptx) == decorated | {"matmul._product_16", "matmul._product_64"}
    assert all(len(codes) == 1 for name, codes in ptx.items() if name != "elementwise._copy")
    assert all(".visible .entry" in code for codes in ptx.values() for code in codes)


ATOMICS = {"words._checksum", "placement._changes", "placement._overlap", "placement._alone"}


@pytest.mark.thorough
def test_kernels_use_no_doubles_and_no_atomics_on_floats(ptx: dict[str, list[str]]) -> None:
    for name, codes in ptx.items():
        for line in "\n".join(codes).splitlines():
            assert ".f64" not in line, f"{name}: {line}"
            if line.strip().startswith(("atom.", "red.")):
                assert name in ATOMICS and (".u64" in line or ".s64" in line), f"{name}: {line}"


@pytest.mark.thorough
def test_large_products_run_in_registers(ptx: dict[str, list[str]]) -> None:
    (code,) = ptx["matmul._product_64"]
    assert code.count("ld.shared") == code.count("ld.shared.v4.f32") == code.count("fma.rn.f32") / 8


@pytest.mark.thorough
def test_arrays_of_a_thread_are_in_registers(ptx: dict[str, list[str]]) -> None:
    for name, codes in ptx.items():
        for code in codes:
            assert not re.search(r"\.local\b", code), name  # that would be memory


def assembled(code: str) -> str:
    """What the assembler says that a kernel needs on a device of compute capability 9.0; no GPU takes part."""
    from cuda.bindings import nvjitlink

    linker, told = nvjitlink.create(2, ["-arch=sm_90", "-verbose"]), code.encode()
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, told, len(told), "kernel")
        nvjitlink.complete(linker)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    finally:
        nvjitlink.destroy(linker)
    return log.decode()


@pytest.mark.thorough
def test_blocks_of_512_threads_have_registers_and_shared_memory_enough(ptx: dict[str, list[str]]) -> None:
    needs(absent("cuda.bindings"))
    for name, codes in ptx.items():
        for code in codes:
            found = re.search(r"used (\d+) registers, .*?(\d+) stack(?:, (\d+) bytes smem)?", assembled(code))
            assert found, name
            registers, stack, shared = (int(n or 0) for n in found.groups())
            assert registers <= 65536 // 512 and stack == 0 and shared <= 48 << 10, (name, found[0])


def innermost(code: str) -> Iterator[list[str]]:
    """The instructions of each loop of PTX that has no other inside."""
    lines = [line.strip() for line in code.splitlines()]
    places = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    jumps = [(places.get(line.rstrip(";").split()[-1], len(lines)), i) for i, line in enumerate(lines) if "bra" in line]
    loops = sorted({(start, end) for start, end in jumps if start < end})
    for start, end in loops:
        if not any(start <= other[0] and other[1] <= end for other in loops if other != (start, end)):
            yield lines[start : end + 1]


# Small ones, and those that divide once for 9 or 16 numbers, in loops that are unrolled
DIVIDING = {"loss._cross_entropy_gradient", "placement._alone"}
DIVIDING |= {f"winograd.{name}" for name in ("_weights", "_pixels", "_results")}


@pytest.mark.thorough
def test_no_inner_loop_divides_integers(ptx: dict[str, list[str]]) -> None:
    division = re.compile(r"\b(div|rem)\.[su]\d+")
    loops = [(name, "".join(loop)) for name, codes in ptx.items() for code in codes for loop in innermost(code)]
    assert {name for name, loop in loops if division.search(loop)} == DIVIDING
