"""Small runs under a memory limit, on demand or planned at once, and what their tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem.runtime.residency.environment import Where
from gpumem.simulator.machine import Link, Machine
from gpumem.swap import Plan, Recompute
from gpumem.torch import managed, record
from gpumem.torch.run.managed import Managed

HOW: dict[str, Any] = {"device": "cpu", "wait": True, "planner": "on-demand"}
KIB = 1024
QUICK: dict[str, Any] = {
    "planner": ("tensile", "on-demand-nonblocking"),
    "seconds": 60.0,
    "wait": True,
    "device": "cpu",
}

SLOW, QUICKER = (  # links: to recompute a value takes less than a copy of it, always or mostly
    Machine.named("rtx4090").with_(out=link, into=link, launch_ns=1000) for link in (Link(1e6, 10), Link(3e3, 0.1))
)


def demanded(limit: int | str, machine: Machine = SLOW, **how: Any) -> Managed:
    """A run that stays on demand, and drops what it can recompute."""
    run = managed(limit, **{**HOW, "machine": machine, "on_demand": "dtr", **how})
    run.loop.give_up("it is to stay on demand")
    return run


def dropped(run: Managed, *tensors: torch.Tensor) -> None:
    """Drop tensors, as a run does that needs room."""
    assert run.mode.on_demand is not None
    for cell in run.memory.of(tensors):
        assert run.mode.on_demand.drop(cell) and cell.where is Where.RECIPE


def away(run: Managed, *tensors: torch.Tensor) -> None:
    """Send tensors to the host, as a run does that needs room."""
    for cell in run.memory.of(tensors):
        run.memory.release(cell)
        assert cell.where is not Where.DEVICE


def nested(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts)


def fails(*args: Any) -> Any:
    raise OSError("a defect")


def pair() -> tuple[Any, Plan]:
    """`y = relu(x); z = y * 2; z += 1; y + z`, and a plan that drops y in between."""

    def make() -> Callable[[], torch.Tensor]:
        x = torch.rand(64, 64)

        def step() -> torch.Tensor:
            y = torch.relu(x)
            z = y * 2
            z.add_(1)
            return y + z

        return step

    trace = record(make, "cpu", name="pair").trace
    y = trace.ops.writes.tolist()[0][0]
    return trace, Plan.of(trace, [Recompute(y, 1, 3, 3)])
