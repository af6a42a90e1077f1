"""Random programs on the transparent device over the fake driver, in random legal orders, beside the native run."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from fake_cuda import control
from fake_cuda.backend_checks import held
from gpumem.kernels import device as kernels
from gpumem.runtime import Adaptive, LiveBlock
from gpumem.runtime.devices.on_streams import OnStreams
from gpumem.testing import Mixing, Unmanaged, live_program, perform

PARTS = (0, 1, 1 / 3, 2 / 3)  # of the way from what one op needs to what the program has at once


class Watched(OnStreams):
    """Counts what it is asked for and given back itself."""

    held = peak = 0

    def fill(self, storage: LiveBlock, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)
        super().fill(storage, size)

    def empty(self, storage: LiveBlock) -> None:
        self.held -= storage.size
        super().empty(storage)


class Careless(Watched):
    """Waits for no copy."""

    def wait_for_copy(self, copy: Any) -> None:
        pass


def play(seed: int, kind: type[Watched] = Watched) -> dict[str, Any]:
    """A program beside its native run: whether it left the same bytes, and kept its limit; what it copied."""
    program, native = live_program(seed), Unmanaged()
    right = perform(program.calls, native)
    limit = round(program.widest + PARTS[seed % 4] * (native.peak - program.widest))
    control.seed(seed)
    environment = kind(timing=seed % 2 > 0)
    with Adaptive(environment, limit, planner="heuristic", wait=seed % 3 > 0, min_length=8) as device:
        found = perform(program.calls, device, Mixing(kernels, environment.scratch(np.uint64, (1,))))
        report = device.report()
    same = [x.tobytes() for x in found] == [x.tobytes() for x in right]
    moved = sum(row.moved_out + row.moved_in for row in report.iterations)
    planned = any(row.state == "planned" for row in report.iterations)
    left = {name: count for name, count in held().items() if count}
    return {
        "seed": seed,
        "same": same,
        "over": environment.peak - limit,
        "moved": moved,
        "planned": planned,
        "left": left,
    }


def main(programs: int) -> None:
    """Play so many programs, and a few on a device without waits; print what came of them."""
    right = [play(seed) for seed in range(programs)]
    faults = control.report()
    careless = [play(seed, Careless) for seed in range(6)]
    json.dump({"right": right, "faults": faults, "careless": careless}, sys.stdout)
