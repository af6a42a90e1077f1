"""Fixtures of tests with real threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def often() -> Iterator[None]:
    """Let threads change places at nearly every step, and leave none behind."""
    interval, before = sys.getswitchinterval(), threading.active_count()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
    assert threading.active_count() == before
