"""The transparent device on the fake driver's streams. See `fake_cuda/world_checks.py`."""

from __future__ import annotations

import json
import re

import pytest

from tests import fake_cuda

from .conftest import absent, needs

CHECKS = re.findall(r"^def (check_\w+)", (fake_cuda.HERE / "world_checks.py").read_text(), re.M)


@pytest.mark.thorough
@pytest.mark.jit
def test_the_device_on_streams() -> None:
    needs(absent("numba_cuda", "cuda.core", "cuda.bindings") or fake_cuda.why_not())
    needs(fake_cuda.run("from gpumem.commands.doctor import why_no_cuda; print(why_no_cuda())").stdout.strip())
    done = fake_cuda.run("from fake_cuda import world_checks; world_checks.main()", timeout=300)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, str | None] = json.loads(done.stdout)
    assert set(outcome) == set(CHECKS)
    assert not any(outcome.values()), "\n".join(f"{name}: {why}" for name, why in outcome.items() if why)
