"""A plan that several tests look at."""

from __future__ import annotations

import pytest

import gpumem
from gpumem.pipeline import Planned
from tests.nets import net


@pytest.fixture(scope="module")
def planned() -> Planned:
    return gpumem.plan(net(), "gtx1080ti", pool="75%")
