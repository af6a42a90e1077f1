"""What a run of these tests takes kernels for: Numba's simulator or a device; and what it may skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fake_cuda
from tests.conftest import absent, asks_for_gpu, needs

ROOT = Path(__file__).resolve().parents[1]
SPY = """
import os, sys

def pytest_configure(config):  # before conftest's, as plugins come first
    assert not any(name.startswith(("numba.cuda", "numba_cuda")) for name in sys.modules)

def pytest_collection_finish(session):  # of a worker, too
    from gpumem.kernels import numba_cuda as _numba
    with open(os.environ["SAID"], "a") as said:
        print("simulator" if _numba.SIMULATOR else "device", file=said)
"""


@pytest.mark.parametrize(
    "markexpr", ["gpu", "gpu and not slow", "gpu or slow", "(slow and gpu)", "not (slow or not gpu)"]
)
def test_a_run_of_gpu_tests_takes_the_device(markexpr: str) -> None:
    assert asks_for_gpu(markexpr)


@pytest.mark.parametrize(
    "markexpr",
    [
        "",
        "not gpu",
        "slow",
        "slow or not slow",
        "not slow and not thorough and not gpu",
        "slow and not gpu",
        "gpu or",
        "gpus",
    ],
)
def test_any_other_run_takes_the_simulator(markexpr: str) -> None:
    assert not asks_for_gpu(markexpr)


def spied(tmp_path: Path, *arguments: str, **env: str) -> list[str]:
    """What the kernels run on in a run of pytest, one word a process that collects tests."""
    (tmp_path / "spy.py").write_text(SPY)
    surroundings = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_ENABLE", "PYTEST_"))} | env
    surroundings |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")]), "SAID": str(tmp_path / "said")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "spy", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=surroundings, timeout=120)
    assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: none was selected
    return (tmp_path / "said").read_text().split()


@pytest.mark.jit
@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments, env, where",
    [
        (["--collect-only", "-mgpu"], {}, "device"),
        (["-n2", "-m", "gpu and slow and jit"], {}, "device"),
        (["--collect-only", "-m", "gpu"], {"NUMBA_ENABLE_CUDASIM": "1"}, "simulator"),
        (["--collect-only"], {}, "simulator"),
        (["--collect-only", "-mslow"], {"NUMBA_ENABLE_CUDASIM": "0"}, "device"),
    ],
)
def test_the_choice_comes_before_the_first_import(
    tmp_path: Path, arguments: list[str], env: dict[str, str], where: str
) -> None:
    needs(absent("numba_cuda"))
    files = ["tests/test_gpu.py", "tests/kernels/test_device.py", "tests/kernels/test_prebound.py"]
    said = spied(tmp_path, *arguments, *files, **env)
    assert set(said) == {where} and len(said) >= 1 + ("-n2" in arguments)


@pytest.mark.thorough
def test_the_header_says_where_kernels_run() -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    code = """
from types import SimpleNamespace
from tests.conftest import pytest_report_header
for expression in ("slow", "gpu"):
    print(pytest_report_header(SimpleNamespace(option=SimpleNamespace(markexpr=expression))))
"""
    done = fake_cuda.run(code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    silent, told = done.stdout.splitlines()
    assert silent == "[]"
    assert ("Fake GPU (9.0" in told and "emulated" in told) or "gpu: none: nv" in told


@pytest.mark.parametrize("there", ["", "0", "1"])
def test_what_is_lacking_is_skipped_unless_it_is_required(monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    monkeypatch.setenv("GPUMEM_REQUIRE_GPU", there)
    needs("")
    outcome = pytest.fail.Exception if there == "1" else pytest.skip.Exception
    with pytest.raises(outcome, match="no abacus: pip install"):
        needs(absent("json", "abacus"))
    with pytest.raises(outcome, match=r"no abacus\.core"):
        needs(absent("abacus.core"))
