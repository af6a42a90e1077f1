"""Gaps that a program of fractions cannot tell apart count as one part.

Where ops may wait, breakpoints are all that limits a copy: gaps between the same ones, copied at the same rate, are as
good as one gap of all their bytes. What is dropped of a part is told by the rates of recomputing it::

    part         gaps a, b, c: 30 bytes, away between breakpoints 3 and 7, 1 ns/byte
    its drops    a: 10 bytes at 0.2 ns/byte      b, c: 20 bytes at 0.5 ns/byte
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpumem.base.display import Shown
from gpumem.swap.fluid.relax import Fluid
from gpumem.trace import F64, I64, Bool

# Relative: rates closer than that may count as one. That is the least of them, which can only lower the bound.
# Not tuned.
RATE = 1e-3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Droppable(Shown):
    """Columns over what may be dropped of parts: `part`, `size` in bytes, `recompute_ns` for all of it."""

    part: I64
    size: F64
    recompute_ns: F64


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Parts(Shown):
    """Columns over parts, and over the gaps that they are made of.

    Of a part: places `begin` to `end` (it may be off the device), `start` (its value may be copied out before it),
    `stop` (it is back), `size`, `out_ns`, `in_ns` of all of it; `value`, and whether `several` parts share its
    copy-out; `gap`: one of its gaps. Of a gap: its `part`, what is dropped of it in `drops` (-1: nothing), and by how
    many places it lies behind its part (`shift`).
    """

    begin: I64
    end: I64
    start: I64
    stop: I64
    size: F64
    out_ns: F64
    in_ns: F64
    value: I64
    several: Bool
    gap: I64
    drops: Droppable
    part: I64
    drop: I64
    shift: I64


def merge_gaps(fluid: Fluid, begin: I64, end: I64, turns: I64, segments: int) -> Parts:
    """Return the parts for breakpoints `turns`, `segments` a turn; `fluid` has gaps with `begin < end` in them."""
    windows = fluid.w
    start = np.searchsorted(turns, fluid.opens, side="right")
    stop = np.searchsorted(turns, fluid.closes + (not fluid.stalls))
    value, gaps = np.unique(windows.value, return_inverse=True, return_counts=True)[1:]
    several = (windows.out_ns > 0) & (gaps > 1)[value]
    shift = start // segments * segments if fluid.stalls else np.zeros(len(windows), np.int64)
    out_rate, in_rate, recompute_rate = (
        windows.out_ns / windows.size,
        windows.in_ns / windows.size,
        fluid.recompute_ns / windows.size,
    )
    begin, end, start, stop = (column - shift for column in (begin, end, start, stop))
    alone = [several] if fluid.stalls else [np.arange(len(windows))]
    plain = _same([begin, end, start, stop, _step(out_rate), _step(in_rate), *alone])
    each = _same([plain, _step(recompute_rate)])
    part = _number_parts_by_value(plain, each, value, several)
    first_of, drop_of = np.unique(part, return_index=True)[1], np.flatnonzero(fluid.recompute_ns < np.inf)
    size: F64 = np.bincount(part, windows.size).astype(np.float64)
    member, rate_of = np.unique(np.stack([part[drop_of], _step(recompute_rate[drop_of])]), axis=1, return_inverse=True)
    dropped: F64 = np.bincount(rate_of.ravel(), windows.size[drop_of], member.shape[1]).astype(np.float64)
    drop = np.full(len(windows), -1)
    drop[drop_of] = rate_of.ravel()
    return Parts(
        begin=begin[first_of],
        end=end[first_of],
        start=start[first_of],
        stop=stop[first_of],
        size=size,
        out_ns=size * _least(part, out_rate),
        in_ns=size * _least(part, in_rate),
        value=value[first_of],
        several=several[first_of],
        gap=first_of,
        drops=Droppable(member[0], dropped, dropped * _least(rate_of.ravel(), recompute_rate[drop_of])),
        part=part,
        drop=drop,
        shift=shift,
    )


def _same(columns: Sequence[Any]) -> I64:
    """Number the rows that are not alike."""
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _step(rate: F64) -> I64:
    """Number of each rate on a logarithmic scale of steps of `RATE`; rates of 0 and inf have numbers of their own."""
    finite = np.where(np.isfinite(rate) & (rate > 0), rate, 1.0)
    step = np.floor(np.log(finite) / RATE).astype(np.int64)
    return np.where(np.isfinite(rate), np.where(rate > 0, step, -(2**60)), 2**60)


def _least(group: I64, rate: F64) -> F64:
    least = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, group, rate)
    return least


def _number_parts_by_value(plain: I64, each: I64, value: I64, several: Bool) -> I64:
    """Number parts: gaps that share no copy-out by `plain`; others if all gaps of their values are alike by `each`."""
    kinds: dict[tuple[int, ...], int] = {}
    part, count = plain.copy(), int(plain.max(initial=-1)) + 1
    sharing = np.flatnonzero(several)
    for rows in np.split(sharing, np.flatnonzero(np.diff(value[sharing])) + 1) if len(sharing) else []:
        first = kinds.setdefault(tuple(each[rows].tolist()), count)
        part[rows] = first + np.arange(len(rows))
        count = max(count, first + len(rows))
    return np.unique(part, return_inverse=True)[1].ravel().astype(np.int64)
