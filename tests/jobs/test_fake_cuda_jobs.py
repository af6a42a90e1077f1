"""Jobs on the CUDA backend, over the fake driver: in threads, or as one trace. See `fake_cuda/*_checks.py`."""

from __future__ import annotations

import pytest

from tests import fake_cuda
from tests.on_fake_driver import all_pass, checks_of, needs_driver

FILES = [fake_cuda.HERE / name for name in ("job_checks.py", "waterwave_checks.py")]


@pytest.mark.thorough
def test_jobs_on_the_fake_driver() -> None:
    needs_driver()
    all_pass("job_checks", checks_of(*FILES), PYTHONPATH=str(fake_cuda.HERE.parent.parent))
