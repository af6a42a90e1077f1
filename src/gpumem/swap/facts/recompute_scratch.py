"""What reruns hold beside all else: scratch on the device, states of random generators on the host.

All that runs again before one op is one replay. Its scratch is beside the load there, its values partly below it::

    reruns     w   c   x   y
    scratch    [======]              from its first write to its last reader
    wanted     . . . . [=========    the load counts it at the place; it begins with its first write
    beside     the largest sum, over the reruns, of the scratch there, minus what is wanted and has not begun
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from gpumem.swap.plan.decisions import Recompute, Swap
from gpumem.swap.plan.replay import Device, Replay, replay
from gpumem.swap.plan.values import Origins
from gpumem.trace import COMPUTE, I64, Trace


def beside(made: Replay, size: I64) -> int:
    """Return the bytes that a place needs beside what is held over it with the wanted values back.

    `size`: int64[B]. Exact: it gives the largest load of these reruns in the trace that `Plan.apply` makes. O(values).
    """
    change = np.zeros(len(made.reruns) + 1, np.int64)
    for value, span in made.spans.items():
        change[span.write] += size[value.buffer]
        stays = value in made.wanted or value in made.held
        change[0 if stays else span.touch + 1] -= size[value.buffer]
    return int(np.cumsum(change)[:-1].max(initial=0))


class Reruns:
    """The replays of a plan, followed one decision at a time.

    Parameters
    ----------
    trace : Trace
    swaps : iterable of Swap

    Notes
    -----
    Whoever adds a decision sees to it that no other place reads what it drops; then only its own replay changes.

    Examples
    --------
    >>> from gpumem.trace import Buffers, Ops
    >>> ops = Ops.make([[0], [], [1]], [[1, 2], [], []])
    >>> trace = Trace(Buffers.make([1, 8, 4], [0, 0, 0], [3, 3, 1], persistent=[True, False, False]), ops)
    >>> again, drop = Reruns(trace), Recompute(buffer=1, after=0, before=2, at=2)
    >>> made = again.tried(drop)
    >>> made.sources, beside(made, trace.buffers.size)
    (frozenset({0}), 4)
    >>> again.add(drop)
    """

    def __init__(self, trace: Trace, swaps: Iterable[Swap] = ()) -> None:
        self.device = Device(trace, Origins.of(trace), swaps)
        self._wanted: dict[int, list[Recompute]] = {}  # by place

    def tried(self, drop: Recompute) -> Replay:
        """Return what would run at the place of one more decision; raise `Refused` where there is no way."""
        return replay(self.device, [*self._wanted.get(drop.at, []), drop], drop.at)

    def add(self, drop: Recompute) -> None:
        """Take a decision that was `tried`."""
        self.device.decide([drop])
        self._wanted.setdefault(drop.at, []).append(drop)


def states(trace: Trace, replays: Iterable[Replay], kept: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return the random ops of which a rerun needs the generator's state, and before which op the last of them is.

    `kept`: what others need, that counts as well.
    """
    ops, until = trace.ops, dict(kept or {})
    first = {int(ops.of[i]): i for i in np.flatnonzero(ops.rng & (ops.role == COMPUTE)).tolist()}
    for made in replays if first else ():
        for x in (rerun.op for rerun in made.reruns if ops.rng[rerun.op]):
            if (op := first.get(int(ops.of[x]))) is not None:
                until[op] = max(until.get(op, 0), made.place)
    return until
