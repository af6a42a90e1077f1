"""What the sections of `gpu.py` share: what one is given, how a table is printed, the models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cuda.core import Device, EventOptions

from gpumem import Machine
from gpumem.base import work
from gpumem.execute.models import cnn, mlp
from gpumem.execute.models.graph import Model

SEED = 0
MIB = 2**20
BASE = Machine.named("h200")
Row = dict[str, Any]


@dataclass
class Bench:
    """What a section is given: the device, whether only to try; and where it says what it left out."""

    device: Device
    quick: bool
    cut: list[str] = field(default_factory=list)

    def late(self, what: str) -> bool:
        """Return whether the time is up, and note what is left out for that."""
        if late := work.over():
            self.cut.append(what)
        return late

    def times(self, seconds: float, most: int, share: float, least: int = 1) -> int:
        """Return how many repetitions of so many seconds fit into a share of what is left."""
        fit = int(work.left() * share / max(seconds, 1e-9))
        return max(min(fit, most), least)

    def event(self) -> Any:
        """Return an event that keeps the time."""
        return self.device.create_event(EventOptions(timing_enabled=True))


def show(title: str, rows: list[Row]) -> None:
    """Print rows as a table."""
    print(f"\n{title}")
    if rows:
        print("".join(f"{key:>17}" for key in rows[0]))
    for row in rows:
        print("".join(f"{value:>17.4g}" if isinstance(value, float) else f"{value!s:>17}" for value in row.values()))
    sys.stdout.flush()


def models(quick: bool) -> dict[str, Callable[[], Model]]:
    """Training steps at sizes that keep a GPU busy; small ones where only to try."""
    if quick:
        return {
            "mlp": partial(mlp, batch=8, features=16, hidden=(16,) * 4),
            "cnn": partial(cnn, batch=2, side=8, channels=(4,)),
        }
    return {
        "mlp": partial(mlp, batch=8192, features=1024, hidden=(1024,) * 8),
        "mlp-adam": partial(mlp, batch=8192, features=1024, hidden=(1024,) * 8, optimiser="adam"),
        "cnn": partial(cnn, batch=128, side=64, channels=(32, 64, 128)),
        "cnn-im2col": partial(cnn, batch=64, side=32, channels=(32, 64), conv="im2col"),
        "cnn-winograd": partial(cnn, batch=64, side=32, channels=(32, 64), conv="winograd"),
    }
