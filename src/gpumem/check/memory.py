"""Space: no two buffers at one place at one time, and no step above the budget."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from gpumem.base import work
from gpumem.base.arguments import strict
from gpumem.base.errors import CheckError
from gpumem.trace import I64, Buffers, Trace, first
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
    A sweep by address: O(B log B) comparisons, O(B) memory. Zero bytes overlap nothing.

    Examples
    --------
    >>> trace = Trace.from_lifetimes([4, 4], [0, 1], [2, 3])
    >>> placement(trace, Placement.at(trace, [0, 4]))
    >>> placement(trace, Placement.at(trace, [0, 3]))
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: buffers 0 and 1: overlap in time and address, at byte 3
    """
    buffers, at = trace.buffers, placed.offset
    if len(at) != len(buffers):
        reason = f"the trace has {len(buffers)} buffers, the placement {len(at)} offsets"
        raise _wrong("offsets", reason, min(len(at), len(buffers)))
    stray, uneven = buffers.host & (at != NOWHERE), ~buffers.host & ((at < 0) | (at % placed.alignment != 0))
    above = ~buffers.host & (at > placed.height - buffers.size)
    if (buffer := first(stray | uneven | above)) >= 0:
        if stray[buffer]:
            raise _wrong("offsets", f"on the host, but at offset {at[buffer]} of the pool", buffer)
        if uneven[buffer]:
            raise _wrong("alignment", f"offset {at[buffer]} is not a multiple of {placed.alignment} from 0 on", buffer)
        raise _wrong(
            "height",
            f"ends at byte {int(at[buffer]) + int(buffers.size[buffer])}, above the height of {placed.height}",
            buffer,
        )
    _apart(buffers, at, trace.n)


def _apart(buffers: Buffers, at: I64, steps: int) -> None:
    """Object to two buffers that share a byte during a step: go up through the bytes, and keep who holds each when."""
    begins: list[int] = []  # of the parts of lifetimes that hold the byte; they are apart, so each begins by itself
    held: dict[int, tuple[int, int]] = {}  # by where it begins: where it ends, and whose it is
    for buffer, ended in upward(buffers, at):
        for ended_buffer in ended:
            for begin, _ in _parts(buffers, ended_buffer, steps):
                del begins[bisect_left(begins, begin)], held[begin]
        for begin, end in _parts(buffers, buffer, steps):
            place = bisect_left(begins, begin)
            for other in begins[max(place - 1, 0) : place + 1]:  # the neighbours in time; one of them meets, or none
                until, holder = held[other]
                if other < end and begin < until:
                    raise _wrong(
                        "overlap",
                        f"overlap in time and address, at byte {at[buffer]}",
                        min(buffer, holder),
                        max(buffer, holder),
                    )
            begins.insert(place, begin)
            held[begin] = end, buffer


def upward(buffers: Buffers, at: I64) -> Iterator[tuple[int, list[int]]]:
    """Go up through the bytes of the pool: yield each device buffer with any, and who has ended by its first."""
    solid = np.flatnonzero(~buffers.host & (buffers.size > 0))
    ending = [
        (int(at[buffer] + buffers.size[buffer]), buffer)
        for buffer in solid[np.argsort(-(at + buffers.size)[solid])].tolist()
    ]  # the lowest last
    for buffer in work.all_of(solid[np.argsort(at[solid], kind="stable")].tolist()):
        ended = []
        while ending[-1][0] <= at[buffer]:  # never empty: `j` itself ends above
            ended.append(ending.pop()[1])
        yield buffer, ended


def _parts(buffers: Buffers, buffer: int, steps: int) -> list[tuple[int, int]]:
    """The lifetime of a buffer within one iteration: two parts where it wraps."""
    start, end = int(buffers.start[buffer]), int(buffers.end[buffer])
    return [(start, min(end, steps))] + ([(0, end - steps)] if end > steps else [])


def _wrong(rule: str, reason: str, *buffers: int) -> CheckError:
    who = "buffer" if len(buffers) == 1 else "buffers"
    return CheckError(rule, f"{who} {' and '.join(map(str, buffers))}: {reason}", buffers=buffers)


@strict
def budget(trace: Trace, limit: int, *, host: int | None = None) -> None:
    """Check that the live bytes in issue order never exceed `limit` bytes, nor the host's its own.

    Raises
    ------
    CheckError
        The first step that holds too much, and how much it holds.

    Notes
    -----
    One sum over the steps of what begins and ends at each: O(n + B).

    Examples
    --------
    >>> budget(Trace.from_lifetimes([4, 4], [0, 1], [2, 3]), 7)
    Traceback (most recent call last):
    gpumem.base.errors.CheckError: step 1: holds 8 bytes on the device, the limit is 7
    """
    buffers = trace.buffers
    for what, own, most in (("device", ~buffers.host, limit), ("host", buffers.host, host)):
        if most is None:
            continue
        change = np.zeros(2 * trace.n + 1, np.int64)  # lifetimes that wrap end in the second turn
        np.add.at(change, buffers.start[own], buffers.size[own])
        np.add.at(change, buffers.end[own], -buffers.size[own])
        once = np.cumsum(change[:-1])
        held = once[: trace.n] + once[trace.n :]  # what began in the turn before is there still
        if (step := first(held > most)) >= 0:
            reason = f"step {step}: holds {held[step]} bytes on the {what}, the limit is {most}"
            raise CheckError("budget", reason, ops=[step])
