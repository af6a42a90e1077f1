"""Checks on the fake driver: all of a module run in one process, and in one test, so that no two workers run them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests import fake_cuda
from tests.conftest import absent, needs


def needs_driver() -> None:
    """Skip where the fake driver or what it is for is missing."""
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())


def needs_kernels() -> None:
    """Skip where what compiles kernels is missing besides."""
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    needs(_why_no_kernels())


@cache
def _why_no_kernels() -> str:
    return fake_cuda.run("from gpumem.cli.doctor import why_no_cuda; print(why_no_cuda())").stdout.strip()


def checks_of(*files: Path) -> list[str]:
    """The names of the checks in some files."""
    return [name for file in files for name in re.findall(r"^def (check_\w+)", file.read_text(), re.M)]


def all_pass(module: str, checks: Sequence[str], **options: str | int) -> None:
    """Run a module of `fake_cuda`; these are its checks, and none of them fails."""
    done = fake_cuda.run(f"from fake_cuda import {module}; {module}.main()", timeout=300, **options)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    passed(done.stdout, checks)


def passed(printed: str, checks: Sequence[str]) -> None:
    """Judge what a module prints of its checks."""
    outcome: dict[str, str | None] = json.loads(printed)
    assert set(outcome) == set(checks)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
