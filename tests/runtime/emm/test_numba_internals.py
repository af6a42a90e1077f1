"""The private names of numba-cuda are there, in one module, and where one has gone it is named."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import pytest

import gpumem
from tests import fake_cuda
from tests.on_fake_driver import needs_kernels

pytestmark = pytest.mark.jit  # no loop of gpumem's is compiled here

SOURCE = Path(gpumem.__file__).parent
HERE = "runtime/emm/numba_internals.py"
COMPILER = "kernels/numba_cuda.py"  # which `runtime` may not import, nor the other way round
GONE = """
from gpumem.runtime.emm import numba_internals
name = numba_internals.driver._to_core_stream
del numba_internals.driver._to_core_stream, numba_internals.driver.Device.__init__
print(*numba_internals.missing())
print(*numba_internals.missing(limit=False))
try:
    numba_internals.required()
except RuntimeError as error:
    print(error)
"""


def ran(code: str) -> list[str]:
    needs_kernels()
    done = fake_cuda.run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_this_version_of_numba_has_all_names() -> None:
    printed = ran(
        "from gpumem.runtime.emm import numba_internals as names\n"
        "print(*names.missing())\nprint(len({name.full for name in names.PRIVATE}) == len(names.PRIVATE))\n"
        "print(all(name.why for name in names.PRIVATE), names.VERSIONS)"
    )
    gone, different, reasons = printed
    assert gone == "", f"numba-cuda {version('numba-cuda')} lacks {gone}"
    assert different == "True" and reasons.startswith("True ")


def test_a_name_that_has_gone_is_named() -> None:
    both, one, told = ran(GONE)
    assert both == "numba.cuda.cudadrv.driver._to_core_stream numba.cuda.cudadrv.driver.Device._dev"
    assert one == "numba.cuda.cudadrv.driver._to_core_stream"
    assert f"numba-cuda {version('numba-cuda')} has no numba.cuda.cudadrv.driver._to_core_stream, which" in told
    assert "use numba-cuda 0.30" in told


def inner_imports(file: Path) -> list[str]:
    """The modules of `numba.cuda` that a file imports, or imports from."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module] if node.module.startswith("numba.cuda") else []
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("numba.cuda")]
    return found


def test_only_one_module_reaches_into_numba_and_one_more_into_its_compiler() -> None:
    reaching = {str(file.relative_to(SOURCE)): inner_imports(file) for file in SOURCE.rglob("*.py")}
    assert {name for name, imports in reaching.items() if imports} == {HERE, COMPILER}
    assert set(reaching[COMPILER]) == {"numba.cuda.core", "numba.cuda.simulator"}


def test_no_private_name_stands_outside() -> None:
    tree = ast.parse((SOURCE / HERE).read_text())
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NumbaPrivate"
    ]
    names = {call.args[1].value.split(".")[-1] for call in calls if isinstance(call.args[1], ast.Constant)}
    assert {"_dev", "_to_core_stream", "_stream_handle", "_SizeNotSet"} <= names
    private = {name for name in names if name.startswith("_") and not name.endswith("__")}
    for file in (SOURCE / "runtime").rglob("*.py"):
        if str(file.relative_to(SOURCE)) != HERE:
            used = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
            assert not used & private, file
            assert "_getframe" not in used, file
