"""What planners ask first: is that an option, is there anything to do about the limit, can it be met at all?"""

from __future__ import annotations

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.errors import Infeasible
from gpumem.swap.plan.gaps import gaps, without
from gpumem.trace import Trace


def floor(trace: Trace) -> tuple[int, int]:
    """Return the op that must hold the most bytes whatever is swapped, and how many.

    No rewrite by gaps gets below: the op holds what it touches, and what is alive without a gap around it.
    """
    found = gaps(trace)
    held = without(trace.load(), found, trace.buffers.size[found.buffer])
    return int(np.argmax(held)), int(held.max())


@strict
def fits(trace: Trace, limit: int) -> bool:
    """Return whether the load of `trace` is at most `limit` already, so that the empty plan will do.

    It raises the `Infeasible` and the `ValueError` of the contract in `gpumem.swap`.

    Examples
    --------
    >>> fits(Trace.from_lifetimes([4, 2], [0, 1], [2, 3]), 6)
    True
    """
    if limit < 1:
        raise ValueError(f"limit: {limit} bytes is below 1")
    if trace.peak_load <= limit:
        return True
    op, needs = floor(trace)
    if limit < needs:
        raise Infeasible(op, needs, limit)
    return False
