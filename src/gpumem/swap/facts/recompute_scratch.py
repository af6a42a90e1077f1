"""What recomputations hold beside all else: scratch on the device, states of random generators on the host.

All that is recomputed before one op is one replay. Its scratch is beside the live bytes there, its values partly below
it::

    recompute  w   c   x   y
    scratch    [======]              from its first write to its last reader
    wanted     . . . . [=========    counted as live at the place; it begins with its first write
    beside     the largest sum, at any of these ops, of the scratch there, minus what is wanted and has not begun
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from gpumem.swap.plan.replay import Replay
from gpumem.trace import COMPUTE, I64, Trace


def beside(made: Replay, size: I64) -> int:
    """Return the bytes that a place needs beside what is held over it with the wanted values back.

    `size`: int64[B]. Exact: it gives the peak live bytes of these recomputations in the trace that `Plan.apply`
    makes. O(values).

    >>> from gpumem.swap.plan import Recompute
    >>> from gpumem.swap.plan.replay import Device, replay
    >>> from gpumem.swap.plan.values import Origins
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[0], [], [1]], [[1, 2], [], []])
    >>> trace = Trace(Buffers.make([1, 8, 4], [0, 0, 0], [3, 3, 1], persistent=[True, False, False]), ops)
    >>> drop = Recompute(buffer=1, after=0, before=2, at=2)
    >>> beside(replay(Device(trace, Origins.of(trace), [drop]), [drop], 2), trace.buffers.size)
    4
    """
    change = np.zeros(len(made.recomputed_ops) + 1, np.int64)
    for value, span in made.spans.items():
        change[span.write] += size[value.buffer]
        stays = value in made.wanted or value in made.held
        change[0 if stays else span.touch + 1] -= size[value.buffer]
    return int(np.cumsum(change)[:-1].max(initial=0))


def states(trace: Trace, replays: Iterable[Replay], kept: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return the random ops whose recomputations need the generator's state, and before which op the last of them is.

    `kept`: what others need, that counts as well.
    """
    ops, until = trace.ops, dict(kept or {})
    first = {int(ops.of[index]): index for index in np.flatnonzero(ops.rng & (ops.role == COMPUTE)).tolist()}
    for made in replays if first else ():
        for random in (step.op for step in made.recomputed_ops if ops.rng[step.op]):
            if (op := first.get(int(ops.of[random]))) is not None:
                until[op] = max(until.get(op, 0), made.place)
    return until
