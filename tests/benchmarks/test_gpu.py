"""`benchmarks/gpu/__main__.py` on the fake driver: that every section runs, not what it measures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import fake_cuda
from tests.conftest import absent, needs

ROOT = Path(__file__).resolve().parents[2]
IMPORT = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom benchmarks.gpu import __main__ as gpu\n"
pytestmark = [pytest.mark.thorough, pytest.mark.jit]


@pytest.fixture(scope="module", autouse=True)
def needed() -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())


def measured(tmp_path: Path, code: str, *arguments: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """Run the script with `code` before its `main`; return what it wrote and printed."""
    path, done = tmp_path / "figures.json", None
    begin = f"{IMPORT}sys.argv[0] = 'benchmarks/gpu/__main__.py'\n"
    end = f"raise SystemExit(gpu.main({['--quick', '--json', str(path), *arguments]!r}))"
    done = fake_cuda.run(f"{begin}{code}\n{end}", timeout=200)
    if "DynamicLibNotFoundError" in done.stderr or "NvvmSupportError" in done.stderr:
        needs("no compiler for PTX: pip install 'gpumem[cu13]'")
    assert done.returncode == status, done.stderr
    return json.loads(path.read_text()), done.stdout


def test_sections_are_chosen_and_written(tmp_path: Path) -> None:
    found, out = measured(tmp_path, "", "--only", "steps,executor", "--only", "allocators")
    assert set(found["seconds"]) == {"steps", "executor", "allocators"} and not found["failed"]
    assert found["device"].startswith("Fake GPU") and "training steps by where their buffers come from" in out
    (executor,) = found["executor"]
    assert executor["ops"] == 100 and executor["stream wall"] > 0
    ways = {row["way"] for row in found["allocators"]}
    assert {"planned offset", "cuMemAllocAsync", "cuMemAlloc"} <= ways
    rows = [row for row in found["steps"] if row["model"] == "cnn"]
    assert {row["buffers from"] for row in rows} >= {"planned slab", "cuMemAllocAsync", "cuMemAlloc", "unified, 60 %"}
    assert all(row["identical"] == "True" and row["ms"] > 0 and row["MiB"] > 0 for row in rows)


def test_what_is_late_or_fails_is_told_and_the_next_is_measured(tmp_path: Path) -> None:
    code = """
from dataclasses import replace
gpu.SECTIONS["steps"] = replace(gpu.SECTIONS["steps"], seconds=1e-9)
gpu.SECTIONS["jobs"] = replace(gpu.SECTIONS["jobs"], run=lambda bench: 1 / 0)
"""
    found, out = measured(tmp_path, code, "--only", "jobs,allocators,steps", status=1)
    assert found["failed"] == {"jobs": "ZeroDivisionError: division by zero"}
    assert found["allocators"] and found["steps"] == [] and found["left out"]["steps"] == ["mlp", "cnn"]
    assert re.search(r"# steps: [\d.]+ s; left out: mlp, cnn", out)


def test_sections_that_are_not_there(tmp_path: Path) -> None:
    done = fake_cuda.run(f"{IMPORT}gpu.main(['--only', 'model'])")
    assert done.returncode == 2 and "--only: 'model' is unknown" in done.stderr and "did you mean" in done.stderr
