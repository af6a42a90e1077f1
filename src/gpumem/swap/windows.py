"""Windows: what a planner or a bound needs to know of the gaps of a trace, as columns.

A gap's two accesses count on from the start of its value, so that nothing wraps::

    op         [ a ]                         [ b ]        a = after, b = before, up to 3 n
    time          |E                        S|
    copy out      |-------->                              first gap of a value: nobody else copies it out
    copy in                         <--------|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpumem.base.arguments import strict
from gpumem.simulator.machine import Machine
from gpumem.swap.plan.gaps import Spans, gaps
from gpumem.trace import I64, Bool, Trace


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Windows(Spans):
    """Columns over gaps, ascending by value, then by `after`.

    `buffer`; `after`, `before`: the accesses, in ops since the iteration in which the value was made; `size` in
    bytes; `value`: gaps of one value share its host copy, which can be made from the end of op
    `opens` on; `constant`: nothing ever writes the buffer, which lives for ever, so that the host always holds it;
    `out_ns`, `in_ns`: the copies in ns, `out_ns` 0 of a constant.
    """

    size: I64
    value: I64
    opens: I64
    constant: Bool
    out_ns: I64
    in_ns: I64


@strict
def windows(trace: Trace, machine: Machine) -> Windows:
    """Return a window for every gap of every device buffer that holds bytes and in which some op runs.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[], [0], [], [0]], [[], [], [0], []])
    >>> found = windows(Trace(Buffers.make([8], [0], [4], persistent=[True]), ops), Machine.named("h200"))
    >>> found.after, found.before  # between ops 1 and 2, and 2 and 3, there is none
    (array([3]), array([5]))
    """
    n, g = trace.n, gaps(trace)
    size, value, after = trace.buffers.size[g.buffer], g.value, g.unrolled(trace)
    opens = np.full(len(g), 3 * n)
    np.minimum.at(opens, value, after)
    w = Windows(
        g.buffer,
        after,
        after + g.before - g.after,
        size,
        value,
        opens[value],
        g.constant,
        np.where(g.constant, 0, machine.out.copy_ns(size)),
        machine.into.copy_ns(size),
    )
    w = w.where((size > 0) & (g.before > g.after + 1))
    return w.where(np.lexsort((w.after, w.value)))
