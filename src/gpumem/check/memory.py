"""Space: no two buffers at one place at one time, and no step above the budget."""

from __future__ import annotations

import numpy as np

from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.trace import Trace
from gpumem.trace.placement import NOWHERE, Placement


@strict
def placement(trace: Trace, placed: Placement) -> None:
    """Check that a placement is one.

    Raises
    ------
    CheckError
        A device buffer without an aligned offset within the height, a host buffer with one, or two
        buffers that share a byte during a step; arcs meet on both sides of the boundary.

    Notes
    -----
    Every pair of device buffers that share a byte: O(B^2) time at worst, O(B) memory. Zero bytes overlap nothing.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 4], [0, 1], [2, 3])
    >>> placement(trace, Placement.at(trace, [0, 4]))
    >>> placement(trace, Placement.at(trace, [0, 3]))
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: buffers 0 and 1: overlap in time and address, at byte 3
    """
    b, at, n = trace.buffers, placed.offset, trace.n
    if len(at) != len(b):
        told = f"the trace has {len(b)} buffers, the placement {len(at)} offsets"
        raise _wrong("offsets", told, min(len(at), len(b)))
    for j in range(len(b)):
        if b.host[j]:
            if at[j] != NOWHERE:
                raise _wrong("offsets", f"on the host, but at offset {at[j]} of the pool", j)
        elif at[j] < 0 or at[j] % placed.alignment:
            raise _wrong("alignment", f"offset {at[j]} is not a multiple of {placed.alignment} from 0 on", j)
        elif at[j] + b.size[j] > placed.height:
            raise _wrong("height", f"ends at byte {at[j] + b.size[j]}, above the height of {placed.height}", j)
    solid = np.flatnonzero(~b.host & (b.size > 0))
    order = solid[np.argsort(at[solid], kind="stable")]  # of two that share a byte, one starts inside the other
    last = np.searchsorted(at[order], at[order] + b.size[order])
    length = b.end - b.start
    for place, j in enumerate(order.tolist()):
        inside = order[place + 1 : last[place]]
        meets = ((b.start[inside] - b.start[j]) % n < length[j]) | ((b.start[j] - b.start[inside]) % n < length[inside])
        if meets.any():
            k = int(inside[np.argmax(meets)])
            raise _wrong("overlap", f"overlap in time and address, at byte {at[k]}", min(j, k), max(j, k))


def _wrong(rule: str, reason: str, *buffers: int) -> CheckError:
    who = "buffer" if len(buffers) == 1 else "buffers"
    return CheckError(rule, f"{who} {' and '.join(map(str, buffers))}: {reason}", buffers=buffers)


@strict
def budget(trace: Trace, limit: int, *, host: int | None = None) -> None:
    """Check that the load in issue order never exceeds `limit` bytes, nor the host's its own.

    Raises
    ------
    CheckError
        The first step that holds too much, and how much it holds.

    Notes
    -----
    The load rises only where a buffer starts, so these steps (and step 0) are looked at, each by adding
    up all buffers held there: O(B^2).

    Examples
    --------
    >>> budget(Trace.from_lifetimes([4, 4], [0, 1], [2, 3]), 7)
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: step 1: holds 8 bytes on the device, the limit is 7
    """
    b = trace.buffers
    for what, mine, most in (("device", ~b.host, limit), ("host", b.host, host)):
        if most is None:
            continue
        for step in sorted({0, *b.start.tolist()}):
            held = int(b.size[mine & ((step - b.start) % trace.n < b.end - b.start)].sum())
            if held > most:
                told = f"step {step}: holds {held} bytes on the {what}, the limit is {most}"
                raise CheckError("budget", told, ops=[step])
