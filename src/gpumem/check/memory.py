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
    b, at = trace.buffers, placed.offset
    if len(at) != len(b):
        told = f"the trace has {len(b)} buffers, the placement {len(at)} offsets"
        raise _wrong("offsets", told, min(len(at), len(b)))
    stray, uneven = b.host & (at != NOWHERE), ~b.host & ((at < 0) | (at % placed.alignment != 0))
    above = ~b.host & (at > placed.height - b.size)
    if (j := first(stray | uneven | above)) >= 0:
        if stray[j]:
            raise _wrong("offsets", f"on the host, but at offset {at[j]} of the pool", j)
        if uneven[j]:
            raise _wrong("alignment", f"offset {at[j]} is not a multiple of {placed.alignment} from 0 on", j)
        raise _wrong("height", f"ends at byte {int(at[j]) + int(b.size[j])}, above the height of {placed.height}", j)
    _apart(b, at, trace.n)


def _apart(b: Buffers, at: I64, n: int) -> None:
    """Object to two buffers that share a byte during a step: go up through the bytes, and keep who holds each when."""
    begins: list[int] = []  # of the parts of lifetimes that hold the byte; they are apart, so each begins by itself
    held: dict[int, tuple[int, int]] = {}  # by where it begins: where it ends, and whose it is
    for j, ended in upward(b, at):
        for gone in ended:
            for begin, _ in _parts(b, gone, n):
                del begins[bisect_left(begins, begin)], held[begin]
        for begin, end in _parts(b, j, n):
            place = bisect_left(begins, begin)
            for other in begins[max(place - 1, 0) : place + 1]:  # the neighbours in time; one of them meets, or none
                until, k = held[other]
                if other < end and begin < until:
                    raise _wrong("overlap", f"overlap in time and address, at byte {at[j]}", min(j, k), max(j, k))
            begins.insert(place, begin)
            held[begin] = end, j


def upward(b: Buffers, at: I64) -> Iterator[tuple[int, list[int]]]:
    """Go up through the bytes of the pool: yield each device buffer with any, and who has ended by its first."""
    solid = np.flatnonzero(~b.host & (b.size > 0))
    ending = [(int(at[j] + b.size[j]), j) for j in solid[np.argsort(-(at + b.size)[solid])].tolist()]  # the lowest last
    for j in work.all_of(solid[np.argsort(at[solid], kind="stable")].tolist()):
        ended = []
        while ending[-1][0] <= at[j]:  # never empty: `j` itself ends above
            ended.append(ending.pop()[1])
        yield j, ended


def _parts(b: Buffers, j: int, n: int) -> list[tuple[int, int]]:
    """The lifetime of a buffer within one iteration: two parts where it wraps."""
    start, end = int(b.start[j]), int(b.end[j])
    return [(start, min(end, n))] + ([(0, end - n)] if end > n else [])


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
    One sum over the steps of what begins and ends at each: O(n + B).

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
        change = np.zeros(2 * trace.n + 1, np.int64)  # lifetimes that wrap end in the second turn
        np.add.at(change, b.start[mine], b.size[mine])
        np.add.at(change, b.end[mine], -b.size[mine])
        once = np.cumsum(change[:-1])
        held = once[: trace.n] + once[trace.n :]  # what began in the turn before is there still
        if (step := first(held > most)) >= 0:
            told = f"step {step}: holds {held[step]} bytes on the {what}, the limit is {most}"
            raise CheckError("budget", told, ops=[step])
