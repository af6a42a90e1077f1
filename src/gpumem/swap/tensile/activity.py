"""TENSILE's activity analysis: a tensor is released when its last access has ended (algorithm 3, line 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpumem.base.arguments import strict
from gpumem.trace import Trace


@strict
def released(trace: Trace) -> Trace:
    """Return `trace` with the tails of its lifetimes cut: a buffer ends with the last op that touches it.

    What is persistent, on the host or never touched keeps its lifetime.

    Notes
    -----
    O(accesses). Recorded frameworks hold on to some buffers, gradients above all, until the iteration is over. Plans
    leave such tails alone, so that planners can be compared; whoever wants them gone rewrites the trace first.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], []], [[0], [], []])
    >>> released(Trace(Buffers.make([8], [0], [3]), ops)).buffers.end
    array([2])

    References
    ----------
    Zhang et al., TENSILE, section 4.5.
    """
    b, last = trace.buffers, trace.last_touch()
    short = (last >= 0) & ~b.persistent & ~b.host
    return replace(trace, buffers=replace(b, end=np.where(short, b.start + last + 1, b.end)))
