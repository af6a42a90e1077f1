"""Files, planners and bounds that several commands are given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpumem.io import write
from gpumem.swap.autoswap.planner import autoswap
from gpumem.swap.plan import Plan
from tests.cli.planners import TOLD, FakeBound, gives_up, seeded
from tests.files import BARE
from tests.nets import net


@pytest.fixture(scope="module")
def net_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.json"
    trace = net()
    write(path, trace)
    return path


@pytest.fixture
def bare_file(tmp_path: Path) -> Path:
    path = tmp_path / "bare.csv"
    path.write_bytes(BARE)
    return path


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Plan]]:
    """Three planners: one that works, one that gives up, one with options."""
    planners: dict[str, Callable[..., Plan]] = {"autoswap": autoswap, "gives-up": gives_up, "seeded": seeded}
    monkeypatch.setattr("gpumem.swap.planners.PLANNERS", planners)
    TOLD.clear()
    return planners


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds without the work: half of the peak live bytes, 1 ms."""
    monkeypatch.setattr("gpumem.swap.bound.zero_stall_limit", lambda t, m, **_: FakeBound(t.peak_live_bytes // 2))
    monkeypatch.setattr("gpumem.swap.bound.least_stall", lambda t, m, limit, **_: FakeBound(limit, 10**6))
