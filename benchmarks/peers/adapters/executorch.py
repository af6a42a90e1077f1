"""ExecuTorch's greedy memory planning: the last step of a lifetime belongs to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from executorch.exir.memory_planning import greedy as plan
from executorch.exir.tensor import TensorSpec

from benchmarks.peers.problem import Call, Problem


def greedy(problem: Problem) -> Call:
    """The largest tensors first, into objects that others may share."""
    specs: list[Any] = []
    for size, first, last in zip(problem.size, *problem.inclusive()):
        spec = TensorSpec(torch.uint8, torch.Size([size]))
        spec.lifetime = [first, last]
        spec.realign(1)
        specs.append(spec)

    def offsets(planned: Any) -> list[int]:
        return [planned.spec_dict[spec].mem_offset for spec in specs]

    return Call(lambda: plan(1, set(specs), SimpleNamespace(), None), offsets)
