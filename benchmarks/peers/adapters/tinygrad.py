"""tinygrad's memory planner: lifetimes are those of buffers in a schedule, from the first to the last kernel.

It places blocks of 256 bytes. A byte of ours is a block there, so that nothing is rounded up.
"""

from __future__ import annotations

from typing import Any

from tinygrad.dtype import dtypes
from tinygrad.schedule.memory import memory_plan_rewrite
from tinygrad.uop.ops import Ops, UOp

from benchmarks.peers.problem import Call, Problem

BLOCK = 256


def planner(problem: Problem) -> Call:
    """Call its planner, which asks a TLSF allocator step by step."""
    firsts, lasts = problem.inclusive()
    buffers = [UOp.new_buffer("CPU", BLOCK * size, dtypes.int8) for size in problem.size]
    uses: list[list[int]] = [[] for _ in range(1 + max(lasts))]
    for k, (first, last) in enumerate(zip(firsts, lasts)):
        for step in {first, last}:
            uses[step].append(k)
    kernels = (
        UOp(Ops.CALL, src=(UOp(Ops.NOOP, arg=step), *(buffers[k] for k in mine))) for step, mine in enumerate(uses)
    )
    schedule = UOp(Ops.LINEAR, src=tuple(kernels))

    def offsets(planned: Any) -> list[int]:
        at = {k: new for kernel, mine in zip(planned.src, uses) for k, new in zip(mine, kernel.src[1:])}
        return [at[k].contiguous_view_offset() // BLOCK for k in range(len(buffers))]

    return Call(lambda: memory_plan_rewrite(schedule), offsets)
