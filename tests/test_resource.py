"""Pools behind other libraries' memory, on the fake driver. See `fake_cuda/resource_checks.py`."""

from __future__ import annotations

import json
import re

import pytest

from tests import fake_cuda

from .conftest import absent, needs

CHECKS = re.findall(r"^def (check_\w+)", (fake_cuda.HERE / "resource_checks.py").read_text(), re.M)


@pytest.mark.thorough
@pytest.mark.jit  # no loop of gpumem's is compiled here
def test_pools_on_the_fake_driver() -> None:
    needs(absent("cuda.core", "cuda.bindings") or fake_cuda.why_not())
    root = str(fake_cuda.HERE.parent.parent)
    done = fake_cuda.run("from fake_cuda import resource_checks; resource_checks.main()", timeout=300, PYTHONPATH=root)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, str | None] = json.loads(done.stdout)
    assert set(outcome) == set(CHECKS)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
