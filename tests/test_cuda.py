"""`execute/cuda` on the fake driver: orders, events, faults, graphs. See `fake_cuda/backend_checks.py`."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests import fake_cuda

CHECKS = re.findall(r"^def (check_\w+)", (fake_cuda.HERE / "backend_checks.py").read_text(), re.M)


@pytest.fixture(scope="module")
def outcome() -> dict[str, str | None]:
    """What came of each check: all of them run in one process, and in one test, so that no two workers run them."""
    for name in ("cuda.core", "numba_cuda"):
        if importlib.util.find_spec(name.split(".")[0]) is None:
            pytest.skip(f"needs {name}: pip install 'gpumem[test]'")
    try:
        fake_cuda.build()
    except fake_cuda.NoCompiler as missing:
        pytest.skip(str(missing))
    done = fake_cuda.run("from fake_cuda import backend_checks; backend_checks.main()", timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
def test_on_the_fake_driver(outcome: dict[str, str | None]) -> None:
    assert set(outcome) == set(CHECKS)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
