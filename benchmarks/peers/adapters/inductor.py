"""PyTorch's Inductor: the pools of `torch._inductor.config.memory_planning`; lifetimes are half-open, as ours.

It aligns to 64 bytes. A byte of ours is so many there, so that nothing is rounded up.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor.codegen.memory_planning import BufferGroup, LiveRange, MemoryPlanner
from torch._inductor.utils import ALIGN_BYTES
from torch._inductor.virtualized import V

from benchmarks.peers.problem import Call, Problem


class _Node:
    """A tensor of bytes, as far as the planner asks."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    def get_name(self) -> str:
        return self.name

    def get_device(self) -> torch.device:
        return torch.device("cpu")

    def get_dtype(self) -> torch.dtype:
        return torch.uint8

    def get_layout(self) -> Any:
        return SimpleNamespace(size=[self.size], storage_size=lambda: self.size)


def pools(problem: Problem) -> Call:
    """Let its planner allocate groups of buffers, the largest first, into pools that it splits."""
    groups = []
    for k, (size, start, end) in enumerate(zip(problem.size, problem.start, problem.end)):
        group = BufferGroup(_Node(str(k), ALIGN_BYTES * size))
        group.live_range = LiveRange(start, end)
        groups.append(group)
    planner = MemoryPlanner(wrapper=None)
    planner.buffer_groups = groups
    graph = SimpleNamespace(sizevars=SimpleNamespace(optimization_hint=lambda size, fallback: size))

    def place() -> list[Any]:
        with V.set_graph_handler(graph):
            planner.allocate_groups()
        return [pool for pools in planner.pools.device_to_pools.values() for pool in pools]

    def offsets(made: list[Any]) -> list[int]:
        base, top = {}, 0  # pools are memory of their own: one lies on the other
        for pool in made:
            base[pool.name] = top
            top += int(pool.root.get_size_hint())
        return [(base[g.allocation.pool.name] + int(g.allocation.offset)) // ALIGN_BYTES for g in groups]

    return Call(place, offsets)
