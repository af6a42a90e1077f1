"""The checks of a placement on the device beside those in NumPy: of two buffers, and of all arcs of a small circle."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.kernels.comparing import compare

pytestmark = pytest.mark.jit  # the simulator runs Python anyway


@pytest.mark.thorough
def test_checks_of_a_placement_agree_on_two_buffers(device: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.kernels.numba_cuda.THREADS", 2)  # to launch: the simulator takes its time for each
    rng = np.random.default_rng(0)
    for turn in range(300):
        steps = int(rng.integers(1, 5))
        start = rng.integers(0, steps, 2)
        columns = {"offset": rng.integers(-1, 5, 2), "size": rng.integers(0, 4, 2), "start": start}
        columns["end"] = start + rng.integers(1, steps + 1, 2)
        compare(device, "overlap", columns | {"steps": steps, "pair": np.full(2, -7)})
        if turn % 3:
            continue
        host = (columns["offset"] == -1) ^ (rng.random(2) < 0.1)
        limits = {"steps": steps, "alignment": int(rng.integers(1, 3)), "height": int(rng.integers(4, 9))}
        compare(device, "placement", columns | {"host": host} | limits | {"fault": np.full(3, -7)})


def test_load_profiles_agree_wherever_a_lifetime_ends(device: ModuleType) -> None:
    start, length = np.divmod(np.arange(9), 3)  # all arcs of a circle of three steps
    arcs = {"size": 10 ** np.arange(9), "start": start, "end": start + length + 1}
    compare(device, "load_profile", arcs | {"out": np.full(3, -7)})
