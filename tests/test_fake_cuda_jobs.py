"""Jobs on the CUDA backend, over the fake driver: in threads, or as one trace. See `fake_cuda/*_checks.py`."""

from __future__ import annotations

import json
import re

import pytest

from tests import fake_cuda

from .conftest import absent, needs

FILES = [fake_cuda.HERE / name for name in ("job_checks.py", "waterwave_checks.py")]
CHECKS = [name for path in FILES for name in re.findall(r"^def (check_\w+)", path.read_text(), re.M)]


@pytest.fixture(scope="module")
def outcome() -> dict[str, str | None]:
    """What came of each check: all of them run in one process, and in one test, so that no two workers run them."""
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    root = str(fake_cuda.HERE.parent.parent)
    code = "from fake_cuda import job_checks; job_checks.main()"
    done = fake_cuda.run(code, timeout=300, PYTHONPATH=root)
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
def test_jobs_on_the_fake_driver(outcome: dict[str, str | None]) -> None:
    assert set(outcome) == set(CHECKS)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
