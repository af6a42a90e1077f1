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

RATE = 100_000_000  # the work that is done in a second, if not more
REST = 40  # work for each buffer that is placed around others


@dataclass(frozen=True, slots=True, eq=False)
class PlacementProblem:
    """What is to be placed, and what no placement goes below.

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
    floor: int  # bytes up to which something fixed reaches
    lowest: int  # bytes that no placement goes below

    @classmethod
    def of(cls, trace: Trace, alignment: int, fixed: Mapping[int, int] | None = None) -> PlacementProblem:
        """Take a trace apart; raise ValueError for what is fixed where it cannot be."""
        if not 1 <= alignment <= MAX_ALIGNMENT:
            raise ValueError(f"alignment: {alignment} is not in [1, 2**40]")
        b = trace.buffers
        solid = ~b.host & (b.size > 0)
        at = np.where(b.host, -1, 0)
        held = _fixed(trace, alignment, fixed or {})
        pinned = held[b.size[held] > 0]
        at[held] = [(fixed or {})[j] for j in held.tolist()]
        units = -(-b.size // alignment)
        padding = units * alignment - b.size
        forever = solid & (b.end - b.start == trace.n) & (len(pinned) == 0)
        solid[pinned] = False
        free = np.flatnonzero(solid & ~forever)
        free = free[np.lexsort((free, b.start[free], -b.size[free]))]
        eternal = np.flatnonzero(forever)
        eternal = eternal[np.argsort(padding[eternal], kind="stable")]
        floor = int((at + b.size)[held].max(initial=0))
        problem = cls(trace, alignment, units, padding, free, eternal, pinned, at, floor, 0)
        return replace(problem, lowest=problem._lowest())

    @property
    def base(self) -> int:
        """Bytes of what is alive all the time, padded."""
        return int(self.units[self.eternal].sum()) * self.alignment

    @property
    def spare(self) -> int:
        """Bytes of padding that stick out where what is alive all the time goes to the top."""
        return int(self.padding[self.eternal[-1:]].sum())

    def _lowest(self) -> int:
        """Return the peak load, with the padding of all but the topmost, and not below what is fixed."""
        b, a, ids = self.trace.buffers, self.alignment, np.concatenate([self.free, self.fixed])
        grain = int(np.gcd.reduce(np.append(b.size[ids], a)))  # every top is a multiple of it
        load = self.peak_units(ids) * a - int(self.padding[ids].max(initial=0))
        load = max(load, _peak(self.trace, b.size, ids), self.floor)
        return max(self.height(-(-load // grain) * grain), self.trace.peak_live_bytes, self.floor)

    def load(self, ids: I64) -> int:
        """Return the peak load of some buffers and of what is fixed, in bytes, padded."""
        return self.peak_units(np.concatenate([ids, self.fixed])) * self.alignment

    def peak_units(self, ids: I64) -> int:
        """Return the peak load of some buffers, in units of the alignment."""
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
        b, a = self.trace.buffers, self.alignment
        most = height - self.base
        most = max(most, (most + self.spare) // a * a)
        every = np.concatenate([ids, self.fixed])
        first, last, sections = self.sections(every)
        ceiling = (most - b.size[ids]) // a + self.units[ids]
        columns = (self.units[ids], first[: len(ids)], last[: len(ids)], ceiling)
        held = self.fixed[::-1]
        solid = (self.units[held], first[len(ids) :][::-1], last[len(ids) :][::-1], self.at[held] // a)
        return PackingInstance(*columns, _twins(*columns), np.stack(solid), sections)

    def boxes(self) -> Boxes:
        """Return the boxes, in units, that the free buffers make up."""
        return glue(self.units[self.free], *self.sections(self.free))

    def around(self, ids: I64, offset: I64) -> Placement:
        """Place the rest around some free buffers, in units, by best fit or first fit, by size or by lifetime."""
        b, orders = self.trace.buffers, [self.free]
        if len(ids) < len(self.free):
            orders.append(self.free[np.argsort((b.start - b.end)[self.free], kind="stable")])
        return min(
            (
                self.complete(ids, offset, smallest=smallest, order=order)
                for order in orders
                for smallest in (True, False)
            ),
            key=lambda p: p.height,
        )

    def complete(self, ids: I64, offset: I64, *, smallest: bool, order: I64 | None = None) -> Placement:
        """Place the rest around some free buffers, in units, by best fit or first fit, and put the eternal ones."""
        b, a, at = self.trace.buffers, self.alignment, self.at.copy()
        at[ids] = offset * a
        placed = np.concatenate([ids, self.fixed])
        placed = placed[np.argsort(at[placed], kind="stable")]
        rest = order if order is not None else self.free
        if len(ids):
            rest = rest[~np.isin(rest, ids)]
        every = np.concatenate([placed, rest])
        fit(self.trace, every, len(placed), a, smallest, at)
        top = int((at + b.size)[every].max(initial=0))
        size, height = self.units[self.eternal] * a, self.height(top)
        below = np.cumsum(size) - size
        if height == self.base + top:
            at[self.eternal] = below
            at[every] += self.base
        else:
            at[self.eternal] = -(-top // a) * a + below
        return Placement(at, max(height, self.floor), a, self.lowest)


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
        """Take note of a placement."""
        self.best = min(self.best, placed, key=lambda p: p.height)

    def tell(self, what: str) -> None:
        """Say how low it has come."""
        work.tell(f"{what}, {self.best.height / max(self.problem.lowest, 1):.4f} of the lower bound")


def _twins(*columns: I64) -> I64:
    """Return for each row the first one that is equal to it."""
    _, index, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    return np.asarray(index[inverse.reshape(-1)], np.int64)


def _fixed(trace: Trace, alignment: int, fixed: Mapping[int, int]) -> I64:
    """Return the ids of fixed buffers by offset; raise ValueError where one cannot lie there."""
    b = trace.buffers
    for j, offset in fixed.items():
        if not 0 <= j < len(b):
            raise ValueError(f"fixed: there is no buffer {j}")
        if b.host[j]:
            raise ValueError(f"fixed: buffer {j} is on the host")
        if not 0 <= offset < FAR or offset % alignment:
            raise ValueError(f"fixed: offset {offset} of buffer {j} is not a multiple of {alignment} from 0 on")
    ids = np.array(sorted(fixed, key=lambda j: (fixed[j], j)), np.int64)
    low, n, length = np.array([fixed[j] for j in ids.tolist()], np.int64), trace.n, b.end - b.start
    behind = np.searchsorted(low, low + b.size[ids])
    for k, i in enumerate(ids.tolist()):
        over = ids[k + 1 : behind[k]]  # what begins within its bytes: no pair beyond meets
        later, earlier = (b.start[over] - b.start[i]) % n < length[i], (b.start[i] - b.start[over]) % n < length[over]
        if (j := first((later | earlier) & (b.size[over] > 0))) >= 0:
            raise ValueError(f"fixed: buffers {i} and {over[j]} overlap at byte {fixed[int(over[j])]}")
    return ids


def _peak(trace: Trace, size: I64, ids: I64) -> int:
    b = trace.buffers
    return Trace.from_lifetimes(size[ids], b.start[ids], b.end[ids], n=trace.n).peak_live_bytes if len(ids) else 0
