"""A trace as the search sees it: what is alive all the time set apart, the rest in units of the alignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gpumem.base import work
from gpumem.pool.search._packing import FAR, PackingInstance
from gpumem.pool.search.glue import Boxes, glue
from gpumem.pool.smartpool.offline import MAX_ALIGNMENT, fit
from gpumem.trace import I64, Trace, first
from gpumem.trace.placement import Placement

# Work is counted in buffers and sections looked at, so that a seed gives one placement on any machine. Not tuned: these
# decide on nothing but when a search ends.
RATE = 100_000_000  # units of work that are done in a second, if not more: what is left of the seconds, as work
REST = 40  # units of work for each buffer that best fit and first fit place around others


@dataclass(frozen=True, slots=True, eq=False)
class PlacementProblem:
    """What is to be placed, and the lower bound of its height.

    Buffers alive all the time share their bytes with nobody, so they go to the bottom, or to the top where the padding
    of one of them may stick out there; where something is fixed they are placed like the others.
    """

    trace: Trace
    alignment: int
    units: I64  # sizes, rounded up, in units of the alignment
    padding: I64  # bytes
    free: I64  # ids of what is to be placed, by descending size and then by start
    eternal: I64  # ids, the one with the most padding last
    fixed: I64  # ids, by offset
    at: I64  # offsets in bytes: right for what is fixed, for host buffers and for zero bytes
    fixed_top: int  # bytes up to which something fixed reaches
    lower_bound: int  # bytes: no placement is lower

    @classmethod
    def of(cls, trace: Trace, alignment: int, fixed: Mapping[int, int] | None = None) -> PlacementProblem:
        """Take a trace apart; raise ValueError for what is fixed where it cannot be."""
        if not 1 <= alignment <= MAX_ALIGNMENT:
            raise ValueError(f"alignment: {alignment} is not in [1, 2**40]")
        buffers = trace.buffers
        solid = ~buffers.host & (buffers.size > 0)
        at = np.where(buffers.host, -1, 0)
        fixed_ids = _fixed(trace, alignment, fixed or {})
        pinned = fixed_ids[buffers.size[fixed_ids] > 0]
        at[fixed_ids] = [(fixed or {})[buffer] for buffer in fixed_ids.tolist()]
        units = -(-buffers.size // alignment)
        padding = units * alignment - buffers.size
        forever = solid & (buffers.end - buffers.start == trace.n) & (len(pinned) == 0)
        solid[pinned] = False
        free = np.flatnonzero(solid & ~forever)
        free = free[np.lexsort((free, buffers.start[free], -buffers.size[free]))]
        eternal = np.flatnonzero(forever)
        eternal = eternal[np.argsort(padding[eternal], kind="stable")]
        fixed_top = int((at + buffers.size)[fixed_ids].max(initial=0))
        problem = cls(
            trace,
            alignment,
            units=units,
            padding=padding,
            free=free,
            eternal=eternal,
            fixed=pinned,
            at=at,
            fixed_top=fixed_top,
            lower_bound=0,
        )
        return replace(problem, lower_bound=problem._lower_bound())

    @property
    def base(self) -> int:
        """Bytes of what is alive all the time, padded."""
        return int(self.units[self.eternal].sum()) * self.alignment

    @property
    def spare(self) -> int:
        """Bytes of padding that stick out where what is alive all the time goes to the top."""
        return int(self.padding[self.eternal[-1:]].sum())

    def _lower_bound(self) -> int:
        """Return the peak live bytes, with the padding of all but the topmost, and not below what is fixed.

        The padding of the topmost buffer may stick out, and each top is a multiple of what all sizes and the alignment
        have in common, so rounding up to that loses nothing."""
        buffers, unit, ids = self.trace.buffers, self.alignment, np.concatenate([self.free, self.fixed])
        grain = int(np.gcd.reduce(np.append(buffers.size[ids], unit)))  # every top is a multiple of it
        load = self.peak_units(ids) * unit - int(self.padding[ids].max(initial=0))
        load = max(load, _peak(self.trace, buffers.size, ids), self.fixed_top)
        return max(self.height(-(-load // grain) * grain), self.trace.peak_live_bytes, self.fixed_top)

    def load(self, ids: I64) -> int:
        """Return the peak live bytes of some buffers and of what is fixed, padded."""
        return self.peak_units(np.concatenate([ids, self.fixed])) * self.alignment

    def peak_units(self, ids: I64) -> int:
        """Return the peak live bytes of some buffers, in units of the alignment."""
        return _peak(self.trace, self.units, ids)

    def height(self, top: int) -> int:
        """Return the pool's height where what is not alive all the time ends at byte `top`."""
        return self.base + min(top, -(-top // self.alignment) * self.alignment - self.spare)

    def sections(self, ids: I64) -> tuple[I64, I64, int]:
        """Return arcs [first, last) of a circle of as many sections as there are steps where one starts or ends."""
        start, end = self.trace.buffers.start[ids], self.trace.buffers.end[ids] % self.trace.n
        points = np.unique(np.concatenate([start, end]))
        first, last = np.searchsorted(points, start), np.searchsorted(points, end)
        return first, np.where(last <= first, last + len(points), last), max(len(points), 1)

    def instance(self, ids: I64, height: int) -> PackingInstance:
        """Return the search's instance for some of the free buffers, below a height of the pool."""
        buffers, unit = self.trace.buffers, self.alignment
        most = height - self.base
        most = max(most, (most + self.spare) // unit * unit)
        every = np.concatenate([ids, self.fixed])
        first, last, sections = self.sections(every)
        ceiling = (most - buffers.size[ids]) // unit + self.units[ids]
        columns = (self.units[ids], first[: len(ids)], last[: len(ids)], ceiling)
        obstacles = self.fixed[::-1]
        rows = (self.units[obstacles], first[len(ids) :][::-1], last[len(ids) :][::-1], self.at[obstacles] // unit)
        size, begin, end, offset = np.stack(rows)  # contiguous, as the compiled loops take them
        return PackingInstance(
            *columns,
            _interchangeable(*columns),
            obstacle_size=size,
            obstacle_first=begin,
            obstacle_last=end,
            obstacle_offset=offset,
            sections=sections,
        )

    def boxes(self) -> Boxes:
        """Return the boxes, in units, that the free buffers make up."""
        return glue(self.units[self.free], *self.sections(self.free))

    def around(self, ids: I64, offset: I64) -> Placement:
        """Place the rest around some free buffers, in units, by best fit or first fit, by size or by lifetime."""
        buffers, orders = self.trace.buffers, [self.free]
        if len(ids) < len(self.free):
            orders.append(self.free[np.argsort((buffers.start - buffers.end)[self.free], kind="stable")])
        return min(
            (
                self.complete(ids, offset, smallest=smallest, order=order)
                for order in orders
                for smallest in (True, False)
            ),
            key=lambda placement: placement.height,
        )

    def complete(self, ids: I64, offset: I64, *, smallest: bool, order: I64 | None = None) -> Placement:
        """Place the rest around some free buffers, in units, by best fit or first fit, and put the eternal ones."""
        buffers, unit, at = self.trace.buffers, self.alignment, self.at.copy()
        at[ids] = offset * unit
        placed = np.concatenate([ids, self.fixed])
        placed = placed[np.argsort(at[placed], kind="stable")]
        rest = order if order is not None else self.free
        if len(ids):
            rest = rest[~np.isin(rest, ids)]
        every = np.concatenate([placed, rest])
        fit(self.trace, every, first=len(placed), alignment=unit, smallest=smallest, offset=at)
        top = int((at + buffers.size)[every].max(initial=0))
        size, height = self.units[self.eternal] * unit, self.height(top)
        below = np.cumsum(size) - size
        if height == self.base + top:
            at[self.eternal] = below
            at[every] += self.base
        else:
            at[self.eternal] = -(-top // unit) * unit + below
        return Placement(at, max(height, self.fixed_top), unit, self.lower_bound)


@dataclass(slots=True)
class Walk:
    """A local search: the lowest placement that it has met, below which it stops, and the work so far."""

    problem: PlacementProblem
    best: Placement
    target: int  # bytes
    work: int = field(default=0, kw_only=True)

    def going(self, effort: float) -> bool:
        """Whether there is something left to find and to spend."""
        return self.best.height > self.target and self.work < effort and not work.over()

    def keep(self, placed: Placement) -> None:
        """Keep a placement, if it is the lowest so far."""
        self.best = min(self.best, placed, key=lambda placement: placement.height)

    def tell(self, what: str) -> None:
        """Report how low it has come."""
        work.tell(f"{what}, {self.best.height / max(self.problem.lower_bound, 1):.4f} of the lower bound")


def _interchangeable(*columns: I64) -> I64:
    """Return for each row the first one that is equal to it."""
    _, index, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    return np.asarray(index[inverse.reshape(-1)], np.int64)


def _fixed(trace: Trace, alignment: int, fixed: Mapping[int, int]) -> I64:
    """Return the ids of fixed buffers by offset; raise ValueError where one cannot lie there."""
    buffers = trace.buffers
    for buffer, offset in fixed.items():
        if not 0 <= buffer < len(buffers):
            raise ValueError(f"fixed: there is no buffer {buffer}")
        if buffers.host[buffer]:
            raise ValueError(f"fixed: buffer {buffer} is on the host")
        if not 0 <= offset < FAR or offset % alignment:
            raise ValueError(f"fixed: offset {offset} of buffer {buffer} is not a multiple of {alignment} from 0 on")
    ids = np.array(sorted(fixed, key=lambda buffer: (fixed[buffer], buffer)), np.int64)
    low, steps, length = (
        np.array([fixed[buffer] for buffer in ids.tolist()], np.int64),
        trace.n,
        buffers.end - buffers.start,
    )
    behind = np.searchsorted(low, low + buffers.size[ids])
    for place, below in enumerate(ids.tolist()):
        over = ids[place + 1 : behind[place]]  # what begins within its bytes: no pair beyond meets
        later, earlier = (
            (buffers.start[over] - buffers.start[below]) % steps < length[below],
            (buffers.start[below] - buffers.start[over]) % steps < length[over],
        )
        if (buffer := first((later | earlier) & (buffers.size[over] > 0))) >= 0:
            raise ValueError(f"fixed: buffers {below} and {over[buffer]} overlap at byte {fixed[int(over[buffer])]}")
    return ids


def _peak(trace: Trace, size: I64, ids: I64) -> int:
    buffers = trace.buffers
    return (
        Trace.from_lifetimes(size[ids], buffers.start[ids], buffers.end[ids], n=trace.n).peak_live_bytes
        if len(ids)
        else 0
    )
