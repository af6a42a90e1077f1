"""What a plan holds on the host, by the rewritten trace."""

from __future__ import annotations

import numpy as np

from gpumem.swap.facts.pinned import Pinned
from gpumem.swap.plan import Plan, Swap
from gpumem.trace import Trace


def on_host(trace: Trace, plan: Plan) -> int:
    """The truth: the host's peak live bytes in the rewritten trace, states of generators included."""
    return int(plan.apply(trace).live_bytes(host=True).max(initial=0))


def as_taken(host: Pinned, trace: Trace) -> Plan:
    """The plan that an account stands for; a release is no matter of the host's."""
    v, found = host.columns, host.gaps
    swaps = []
    for k in np.flatnonzero(v.taken).tolist():
        after, before = int(found.after[k]), int(found.before[k])
        out, prefetch = int(v.start[k] - v.base[k]) + after, int(v.stop[k] - v.base[k]) + after + 1
        turn = after // trace.n * trace.n
        release = max(out + 1, min(before, prefetch))
        swaps.append(Swap(int(found.buffer[k]), *(x - turn for x in (after, before, release, prefetch, out))))
    return Plan(tuple(swaps), trace.n)
