"""Each planner's lifetimes mean what ours do: those that touch may share bytes, those that meet in one step may not.

Peers that are not installed are skipped; `GPUMEM_PEERS` names the Python that has them, if it is not this one.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import pytest

from benchmarks.peers.asking import PLACED, ask, installed
from benchmarks.peers.instances import Instance
from benchmarks.peers.table import PLANNERS
from gpumem.trace import Trace

PYTHON = os.environ.get("GPUMEM_PEERS", sys.executable)
CHAIN = Instance.of(Trace.from_lifetimes([4, 4, 4], [0, 2, 1], [2, 4, 3]), "chain")


@cache
def versions() -> dict[str, str | None]:
    return dict(installed(PLANNERS.values(), PYTHON))


def _marked(name: str) -> object:
    slow = "torch" in PLANNERS[name].needs  # its import takes seconds
    mark = pytest.mark.jit if PLANNERS[name].ours else pytest.mark.thorough  # ours are warmed by a search
    return pytest.param(name, marks=(mark,) if slow or PLANNERS[name].ours else ())


@pytest.mark.parametrize("name", [_marked(name) for name in PLANNERS])
def test_the_last_step_of_a_lifetime_is_that_before_its_end(name: str) -> None:
    planner = PLANNERS[name]
    if missing := [need for need in planner.needs if versions()[need] is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    found = ask(planner, CHAIN, 0.5, python=PYTHON)
    assert (found.status, found.height) == (PLACED, 8), found
