"""A swap planner of yours: ten lines decide, the package rewrites, places, times and checks.

It swaps what is large and not needed for long. `gaps` has a row for each pause between two uses of a buffer.
"""

import numpy as np

import gpumem
from gpumem.swap import Swap, fits, gaps


def large_and_long(trace: gpumem.Trace, machine: gpumem.Machine, limit: int) -> gpumem.Plan:
    if fits(trace, limit):
        return gpumem.Plan.of(trace)
    rows = gaps(trace)
    worth = trace.buffers.size[rows.buffer] * (rows.before - rows.after)
    for many in range(1, len(worth)):
        k = np.argsort(worth)[-many:]
        plan = gpumem.Plan.of(trace, Swap.each(rows.where(k), rows.after[k] + 1, rows.before[k]))
        if (least := plan.apply(trace).peak_live_bytes) <= limit:
            return plan
    raise gpumem.NotReached(least, limit)


trace = gpumem.bundled("vgg16")
for planner in (large_and_long, gpumem.autoswap):
    print(gpumem.plan(trace, "gtx1080ti", load="80%", planner=planner))
